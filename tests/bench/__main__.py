"""`python -m tests.bench serve | peers | engine | fairness | front | gateway | isolation | money | revocation | validate | soak | streams | budget | crash`: see README.md beside this file.

Loopback only, bounded in requests and time, ends by itself.  Exit status 1 where something that was
checked does not hold (an error, a ledger that disagrees, a scenario's fault), 2 where nothing could
be measured.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence

import uvloop

from tests.bench import (
    engine_command,
    fairness_command,
    front_command,
    gateway_command,
    isolation_command,
    money_command,
    peers_command,
    revocation_command,
    scenarios,
    soak_command,
    validate_command,
)
from tests.bench.admin import Admin
from tests.bench.machine import this_machine
from tests.bench.options import (
    common,
    load_of,
    load_options,
    print_json,
    say,
    server_of,
    subject_of,
)
from tests.bench.peers import faults_of_rounds
from tests.bench.runs import Load, Round, Subject, one_round, shape_of, summary
from tests.bench.server import REPOSITORY
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
    load = load_of(options)
    machine = this_machine(REPOSITORY)
    say(options, machine.sentence())
    if options.url is not None:
        admin = Admin(options.admin_url, options.admin_token) if options.admin_url else None
        subject = Subject("server", options.url, options.model_name, options.token, admin)
        rounds = uvloop.run(_rounds(subject, load, options.repeat))
        return _conclude(options, rounds, None, machine=machine)
    server = server_of(options)
    with server:
        rounds = uvloop.run(_rounds(subject_of(server), load, options.repeat))
        return _conclude(options, rounds, server.ready_s, machine=machine)


async def _rounds(subject: Subject, load: Load, repeat: int) -> list[Round]:
    shape = await shape_of(subject, load)
    return [await one_round(subject, load, shape, number) for number in range(repeat)]


def _conclude(
    options: argparse.Namespace, rounds: list[Round], ready_s: float | None, *, machine: object
) -> int:
    rows = summary(rounds)
    faults = faults_of_rounds(rounds)
    rss = max((r.gateway_rss_mib for r in rounds if r.gateway_rss_mib is not None), default=None)
    executor_rss = max(
        (r.executor_rss_mib for r in rounds if r.executor_rss_mib is not None), default=None
    )
    if options.json:
        print_json(
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


def streams(options: argparse.Namespace) -> int:
    with server_of(options) as server:
        return _scenario(options, uvloop.run(scenarios.streams(server.site, seed=options.seed)))


def budget(options: argparse.Namespace) -> int:
    with server_of(options) as server:
        return _scenario(options, uvloop.run(scenarios.budget(server.site, seed=options.seed)))


def crash(options: argparse.Namespace) -> int:
    with server_of(options) as server:
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
        print_json(report=seen)
    else:
        print(*report(seen), "", sep="\n")
    return 1 if getattr(seen, "faults", ()) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    commands = parser.add_subparsers(required=True)

    shared, load = common(), load_options()
    one = commands.add_parser("serve", parents=[shared, load], help="measure a Lockgate")
    one.add_argument("--url", help="a running server's http://127.0.0.1:PORT/v1; else we start one")
    one.add_argument("--token", help="for --url")
    one.add_argument("--admin-url", help="for --url: its admin listener, so that figures count")
    one.add_argument("--admin-token", default="", help="an operator's, for --admin-url")
    one.add_argument("--model-name", default="smollm2-135m", help="for --url")
    one.set_defaults(run=serve)

    peers_command.add_parser(commands, [shared, load])
    engine_command.add_parser(commands, [shared])
    fairness_command.add_parser(commands, [shared])
    front_command.add_parser(commands)
    gateway_command.add_parser(commands)
    isolation_command.add_parser(commands, [shared])
    money_command.add_parser(commands)
    revocation_command.add_parser(commands)
    soak_command.add_parser(commands, [shared])
    validate_command.add_parser(commands, [shared])

    for name, run, what in (
        ("streams", streams, "64 streams, 30 %% hang up: nothing is left, billed = generated"),
        ("budget", budget, "200 ask for what 37 can have"),
        ("crash", crash, "kill -9 of executor and gateway in mid-stream"),
    ):
        scenario = commands.add_parser(name, parents=[shared], help=what)
        scenario.set_defaults(run=run)
    return parser


if __name__ == "__main__":
    sys.exit(main())
