"""`python -m tests.bench peers`: which peers are here, what is missing, a run, a comparison in words."""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import uvloop

from tests.bench import peer_llama, peer_openvino, peer_vllm
from tests.bench.limits import Limits, measured_apart
from tests.bench.machine import Machine, this_machine
from tests.bench.options import load_of, print_json, say, server_of, subject_of
from tests.bench.peer import HttpPeer, Peer
from tests.bench.peers import OURS, Against, Compared, Seen, compared, faults_of, take_turns
from tests.bench.processes import busy_s
from tests.bench.runs import Load, Round, one_round, shape_of
from tests.bench.server import REPOSITORY, default_model
from tests.bench.show import columns, table

NEIGHBOURS_S, NEIGHBOURS_CORES_MAX = 2.0, 0.1
README = "tests/bench/README.md"


def peers(options: argparse.Namespace) -> int:
    load = load_of(options, long_tokens=options.long_input or None)
    machine = this_machine(REPOSITORY)
    model = Path(options.model_path).resolve() if options.model_path else default_model()
    with tempfile.TemporaryDirectory(prefix="lockgate-peers-") as folder:
        logs = Path(folder)
        limits = uvloop.run(measured_apart(model, options.threads))
        found, absent = present_peers(options, load, model, limits.rates.threads, logs)
        for sentence in absent:
            say(options, sentence)
        if options.keep:
            say(options, f"the peers' logs are in {logs} while this runs")
        seen = uvloop.run(_run(options, load, model, found))
        for name in seen.failed:
            say(options, _last_words(logs / f"{name}.log"))
    return _conclude(options, load, machine, seen, absent)


def present_peers(
    options: argparse.Namespace, load: Load, model: Path, threads: int, logs: Path
) -> tuple[list[Peer], list[str]]:
    """Those that were named and are there; a sentence for each that is missing."""
    found: list[Peer] = []
    absent: list[str] = []

    def consider(name: str, option: str, given: object, make: Callable[[], Peer]) -> None:
        if not given:
            absent.append(f"{name}: not named; {option} runs it ({README}, {name!r}, installs it)")
            return
        try:
            found.append(make())
        except (FileNotFoundError, ValueError) as why:
            absent.append(f"{name}: {why}")

    consider(
        "llama.cpp",
        "--llama-server PATH",
        options.llama_server,
        lambda: peer_llama.make_llama(
            peer_llama.Settings(
                options.llama_server, model, threads, tuple(options.llama_argument)
            ),
            load,
            logs / "llama.cpp.log",
        ),
    )
    consider(
        "OpenVINO GenAI",
        "--openvino-venv DIR",
        options.openvino_venv,
        lambda: peer_openvino.make_openvino(
            peer_openvino.Settings(options.openvino_venv, model, threads), logs / "openvino.log"
        ),
    )
    consider(
        "vLLM",
        "--vllm-venv DIR --vllm-model DIR",
        options.vllm_venv and options.vllm_model,
        lambda: peer_vllm.make_vllm(
            peer_vllm.Settings(
                venv=options.vllm_venv,
                model_dir=options.vllm_model,
                threads_bind=options.vllm_threads_bind,
                kv_gib=options.vllm_kv_gib,
                preload=tuple(options.vllm_preload),
            ),
            logs / "vllm.log",
        ),
    )
    found += [_running(each) for each in options.peer_url]
    return found, absent


def _running(text: str) -> HttpPeer:
    """`NAME=http://127.0.0.1:PORT/v1` or, where it asks for a model's name, `NAME=URL,MODEL`."""
    name, given, rest = text.partition("=")
    url, _, model = rest.partition(",")
    if not given or not name or name == OURS:
        raise ValueError(f"expected --peer-url NAME=http://127.0.0.1:PORT/v1, got {text!r}")
    return HttpPeer(name, url, model or "peer", f"{url}, running already, so not paused")


async def _run(options: argparse.Namespace, load: Load, model: Path, found: Sequence[Peer]) -> Seen:
    async def ours(number: int) -> Round:
        server = server_of(options)
        try:
            await server.started()
            subject = subject_of(server)
            return await one_round(subject, load, await shape_of(subject, load), number)
        finally:
            server.__exit__()

    async def limits() -> Limits:
        before = busy_s()
        await asyncio.sleep(NEIGHBOURS_S)  # all peers are at rest, and so are we
        others = (busy_s() - before) / NEIGHBOURS_S
        if others > NEIGHBOURS_CORES_MAX:
            say(options, f"others have {others:.2f} cores: what is measured now does not count")
        return await measured_apart(model, options.threads)

    return await take_turns(
        ours,
        found,
        load,
        repeat=options.repeat,
        limits=limits,
        say=lambda sentence: say(options, sentence),
    )


def _conclude(
    options: argparse.Namespace, load: Load, machine: Machine, seen: Seen, absent: Sequence[str]
) -> int:
    outcome, faults = compared(seen, load), faults_of(seen)
    if options.json:
        print_json(
            machine=machine,
            numerics=options.numerics,
            versions=seen.versions,
            absent=absent,
            rates=seen.rates,
            size=seen.size,
            compared=outcome,
            rounds=seen.rounds,
            faults=faults,
        )
        return 1 if faults else 0
    print(f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M} UTC; {machine.sentence()}")
    print(*lines(outcome, seen, load, machine.flags, options.numerics), sep="\n")
    for number, each in enumerate(seen.rounds[OURS]):
        assert each.verdict is not None
        print(f"round {number + 1}: {each.verdict.sentence()}")
    for fault in faults:
        print(f"FAULT: {fault}")
    return 1 if faults else 0


def lines(
    outcome: Compared, seen: Seen, load: Load, flags: Sequence[str], numerics: str
) -> list[str]:
    """The comparison for people."""
    amx = "yes" if "amx_bf16" in flags else "no"
    bf16 = "yes" if "avx512_bf16" in flags else "no"
    found = [f"{OURS}: numerics {numerics}, whole line; AMX {amx}, avx512_bf16 {bf16}"]
    found += [f"{name}: {words}" for name, words in seen.versions.items()]
    found.append(f"{load.input_tokens} tokens in, {load.output_tokens} out, greedy; medians")
    names = [name for _ in load.concurrencies for name in outcome.rows]
    rows = [each[at] for at in range(len(load.concurrencies)) for each in outcome.rows.values()]
    found += table(rows, names)
    found += ["", seen.rates.sentence(), *_limits(outcome.against)]
    if load.long_tokens is not None:
        each = ", ".join(f"{name} {_ms(ms)}" for name, ms in outcome.long_ttft_ms.items())
        found.append(
            f"first token of one {load.long_tokens}-token prompt, ms: {each}; "
            f"best peer / ours {_ratio(outcome.long_ratio)}; limit {_ms(outcome.long_limit_ms)}"
        )
    return found


def _limits(against: Sequence[Against]) -> list[str]:
    head = ["at", "ours tok/s", "best peer", "its tok/s", "ours / peer"]
    head += ["limit bf16", "ours / it", "limit file", "ours / it"]
    cells = [
        [
            str(each.concurrency),
            f"{each.ours_per_s:.1f}",
            each.best_peer or "-",
            "-" if each.best_per_s is None else f"{each.best_per_s:.1f}",
            _ratio(each.ratio),
            f"{each.bf16_limit_per_s:.0f}",
            f"{each.ours_per_s / each.bf16_limit_per_s:.2f}",
            f"{each.file_limit_per_s:.0f}",
            f"{each.ours_per_s / each.file_limit_per_s:.2f}",
        ]
        for each in against
    ]
    return columns([head, *cells])


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _last_words(log: Path, count: int = 12) -> str:
    if not log.exists():
        return f"no log {log.name}"
    words = log.read_text("utf-8", "replace").splitlines()[-count:]
    return "\n".join([f"the last of {log.name}:", *(f"  {line[:200]}" for line in words)])


def add_parser(commands: Any, parents: Sequence[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "peers", parents=parents, help="us and our peers in turn, A B C A B C"
    )
    parser.add_argument("--long-input", type=int, default=1024, help="0: no long prompt")
    parser.add_argument("--llama-server", type=Path, help="llama.cpp's binary")
    parser.add_argument("--llama-argument", action="append", default=[], help="one more, as it is")
    parser.add_argument("--openvino-venv", type=Path, help="an environment with openvino-genai")
    parser.add_argument("--vllm-venv", type=Path, help="vLLM's own environment")
    parser.add_argument("--vllm-model", type=Path, help="a Hugging Face directory in bf16")
    parser.add_argument("--vllm-threads-bind", default="auto", help="VLLM_CPU_OMP_THREADS_BIND")
    parser.add_argument("--vllm-kv-gib", type=int, default=4)
    parser.add_argument("--vllm-preload", action="append", default=[], help="LD_PRELOAD, each once")
    parser.add_argument(
        "--peer-url", action="append", default=[], help="NAME=http://127.0.0.1:PORT/v1[,MODEL]"
    )
    parser.set_defaults(run=peers)
