"""`python -m tests.bench.till`: one hot budget under two gateway processes, by PostgreSQL alone and with a till.

Each process asks for holds in a closed loop, first under a budget that fits all, then under one that is spent.
What it says is admitted and refused a second, by both together.  Figures of a machine that is busy are none.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from policies.facts import Budget
from policies.verdict import Allow
from tenants.book import Book
from tenants.journal import Journal
from tenants.scopes import BudgetAccount, Dimensions
from tenants.store import Store
from tenants.tempo.link import Link
from tenants.till.front import Front
from tenants.till.redis import RedisTills
from tests.bench.server import REPOSITORY
from tests.servers_postgres import database
from tests.servers_valkey import valkey
from tests.tenants.house import DIMS, ask

MODES = ("strict", "till")
ROOMY, SPENT = 8 * 10**15, 1


async def measured(url: str, redis: str, mode: str, name: str, count: int, at_once: int) -> None:
    store = Store.open(url)
    link = Link(redis)
    till = Front(RedisTills(link, lambda text: text), lambda: time.monotonic_ns() // 10**6)
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / "unbooked.jsonl")
        book = Book(store, owner=name, clock_ms=lambda: 0, journal=journal, till=till)
        found = {}
        for kind, limit in (("admitted", ROOMY), ("refused", SPENT)):
            budget = BudgetAccount("tenant", kind, Budget(limit, till=mode == "till"))
            dims = replace(DIMS, tenant=kind)  # the other process may be at the other
            numbers = iter(range(count))

            async def caller(
                budget: BudgetAccount = budget, dims: Dimensions = dims, kind: str = kind
            ) -> int:
                done = 0
                for at in numbers:  # noqa: B023 — one count for all callers of a phase
                    verdict = await book.hold(ask(f"{name}-{kind}-{at}", budget, dims=dims))
                    done += isinstance(verdict, Allow) is (kind == "admitted")
                return done

            begun_s = time.perf_counter()
            right = sum(await asyncio.gather(*(caller() for _ in range(at_once))))
            found[kind] = right / (time.perf_counter() - begun_s)
            assert right == count, f"{right} of {count} were {kind}"
        await till.aclose()
    await link.aclose()
    await asyncio.to_thread(store.close)
    print(json.dumps(found | {"outcomes": dict(till.outcomes)}))


def compared(count: int, at_once: int) -> None:
    for mode in MODES:
        with database() as url, valkey() as redis:
            shape = ["--count", str(count), "--at-once", str(at_once)]
            one = [sys.executable, "-m", "tests.bench.till", *shape, "--one", url, redis.url, mode]
            started = [
                subprocess.Popen([*one, name], cwd=REPOSITORY, stdout=subprocess.PIPE)
                for name in "ab"
            ]
            found = [json.loads(each.communicate(timeout=600)[0]) for each in started]
        both = {kind: sum(each[kind] for each in found) for kind in ("admitted", "refused")}
        print(
            mode, *(f"{kind} {value:,.0f}/s" for kind, value in both.items()), found[0]["outcomes"]
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.bench.till", description=__doc__)
    parser.add_argument("--count", type=int, default=4_000, help="of each process and phase")
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--one", nargs=4, metavar=("URL", "REDIS", "MODE", "NAME"))
    options = parser.parse_args()
    if options.one:
        url, redis, mode, name = options.one
        asyncio.run(measured(url, redis, mode, name, options.count, options.at_once))
    else:
        compared(options.count, options.at_once)
