"""Several gateway processes on one PostgreSQL: one cap, one sweep, one clock.

Source: MONEY.md §1 (invariants 1, 4, 12), §5 cases 1, 18, 41.  The processes are real: each is this
module, started with a database and a part of the work.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, func, select, text

from policies.facts import Limits, Meters
from policies.verdict import Allow, Deny
from tenants import schema
from tenants.book import Book
from tenants.journal import Journal
from tenants.scopes import ScopeLimits
from tenants.store import Store
from tenants.tempo import TempoAsk
from tenants.tempo.link import Failed, Link
from tenants.tempo.redis import RedisTempo
from tests.servers_postgres import database, needs_postgres
from tests.servers_valkey import valkey
from tests.tenants.house import DIMS, ask, run, tenant_budget, user_budget

pytestmark = [pytest.mark.slow, needs_postgres]

ROOT = Path(__file__).resolve().parents[2]
WHOLE = 50_000


def gateway(url: str, folder: str, name: str) -> Book:
    store = Store.open(url)
    journal = Journal(Path(folder) / f"{name}.jsonl")
    return Book(
        store, owner=name, clock_ms=lambda: 0, journal=journal
    )  # its own clock says nothing


async def admits(
    url: str, folder: str, name: str, count: int, fits: int, redis_url: str | None = None
) -> int:
    """Ask for `count` holds at once, each seated in Redis first where there is one."""
    book = gateway(url, folder, name)
    budgets = (user_budget(10**15), tenant_budget(fits * WHOLE))
    link = None if redis_url is None else Link(redis_url)
    tempo = None if link is None else RedisTempo(link, lambda text: text)
    seats = (ScopeLimits("tenant", "acme", Limits(rpm=10**6, concurrent=10**6)),)

    async def one(request_id: str) -> bool:
        if tempo is not None:
            with contextlib.suppress(Failed):  # nothing financial depends on it
                await tempo.admit(TempoAsk(request_id, "acme", seats, 100, 50))
        return isinstance(await book.hold(ask(request_id, *budgets)), Allow)

    granted = await asyncio.gather(*(one(f"{name}-{at}") for at in range(count)))
    await asyncio.to_thread(book._store.close)
    if link is not None:
        await link.aclose()
    return sum(granted)


def processes(
    url: str,
    names: tuple[str, ...],
    *more: object,
    meanwhile: Callable[[], object] = lambda: None,
    module: str = __name__,
) -> list[Any]:
    """What each of them prints: of `module`, a part of the work by its name."""
    with tempfile.TemporaryDirectory() as where:
        started = [
            subprocess.Popen(
                [sys.executable, "-m", module, url, where, name, *map(str, more)],
                cwd=ROOT,
                stdout=subprocess.PIPE,
            )
            for name in names
        ]
        while any(each.poll() is None for each in started):
            meanwhile()
            time.sleep(0.05)
        return [json.loads(each.communicate(timeout=120)[0]) for each in started]


async def totals(url: str) -> tuple[int, int]:
    """Held by the window of the tenant, and by the reservations."""
    store = await asyncio.to_thread(Store.open, url)
    table, window = schema.reservation, schema.budget_window

    def op(conn: Connection) -> tuple[int, int]:
        held = select(window.c.held).where(window.c.scope == "tenant")
        rows = select(func.coalesce(func.sum(table.c.amount), 0)).where(table.c.state == "HELD")
        return int(conn.execute(held).scalar_one()), int(conn.execute(rows).scalar_one())

    found = await store.read(op)
    await asyncio.to_thread(store.close)
    return found


@pytest.mark.parametrize("names", (("a", "b"), ("a", "b", "c", "d")), ids=("two", "four"))
def test_two_thousand_at_once_against_a_cap_that_fits_a_hundred(names: tuple[str, ...]) -> None:
    with database() as url:
        granted = processes(url, names, 2000 // len(names), 100)
        assert sum(granted) == 100
        assert asyncio.run(totals(url)) == (100 * WHOLE, 100 * WHOLE)


def test_a_redis_that_is_wiped_in_the_middle_lets_nobody_overspend() -> None:
    """MONEY.md §5, case 5: budgets are SQL's business alone."""
    wiped = 0

    with database() as url, valkey() as redis:

        def wipe() -> None:
            nonlocal wiped
            redis.say("FLUSHALL")
            wiped += 1

        granted = processes(url, ("a", "b"), 1000, 100, redis.url, meanwhile=wipe)
        assert sum(granted) == 100
        assert wiped > 2
        assert asyncio.run(totals(url)) == (100 * WHOLE, 100 * WHOLE)


def test_two_that_sweep_at_once_expire_each_hold_once() -> None:
    async def test() -> None:
        with database() as url, tempfile.TemporaryDirectory() as where:
            books = [await asyncio.to_thread(gateway, url, where, name) for name in "ab"]
            budget = tenant_budget(10**12)
            for at in range(60):
                await books[0].hold(replace(ask(f"r{at}", budget), lease_s=0))
            swept = await asyncio.gather(*(book.sweep() for book in books * 4))
            expired = [each for found in swept for each in found.expired]
            assert sorted(expired) == sorted(f"r{at}" for at in range(60))
            (balance,) = await books[1].balances([budget])
            assert (balance.spent_nano_usd, balance.held_nano_usd) == (60 * WHOLE, 0)
            late = await asyncio.gather(
                *(book.settle(f"r{at}", Meters(input=100)) for at in range(60) for book in books)
            )
            assert sum(not each.repeat for each in late) == 60
            (balance,) = await books[0].balances([budget])
            assert (balance.spent_nano_usd, balance.held_nano_usd) == (60 * 20_000, 0)
            for book in books:
                await asyncio.to_thread(book._store.close)

    run(test)


def test_the_databases_clock_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a gateway thinks that the time is."""

    async def test() -> None:
        with database() as url, tempfile.TemporaryDirectory() as where:
            book = await asyncio.to_thread(gateway, url, where, "a")  # its clock stands at 1970
            assert isinstance(await book.hold(ask("r1", tenant_budget(10**9))), Allow)
            at_ms = select(schema.reservation.c.at_ms, schema.reservation.c.lease_until_ms)
            row = await book._store.read(lambda conn: conn.execute(at_ms).one())
            assert abs(row.at_ms - time.time() * 1000) < 60_000
            assert row.lease_until_ms == row.at_ms + 60_000
            (balance,) = await book.balances([tenant_budget(10**9)])
            assert balance.resets_at_s is not None
            assert balance.resets_at_s > time.time()
            assert (await book.sweep()).expired == ()
            await asyncio.to_thread(book._store.close)

    run(test)


def test_two_that_lock_in_opposite_orders_are_both_served() -> None:
    """The database undoes one of them; it is run again."""

    async def test() -> None:
        with database() as url, tempfile.TemporaryDirectory() as where:
            books = [await asyncio.to_thread(gateway, url, where, name) for name in "ab"]
            for request_id in ("x", "y"):
                await books[0].hold(ask(request_id, tenant_budget(10**12)))

            def touch(conn: Connection, first: str, second: str) -> str:
                table = schema.reservation
                for request_id in (first, second):
                    locked = select(table.c.state).where(table.c.request_id == request_id)
                    conn.execute(locked.with_for_update())
                    conn.execute(text("SELECT pg_sleep(0.3)"))
                return first

            done = await asyncio.gather(
                books[0]._store.write(lambda conn: touch(conn, "x", "y")),
                books[1]._store.write(lambda conn: touch(conn, "y", "x")),
            )
            assert list(done) == ["x", "y"]
            for book in books:
                await asyncio.to_thread(book._store.close)

    run(test)


def test_a_tenant_that_waits_for_nobody_is_not_held_up_by_a_refusal() -> None:
    """One cap is spent; another tenant's hold in the same commit goes through."""

    async def test() -> None:
        with database() as url, tempfile.TemporaryDirectory() as where:
            book = await asyncio.to_thread(gateway, url, where, "a")
            dims = replace(DIMS, tenant="globex")
            refused, granted = await asyncio.gather(
                book.hold(ask("r1", tenant_budget(1))), book.hold(ask("r2", dims=dims))
            )
            assert isinstance(refused, Deny)
            assert isinstance(granted, Allow)
            await asyncio.to_thread(book._store.close)

    run(test)


if __name__ == "__main__":
    url, where, name, count, fits, *redis = sys.argv[1:]
    print(asyncio.run(admits(url, where, name, int(count), int(fits), *redis)))
