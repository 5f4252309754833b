"""`python -m tests.bench serve | peers | streams | budget | crash`: see README.md beside this file.

Loopback only, bounded in requests and time, ends by itself.  Exit status 1 where something that was
checked does not hold (an error, a ledger that disagrees, a scenario's fault), 2 where nothing could
be measured.
"""

from __future__ import annotations

import argparse
import datetime as dt
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import uvloop

from tests.bench import peer_vllm, scenarios
from tests.bench.admin import Admin
from tests.bench.figures import Row
from tests.bench.machine import this_machine
from tests.bench.runs import Load, Round, Subject, one_round, shape_of, summary
from tests.bench.server import REPOSITORY, Server
from tests.bench.show import report, table

GATEWAY_RSS_MIB_MAX = 200.0
READY_S_MAX = 15.0


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    # A bench that is told to end (a time limit, say) takes the servers it started with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return int(options.run(options))
    except (RuntimeError, ValueError, FileNotFoundError, TimeoutError) as error:
        print(f"tests.bench: {error or type(error).__name__}", file=sys.stderr)
        return 2


def serve(options: argparse.Namespace) -> int:
    load = _load(options)
    machine = this_machine(REPOSITORY)
    _say(options, machine.sentence())
    if options.url is not None:
        admin = Admin(options.admin_url, options.admin_token) if options.admin_url else None
        subject = Subject("server", options.url, options.model_name, options.token, admin)
        rounds = uvloop.run(_rounds(subject, load, options.repeat))
        return _conclude(options, rounds, None, machine=machine)
    server = _server(options)
    with server:
        rounds = uvloop.run(_rounds(_subject(server), load, options.repeat))
        return _conclude(options, rounds, server.ready_s, machine=machine)


async def _rounds(subject: Subject, load: Load, repeat: int) -> list[Round]:
    shape = await shape_of(subject, load)
    return [await one_round(subject, load, shape, number) for number in range(repeat)]


def _conclude(
    options: argparse.Namespace, rounds: list[Round], ready_s: float | None, *, machine: object
) -> int:
    rows = summary(rounds)
    faults = _faults(rounds)
    rss = max((r.gateway_rss_mib for r in rounds if r.gateway_rss_mib is not None), default=None)
    executor_rss = max(
        (r.executor_rss_mib for r in rounds if r.executor_rss_mib is not None), default=None
    )
    if options.json:
        _print_json(
            machine=machine,
            rows=rows,
            rounds=rounds,
            ready_s=ready_s,
            gateway_rss_mib=rss,
            executor_rss_mib=executor_rss,
            faults=faults,
        )
        return 1 if faults else 0
    print(*table(rows), sep="\n")
    print(f"medians of {len(rounds)} rounds; {options.input} tokens in, {options.output} out")
    if ready_s is not None:
        print(f"ready {ready_s:.1f} s after the command (bar: {READY_S_MAX:g})")
    if rss is not None and executor_rss is not None:
        print(f"gateway {rss:.0f} MiB (bar: {GATEWAY_RSS_MIB_MAX:g}), executor {executor_rss:.0f}")
    for number, each in enumerate(rounds):
        if each.verdict is not None:
            print(f"round {number + 1}: {each.verdict.sentence()}")
        else:
            print(f"round {number + 1}: no ledger asked, so these figures do not count")
    for fault in faults:
        print(f"FAULT: {fault}")
    return 1 if faults else 0


def _faults(rounds: Sequence[Round]) -> list[str]:
    faults = [f"round {n + 1}: {error}" for n, r in enumerate(rounds) for error in r.errors[:3]]
    faults += [
        f"round {n + 1}: {fault}"
        for n, r in enumerate(rounds)
        if r.verdict is not None
        for fault in r.verdict.faults
    ]
    return faults


def peers(options: argparse.Namespace) -> int:
    load = _load(options)
    machine = this_machine(REPOSITORY)
    settings = peer_vllm.Settings(
        venv=options.venv,
        model_dir=options.model,
        threads_bind=options.threads_bind,
        kv_gib=options.kv_gib,
        preload=tuple(options.preload),
    )
    with tempfile.TemporaryDirectory(prefix="lockgate-peer-") as folder:
        peer = peer_vllm.VllmServer.prepare(settings, Path(folder) / "vllm.log")
        with peer:
            ours, theirs = uvloop.run(_alternate(options, load, peer))
            versions = peer.version()
    return _compare(options, ours, theirs, versions, machine=machine)


async def _alternate(
    options: argparse.Namespace, load: Load, peer: peer_vllm.VllmServer
) -> tuple[list[Round], list[Round]]:
    """A B A B: ours is started anew each time, the peer (slow to start) is paused meanwhile.  Both
    get the same prompts in the same round."""
    ready_s = await peer.started()
    _say(options, f"peer ready after {ready_s:.1f} s")
    peer.pause()
    ours: list[Round] = []
    theirs: list[Round] = []
    other = Subject("vllm", peer.base_url, peer_vllm.MODEL)
    for number in range(options.repeat):
        server = _server(options)
        try:
            await server.started()
            ours += [await _one(_subject(server), load, number)]
        finally:
            server.__exit__()
        peer.resume()
        theirs.append(await _one(other, load, number))
        peer.pause()
        _say(options, f"round {number + 1} of {options.repeat} done")
    return ours, theirs


async def _one(subject: Subject, load: Load, number: int) -> Round:
    return await one_round(subject, load, await shape_of(subject, load), number)


def _compare(
    options: argparse.Namespace,
    ours: list[Round],
    theirs: list[Round],
    versions: str,
    *,
    machine: object,
) -> int:
    a, b = summary(ours), summary(theirs)
    faults = _faults(ours) + [f"peer, {fault}" for fault in _faults(theirs)]
    ratios = {row.concurrency: _ratio(row, other) for row, other in zip(a, b, strict=True)}
    if options.json:
        _print_json(
            machine=machine, ours=a, peer=b, peer_versions=versions, ratios=ratios, faults=faults
        )
        return 1 if faults else 0
    print(this_machine(REPOSITORY).sentence())
    print(f"{versions}; {dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M} UTC")
    rows = [row for pair in zip(a, b, strict=True) for row in pair]
    print(*table(rows, ["lockgate", "vllm"] * len(a)), sep="\n")
    for concurrency, ratio in ratios.items():
        shown = "-" if ratio is None else f"{ratio:.2f}"
        print(f"output tokens/s at {concurrency}: {shown} x the peer's")
    for number, each in enumerate(ours):
        assert each.verdict is not None
        print(f"round {number + 1}: {each.verdict.sentence()}")
    for fault in faults:
        print(f"FAULT: {fault}")
    return 1 if faults else 0


def _ratio(ours: Row, theirs: Row) -> float | None:
    return ours.output_per_s / theirs.output_per_s if theirs.output_per_s else None


def streams(options: argparse.Namespace) -> int:
    with _server(options) as server:
        return _scenario(options, uvloop.run(scenarios.streams(server.site, seed=options.seed)))


def budget(options: argparse.Namespace) -> int:
    with _server(options) as server:
        return _scenario(options, uvloop.run(scenarios.budget(server.site, seed=options.seed)))


def crash(options: argparse.Namespace) -> int:
    with _server(options) as server:
        executor = uvloop.run(scenarios.crash_executor(server.site, seed=options.seed))
        worst = _scenario(options, executor)
        gateway = uvloop.run(
            scenarios.crash_gateway(
                server.site, kill=server.kill, restart=server.started, seed=options.seed
            )
        )
        return max(worst, _scenario(options, gateway))


def _scenario(options: argparse.Namespace, seen: object) -> int:
    if options.json:
        _print_json(report=seen)
    else:
        print(*report(seen), "", sep="\n")
    return 1 if getattr(seen, "faults", ()) else 0


def _server(options: argparse.Namespace) -> Server:
    server = Server.prepare(
        model_path=options.model_path, numerics=options.numerics, threads=options.threads
    )
    server.keep = options.keep
    if options.keep:
        _say(options, f"state and log stay in {server.folder}")
    return server


def _subject(server: Server) -> Subject:
    site = server.site
    return Subject("lockgate", site.base_url, site.model, site.tokens[scenarios.USER], site.admin)


def _load(options: argparse.Namespace) -> Load:
    return Load(
        concurrencies=tuple(int(each) for each in options.concurrency.split(",")),
        input_tokens=options.input,
        output_tokens=options.output,
        requests_per_stream=options.requests_per_stream,
        seed=str(options.seed),
    )


def _say(options: argparse.Namespace, sentence: str) -> None:
    if not options.json:
        print(sentence, flush=True)


def _print_json(**document: object) -> None:
    print(msgspec.json.format(msgspec.json.encode(document), indent=1).decode())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    commands = parser.add_subparsers(required=True)

    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="print one JSON document instead")
    common.add_argument("--seed", type=int, default=1)
    common.add_argument("--keep", action="store_true", help="keep the server's state and log")
    common.add_argument("--model-path", help="serve this GGUF file or directory, not the default")
    common.add_argument("--numerics", default="fast", choices=["fast", "invariant"])
    common.add_argument("--threads", type=int, help="CPU threads of our executor")

    load = argparse.ArgumentParser(add_help=False)
    load.add_argument("--concurrency", default="1,8,32", help="streams at once, comma separated")
    load.add_argument("--input", type=int, default=128, help="prompt tokens")
    load.add_argument("--output", type=int, default=64, help="output tokens")
    load.add_argument("--requests-per-stream", type=int, default=4)
    load.add_argument(
        "--repeat", type=int, default=3, help="rounds; the median of each figure counts"
    )

    one = commands.add_parser("serve", parents=[common, load], help="measure a Lockgate")
    one.add_argument("--url", help="a running server's http://127.0.0.1:PORT/v1; else we start one")
    one.add_argument("--token", help="for --url")
    one.add_argument("--admin-url", help="for --url: its admin listener, so that figures count")
    one.add_argument("--admin-token", default="", help="an operator's, for --admin-url")
    one.add_argument("--model-name", default="smollm2-135m", help="for --url")
    one.set_defaults(run=serve)

    two = commands.add_parser(
        "peers", parents=[common, load], help="measure beside a peer, A B A B"
    )
    two.add_argument("--peer", choices=["vllm"], default="vllm")
    two.add_argument("--venv", type=Path, required=True, help="the peer's own environment")
    two.add_argument("--model", type=Path, required=True, help="a Hugging Face directory, bf16")
    two.add_argument("--threads-bind", default="auto", help="VLLM_CPU_OMP_THREADS_BIND")
    two.add_argument("--kv-gib", type=int, default=4)
    two.add_argument("--preload", action="append", default=[], help="LD_PRELOAD, once a library")
    two.set_defaults(run=peers)

    for name, run, what in (
        ("streams", streams, "64 streams, 30 %% hang up: nothing is left, billed = generated"),
        ("budget", budget, "200 ask for what 37 can have"),
        ("crash", crash, "kill -9 of executor and gateway in mid-stream"),
    ):
        scenario = commands.add_parser(name, parents=[common], help=what)
        scenario.set_defaults(run=run)
    return parser


if __name__ == "__main__":
    sys.exit(main())
