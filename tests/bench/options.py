"""What the bench's commands share: options, the server and the load they describe, how things are said.

Refuses to know: what a command does.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tests.bench.runs import Load, Subject
from tests.bench.scenarios import USER
from tests.bench.server import PEOPLE, Server


def common() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="keep the server's state and log")
    parser.add_argument("--model-path", help="serve this GGUF file or directory, not the default")
    parser.add_argument("--numerics", default="fast", choices=["fast", "invariant", "int8"])
    parser.add_argument("--threads", type=int, help="CPU threads of our executor")
    return parser


def load_options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--concurrency", default="1,8,32", help="streams at once, comma separated")
    parser.add_argument("--input", type=int, default=128, help="prompt tokens")
    parser.add_argument("--output", type=int, default=64, help="output tokens")
    parser.add_argument("--requests-per-stream", type=int, default=4)
    parser.add_argument(
        "--repeat", type=int, default=3, help="rounds; the median of each figure counts"
    )
    return parser


def load_of(options: argparse.Namespace, *, long_tokens: int | None = None) -> Load:
    return Load(
        concurrencies=tuple(int(each) for each in options.concurrency.split(",")),
        input_tokens=options.input,
        output_tokens=options.output,
        requests_per_stream=options.requests_per_stream,
        seed=str(options.seed),
        long_tokens=long_tokens,
    )


def server_of(options: argparse.Namespace, people: Sequence[tuple[str, str]] = PEOPLE) -> Server:
    path = options.model_path
    server = Server.prepare(
        model_path=None if path is None else str(Path(path).resolve()),
        numerics=options.numerics,
        threads=options.threads,
        people=people,
    )
    server.keep = options.keep
    if options.keep:
        say(options, f"state and log stay in {server.folder}")
    return server


def subject_of(server: Server) -> Subject:
    site = server.site
    return Subject("lockgate", site.base_url, site.model, site.tokens[USER], site.admin)


def say(options: argparse.Namespace, sentence: str) -> None:
    if not options.json:
        print(sentence, flush=True)


def print_json(**document: object) -> None:
    print(msgspec.json.format(msgspec.json.encode(document), indent=1).decode())
