"""`python -m tests.bench revocation`: two gateways on one PostgreSQL, with a Redis in common and without.

Ends by itself within a minute.  Exit status 1 where one was in force later than deploy/README.md promises.
"""

from __future__ import annotations

import argparse

import uvloop

from tests.bench.machine import this_machine
from tests.bench.options import print_json, say
from tests.bench.pair import pair
from tests.bench.revocation import Row, measure
from tests.bench.server import REPOSITORY
from tests.bench.show import columns

WITH, WITHOUT = "with Redis", "without"
BARS_S = {WITH: 1.0, WITHOUT: 5.0}
PHASES_S = {WITH: 0.25, WITHOUT: 1.0}
STEP_MS, STEPS = 50, 400
"""Of a stream that goes on for longer than any bound."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "revocation", help="how long what one gateway revoked still passes at another"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=6, help="of each kind, each way")
    parser.set_defaults(run=revocation)


def revocation(options: argparse.Namespace) -> int:
    machine = this_machine(REPOSITORY)
    say(options, machine.sentence())
    found: dict[str, list[Row]] = {}
    for way in (WITH, WITHOUT):
        with pair(redis=way == WITH, steps=STEPS, step_ms=STEP_MS) as both:
            found[way] = uvloop.run(
                measure(
                    both,
                    rounds=options.rounds,
                    seed=options.seed,
                    at_once=way == WITHOUT,
                    phase_s=PHASES_S[way],
                )
            )
    missed = judged(found)
    if options.json:
        print_json(machine=machine, found=found, missed=missed)
        return 1 if missed else 0
    print(*columns(table(found)), sep="\n")
    print(
        "seconds from the acknowledgement at one gateway to the refusal, and a stream's end, at another"
    )
    for fault in missed:
        print(f"MISSED: {fault}")
    return 1 if missed else 0


def table(found: dict[str, list[Row]]) -> list[tuple[str, ...]]:
    head = ("PostgreSQL", "revoked", "n", "refused p50", "max", "stream's end p50", "max")
    return [
        head,
        *(
            (way, each.what, str(each.count), *(f"{s:.2f}" for s in _times(each)))
            for way, rows in found.items()
            for each in rows
        ),
    ]


def _times(each: Row) -> tuple[float, ...]:
    return each.refused_p50_s, each.refused_max_s, each.ended_p50_s, each.ended_max_s


def judged(found: dict[str, list[Row]]) -> list[str]:
    """What is not as it is promised."""
    said = []
    for way, rows in found.items():
        for each in rows:
            if each.worst_s > BARS_S[way]:
                said.append(
                    f"{way}: a revoked {each.what} passed for {each.worst_s:.2f} s, not {BARS_S[way]:g}"
                )
            if each.untold:
                said.append(
                    f"{way}: {each.untold} streams of a revoked {each.what} ended without its event"
                )
    return said
