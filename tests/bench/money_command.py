"""`python -m tests.bench money`: SQLite, PostgreSQL and Redis in turn, A B C A B C, the table and the bars."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

import uvloop

from tenants.book import Book
from tenants.journal import Journal
from tenants.store import Store
from tenants.tempo import MemoryTempo, Tempo
from tenants.tempo.link import Link
from tenants.tempo.redis import RedisTempo
from tenants.tempo.shared import SharedTempo
from tests.bench.disk import durable_ms
from tests.bench.figures import percentile
from tests.bench.machine import this_machine
from tests.bench.money import PRICE, Round, Shape, middle, one_round
from tests.bench.options import print_json, say
from tests.bench.server import REPOSITORY
from tests.servers_postgres import database
from tests.servers_valkey import valkey

SQLITE, POSTGRES, REDIS = "SQLite", "PostgreSQL", "PostgreSQL, Redis"
LEAST_PER_S = {SQLITE: 2_000, POSTGRES: 3_000}
P50_MS_MAX = 8.0

Opened = tuple[Book, Tempo]
Open = Callable[[], AbstractAsyncContextManager[Opened]]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "money", help="admissions a second, and what one costs: SQLite, PostgreSQL, Redis"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--admissions", type=int, default=6_000)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--rate", type=float, default=100.0, help="of the open loop, a second")
    parser.add_argument("--seconds", type=float, default=8.0, help="of the open loop")
    parser.add_argument("--repeat", type=int, default=3)
    parser.set_defaults(run=money)


def money(options: argparse.Namespace) -> int:
    shape = Shape(
        admissions=options.admissions,
        in_flight=options.in_flight,
        per_s=options.rate,
        seconds=options.seconds,
        seed=options.seed,
    )
    machine = this_machine(REPOSITORY)
    say(options, machine.sentence())
    with tempfile.TemporaryDirectory(prefix="lockgate-bench-") as where, database() as url:
        folder = Path(where)
        disk_ms = percentile(durable_ms(folder), 50)
        subjects: dict[str, Open] = {
            SQLITE: partial(opened, f"sqlite:///{folder}/book.db", folder),
            POSTGRES: partial(opened, url, folder),
            REDIS: partial(with_redis, url, folder),
        }
        rounds = uvloop.run(_turns(options, subjects, shape))
    found = {name: middle(each) for name, each in rounds.items()}
    faults = [f"{name}: {fault}" for name, each in found.items() for fault in each.faults]
    missed = [line for line, holds in bars(found) if not holds]
    if options.json:
        print_json(machine=machine, disk_ms=disk_ms, rounds=rounds, faults=faults, missed=missed)
    else:
        print(*lines(found, disk_ms), *(f"FAULT: {each}" for each in faults), sep="\n")
    return 1 if faults or missed else 0


async def _turns(
    options: argparse.Namespace, subjects: Mapping[str, Open], shape: Shape
) -> dict[str, list[Round]]:
    rounds: dict[str, list[Round]] = {name: [] for name in subjects}
    for number in range(options.repeat):
        for at, (name, subject) in enumerate(subjects.items()):
            async with subject() as (book, tempo):
                await book.publish_prices([PRICE])
                rounds[name].append(await one_round(book, tempo, shape, number * 10 + at))
            say(options, f"round {number + 1}, {name}: {rounds[name][-1].per_s:.0f}/s")
    return rounds


@asynccontextmanager
async def opened(url: str, folder: Path) -> AsyncIterator[Opened]:
    store = await asyncio.to_thread(Store.open, url)
    try:
        journal = Journal(folder / "unbooked.jsonl")
        clock_ms = lambda: time.time_ns() // 1_000_000  # noqa: E731
        book = Book(store, owner="bench", clock_ms=clock_ms, journal=journal)
        yield book, MemoryTempo(lambda: time.monotonic_ns() // 1_000_000)
    finally:
        await asyncio.to_thread(store.close)


@asynccontextmanager
async def with_redis(url: str, folder: Path) -> AsyncIterator[Opened]:
    with valkey() as server:
        async with opened(url, folder) as (book, _):
            link = Link(server.url)
            tempo = SharedTempo(
                RedisTempo(link, lambda text: text),
                clock_ms=lambda: time.monotonic_ns() // 1_000_000,
                processes=1,
                told=lambda _: None,
            )
            try:
                await tempo.begin()
                yield book, tempo
            finally:
                await link.aclose()


def bars(found: Mapping[str, Round]) -> list[tuple[str, bool]]:
    judged = []
    for name, seen in found.items():
        if (least := LEAST_PER_S.get(name)) is not None:
            said = f"{name}: {seen.per_s:.0f} admissions a second (at least {least})"
            judged.append((said, seen.per_s >= least))
        said = f"{name}: p50 {seen.p50_ms:.1f} ms at the rate (at most {P50_MS_MAX:g})"
        judged.append((said, seen.p50_ms <= P50_MS_MAX))
    return judged


def lines(found: Mapping[str, Round], disk_ms: float | None) -> Sequence[str]:
    table = [
        "| | admissions/s | CPU ms each | p50 / p99 ms in flight | with settlement/s | p50 / p99 ms at the rate |",
        "|---|---|---|---|---|---|",
    ]
    table += [
        f"| {name} | {each.per_s:.0f} | {each.cpu_ms:.2f} | {each.full_p50_ms:.1f} / "
        f"{each.full_p99_ms:.1f} | {each.whole_per_s:.0f} | {each.p50_ms:.1f} / {each.p99_ms:.1f} |"
        for name, each in found.items()
    ]
    table.append(f"one durable write: {disk_ms:.2f} ms")
    table += [f"{said}: {'holds' if holds else 'DOES NOT HOLD'}" for said, holds in bars(found)]
    return table
