"""`python -m tests.bench gateway`: the subjects in turn, A B C A B C, the table and the bars."""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import uvloop

from tests.bench import peer_litellm
from tests.bench.disk import durable_ms
from tests.bench.figures import percentile
from tests.bench.gateway import (
    PEER_TIMES_MIN,
    SYNCS,
    Ask,
    Bar,
    Disk,
    Round,
    Subject,
    bars,
    one_round,
    summary,
)
from tests.bench.gateway_subjects import (
    BARE,
    FLOOR,
    OURS,
    PEER,
    STREAM,
    WHOLE,
    floor,
    litellm,
    ours,
)
from tests.bench.machine import this_machine
from tests.bench.modelless import LEAN
from tests.bench.options import print_json, say
from tests.bench.server import REPOSITORY

Open = Callable[[], AbstractAsyncContextManager[Subject]]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "gateway", help="what the gateway costs, with no model behind it; LiteLLM's proxy beside it"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="keep the servers' state and logs")
    parser.add_argument("--rates", default="20,100", help="arrivals a second, comma separated")
    parser.add_argument("--concurrency", default="8,32,64", help="at once, until no more is served")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each rate")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--subjects", default=f"{OURS},{BARE},{PEER},{FLOOR}")
    parser.add_argument("--without", default=",".join(LEAN), help="what the bare one lacks")
    parser.add_argument("--stream", action="store_true", help="64 tokens, 10 ms between them")
    parser.add_argument("--litellm-venv", type=Path, default=peer_litellm.VENV)
    parser.set_defaults(run=gateway)


def gateway(options: argparse.Namespace) -> int:
    ask = Ask(
        rates_per_s=tuple(float(each) for each in options.rates.split(",")),
        concurrencies=tuple(int(each) for each in options.concurrency.split(",")),
        seconds=options.seconds,
        seed=str(options.seed),
    )
    machine = this_machine(REPOSITORY)
    say(options, machine.sentence())
    folder = Path(tempfile.mkdtemp(prefix="lockgate-bench-"))
    try:
        subjects = subjects_of(options, folder)
        rounds, disk = uvloop.run(_turns(options, subjects, ask, folder))
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
    found = {name: summary(each) for name, each in rounds.items()}
    judged = bars(found[OURS], found.get(PEER), disk) if OURS in found else ()
    faults = faults_of(rounds)
    if options.json:
        print_json(machine=machine, disk=disk, rounds=rounds, bars=judged, faults=faults)
    else:
        print(*lines(found, disk, judged), *(f"FAULT: {each}" for each in faults), sep="\n")
    return 1 if faults or not all(bar.holds for bar in judged) else 0


def subjects_of(options: argparse.Namespace, folder: Path) -> dict[str, Open]:
    """In the order asked for.  A peer that is not installed is left out, and said to be."""
    shape = STREAM if options.stream else WHOLE
    venv: Path = options.litellm_venv
    parts = options.without.split(",")
    known: dict[str, Open] = {
        OURS: partial(ours, shape, keep=options.keep),
        BARE: partial(ours, shape, name=BARE, without=parts, keep=options.keep),
        PEER: partial(litellm, shape, venv, folder),
        FLOOR: partial(floor, shape, folder),
    }
    asked = options.subjects.split(",")
    if strange := set(asked) - known.keys():
        raise ValueError(f"no subject is named {min(strange)!r}; there are {', '.join(known)}")
    if PEER in asked:
        version = peer_litellm.installed(venv)
        if version is None:
            say(options, f"no LiteLLM in {venv}; tests/bench/README.md, 'LiteLLM', installs it")
            asked.remove(PEER)
        elif version != peer_litellm.VERSION:
            say(options, f"LiteLLM is {version}, not the pinned {peer_litellm.VERSION}")
    return {name: known[name] for name in asked}


async def _turns(
    options: argparse.Namespace, subjects: Mapping[str, Open], ask: Ask, folder: Path
) -> tuple[dict[str, list[Round]], Disk]:
    """The disk is asked before each round, while nothing runs."""
    rounds: dict[str, list[Round]] = {name: [] for name in subjects}
    disks = []
    for number in range(options.repeat):
        disks.append(disk_of(folder))
        for name, open_subject in subjects.items():
            async with open_subject() as subject:
                seen = await one_round(subject, ask, number)
            rounds[name].append(seen)
            ledger = "" if seen.verdict is None else f"; {seen.verdict.sentence()}"
            say(options, f"round {number + 1}, {name}: {seen.full.per_s:.0f}/s{ledger}")
    return rounds, _middle(disks)


def disk_of(folder: Path) -> Disk:
    one, line = durable_ms(folder), durable_ms(folder, in_turn=SYNCS)
    quantiles = [percentile(took, q) or 0.0 for took in (one, line) for q in (50, 99)]
    return Disk(*quantiles)


def _middle(disks: Sequence[Disk]) -> Disk:
    def middle(read: Callable[[Disk], float]) -> float:
        return statistics.median(map(read, disks))

    return Disk(
        middle(lambda each: each.one_p50),
        middle(lambda each: each.one_p99),
        middle(lambda each: each.line_p50),
        middle(lambda each: each.line_p99),
    )


def faults_of(rounds: Mapping[str, Sequence[Round]]) -> list[str]:
    found = []
    for name, each in rounds.items():
        for number, seen in enumerate(each):
            where = f"{name}, round {number + 1}"
            found += [f"{where}: {error}" for error in seen.errors]
            if seen.verdict is not None and not seen.verdict.holds:
                found.append(f"{where}: {seen.verdict.sentence()}")
    return found


def lines(found: Mapping[str, Round], disk: Disk, judged: Sequence[Bar]) -> list[str]:
    rates = sorted({rate.per_s for each in found.values() for rate in each.rates})
    heads = [f"added at {rate:g}/s: p50 / p99 ms (CPU ms, generator late p99)" for rate in rates]
    table = [
        "| | most/s | CPU ms a request | requests a CPU-second | " + " | ".join(heads) + " |",
        "|" + "---|" * (4 + len(rates)),
    ]
    for name, seen in found.items():
        by_rate = {rate.per_s: rate for rate in seen.rates}
        cells = []
        for each in rates:
            rate = by_rate.get(each)
            cells.append(
                "saturated"
                if rate is None
                else f"{rate.p50_ms:.1f} / {rate.p99_ms:.1f} ({rate.cpu_ms:.1f}, {rate.late_p99_ms:.1f})"
            )
        cpu = "| |" if name == FLOOR else f"| {seen.full.cpu_ms:.2f} | {seen.full.per_cpu_s:.0f}"
        table.append(f"| {name} | {seen.full.per_s:.0f} {cpu} | " + " | ".join(cells) + " |")
    table.append(
        f"one durable write: {disk.one_p50:.2f} / {disk.one_p99:.2f} ms; the {SYNCS} of a request in "
        f"turn: {disk.line_p50:.2f} / {disk.line_p99:.2f} ms"
    )
    for bar in judged:
        bound = f"at most {bar.most:g}" if bar.most is not None else f"at least {bar.least:g}"
        table.append(
            f"{bar.name}: {bar.value:.2f} ({bound}): {'holds' if bar.holds else 'DOES NOT HOLD'}"
        )
    if judged and PEER not in found:
        table.append(f"no peer was measured: {PEER_TIMES_MIN:g} times its requests is not judged")
    return table
