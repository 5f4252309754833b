"""Budgets that come to a threshold are told of once, in the transaction that brought them there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import delete, select

from policies.facts import Budget, Meters
from policies.verdict import Allow, Deny
from tenants import schema
from tenants.adjustments import AdjustAsk, Kind
from tenants.asks import SettleAsk
from tenants.book import Book, BudgetAccount
from tenants.outbox import CLAIM_MS
from tests.tenants.house import Clock, ask, folder, on_both, opened, run, tenant_budget

pytestmark = pytest.mark.usefixtures("on_both")
__all__ = ["on_both"]

WHOLE = 50_000
HOUR_MS = 3_600_000
FEW = (0.5, 0.8, 1.0)


def watched(limit: int, window: str = "calendar_day", **more: Any) -> BudgetAccount:
    budget = tenant_budget(limit, window)
    return replace(budget, budget=replace(budget.budget, notify_at=FEW, **more))


async def told(book: Book) -> list[tuple[str, int, bool]]:
    table = schema.outbox
    columns = (table.c.window_id, table.c.threshold, table.c.payload)
    query = select(*columns).order_by(table.c.window_id, table.c.threshold)
    rows = await book._store.read(lambda conn: conn.execute(query).all())
    return [
        (row.window_id.rpartition("/")[2], row.threshold // 10_000, row.payload.count("true") > 0)
        for row in rows
    ]


async def spend(book: Book, request_id: str, budget: BudgetAccount, tokens: int) -> None:
    """200 nano-USD each."""
    assert isinstance(await book.hold(ask(request_id, budget, prompt=tokens, out=1)), Allow)
    await book.settle(request_id, Meters(input=tokens))


def test_each_threshold_is_told_once_a_window() -> None:
    async def test() -> None:
        clock = Clock()
        with folder() as where, opened(clock, where / "x.db") as book:
            budget = watched(100_000)
            await spend(book, "r1", budget, 249)
            assert await told(book) == []
            await spend(book, "r2", budget, 1)
            assert await told(book) == [("2026-11-29", 50, False)]
            await spend(book, "r3", budget, 1)
            await book._store.write(
                lambda conn: conn.execute(delete(schema.budget_window)) and None
            )
            await spend(book, "r4", budget, 1)
            assert len(await told(book)) == 1
            await spend(book, "r5", budget, 240)
            assert [part for _, part, _ in await told(book)] == [50, 80]
            clock.ms += 24 * HOUR_MS
            await spend(book, "r6", budget, 450)
            assert [part for day, part, _ in await told(book) if day == "2026-11-30"] == [50, 80]

    run(test)


def test_the_first_refusal_is_the_last_threshold() -> None:
    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            budget = watched(WHOLE - 1)
            for request_id in ("r1", "r2"):
                assert isinstance(await book.hold(ask(request_id, budget)), Deny)
            assert await told(book) == [("2026-11-29", 100, True)]
            (event,) = await book.claim_told()
            assert (event.what.spent_nano_usd, event.what.limit_nano_usd) == (0, WHOLE - 1)
            assert (event.what.refused, event.what.account) == (True, "acme")

    run(test)


def test_a_soft_budget_and_an_expired_hold_are_told_of_too() -> None:
    async def test() -> None:
        clock = Clock()
        with folder() as where, opened(clock, where / "x.db") as book:
            budget = watched(WHOLE, hard=False)
            assert isinstance(await book.hold(ask("r1", budget)), Allow)
            assert await told(book) == []
            clock.ms += 60_000
            await book.sweep()
            assert [part for _, part, _ in await told(book)] == [50, 80, 100]

    run(test)


def test_a_rolling_window_is_told_of_once_a_day() -> None:
    async def test() -> None:
        clock = Clock()
        with folder() as where, opened(clock, where / "x.db") as book:
            budget = watched(100_000, "rolling_24h")
            await spend(book, "r1", budget, 200)
            clock.ms += HOUR_MS
            await spend(book, "r2", budget, 100)
            for hour in range(6):
                clock.ms += HOUR_MS
                await spend(book, f"h{hour}", budget, 1)
            assert [part for _, part, _ in await told(book)] == [50]

    run(test)


def test_what_is_undone_is_not_told() -> None:
    """The row is in the transaction of what it tells of."""

    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            budget = watched(WHOLE)
            assert isinstance(await book.hold(ask("r1", budget)), Allow)

            def undone(conn: Any) -> None:
                book._turn(conn, [SettleAsk("r1", Meters(input=100, output=50))])
                assert conn.execute(select(schema.outbox)).first() is not None
                raise KeyError("undone")

            with pytest.raises(KeyError):
                await book._store.write(undone)
            assert await told(book) == []
            await book.settle("r1", Meters(input=100, output=50))
            assert len(await told(book)) == 3

    run(test)


def test_a_budget_that_has_gone_is_not_told_of_and_room_given_counts() -> None:
    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            day, month = watched(100_000), tenant_budget(10**9, "calendar_month")
            await spend(book, "r1", day, 10)
            await spend(book, "r2", month, 400)
            assert await told(book) == []
            more = AdjustAsk(
                id="a", kind=Kind.TOP_UP, tenant="acme", nano_usd=900_000, actor="o", reason="r",
                budget=day,
            )  # fmt: skip
            await book.adjust(more)
            await spend(book, "r3", day, 400)
            assert await told(book) == []
            assert Budget(1).notify_at == ()

    run(test)


def test_who_claims_a_row_has_it_for_a_while() -> None:
    async def test() -> None:
        clock = Clock()
        with folder() as where, opened(clock, where / "x.db") as book:
            budget = watched(100_000)
            await spend(book, "r1", budget, 420)
            first, second = await book.claim_told()
            assert (first.attempt, await book.claim_told()) == (1, ())
            await book.told(first, outcome="delivered")
            await book.told(second, again_after_ms=5_000)
            clock.ms += 5_000
            (again,) = await book.claim_told()
            assert (again.id, again.attempt, again.what) == (second.id, 2, second.what)
            clock.ms += CLAIM_MS  # whoever had it is no more
            (again,) = await book.claim_told()
            assert again.attempt == 3
            await book.told(again, outcome="given_up")
            clock.ms += 10 * CLAIM_MS
            assert await book.claim_told() == ()

    run(test)
