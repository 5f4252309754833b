"""Top-ups, credits and refunds: each once, each where it belongs, none of them an edit."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import delete, select, update

from policies.facts import Budget, Meters
from policies.price import NANO_USD_MAX
from policies.verdict import Allow, Deny
from tenants import schema
from tenants.adjustments import (
    AdjustAsk,
    AdjustmentRefused,
    IdTaken,
    Kind,
    NothingToRefund,
)
from tenants.book import Book, BudgetAccount
from tests.tenants.house import (
    DIMS,
    NOON_MS,
    Clock,
    ask,
    folder,
    on_both,
    opened,
    project_budget,
    record,
    run,
    tenant_budget,
    user_budget,
)

pytestmark = pytest.mark.usefixtures("on_both")
__all__ = ["on_both"]

WHOLE = 50_000
HOUR_MS = 3_600_000
ALL: dict[str, Any] = {"from_ms": 0, "to_ms": 2**60}


def of(kind: Kind, nano_usd: int, id_: str = "a1", **more: Any) -> AdjustAsk:
    return AdjustAsk(
        id=id_,
        kind=kind,
        nano_usd=nano_usd,
        **{"tenant": "acme", "actor": "idp:op", "reason": "because"} | more,
    )


def top_up(budget: BudgetAccount, nano_usd: int, id_: str = "a1") -> AdjustAsk:
    return of(Kind.TOP_UP, nano_usd, id_, budget=budget)


def refund(request_id: str, nano_usd: int, id_: str = "a1", **more: Any) -> AdjustAsk:
    return of(Kind.REFUND, nano_usd, id_, request_id=request_id, **more)


async def numbers(book: Book, budget: BudgetAccount) -> tuple[int, int, int, int]:
    """Limit, topped up, spent, held; the same when counted anew."""
    (kept,) = await book.balances([budget])
    await book._store.write(lambda conn: conn.execute(delete(schema.budget_window)) and None)
    (anew,) = await book.balances([budget])
    assert kept == anew
    return (
        kept.limit_nano_usd,
        kept.topped_up_nano_usd,
        kept.spent_nano_usd,
        kept.held_nano_usd,
    )


async def used(book: Book, request_id: str = "r1", *budgets: BudgetAccount, **more: Any) -> None:
    """100 prompt tokens and 20 of output: 32,000."""
    assert isinstance(await book.hold(ask(request_id, *budgets, **more)), Allow)
    await book.settle(request_id, Meters(input=100, output=20), record(request_id))


async def ledger(book: Book) -> list[tuple[str, str, str, int]]:
    table = schema.ledger_entry
    columns = (table.c.transfer_id, table.c.debit, table.c.credit, table.c.amount)
    rows = await book._store.read(lambda conn: conn.execute(select(*columns)).all())
    return sorted((row[0], row[1], row[2], row[3]) for row in rows)


def test_a_top_up_is_room_in_this_window_and_in_no_other() -> None:
    async def test() -> None:
        clock = Clock()
        with folder() as where, opened(clock, where / "x.db") as book:
            day = tenant_budget(WHOLE, "calendar_day")
            assert isinstance(await book.hold(ask("r1", day)), Allow)
            assert isinstance(await book.hold(ask("r2", day)), Deny)
            done = await book.adjust(top_up(day, WHOLE))
            assert (done.repeat, done.made.scope, done.made.account) == (False, "tenant", "acme")
            assert isinstance(await book.hold(ask("r3", day)), Allow)
            assert isinstance(await book.hold(ask("r4", day)), Deny)
            assert await numbers(book, day) == (2 * WHOLE, WHOLE, 0, 2 * WHOLE)
            clock.ms += 24 * HOUR_MS
            assert await numbers(book, day) == (WHOLE, 0, 0, 0)
            assert await book.spend(**ALL) == 0
            assert await ledger(book) == [("a1", "granted", "available", WHOLE)]

    run(test)


def test_a_top_up_of_a_rolling_window_counts_like_spending_in_its_hour() -> None:
    async def test() -> None:
        clock = Clock()
        with folder() as where, opened(clock, where / "x.db") as book:
            rolling = project_budget(WHOLE)
            await book.adjust(top_up(rolling, 7))
            clock.ms += 5 * HOUR_MS
            await book.adjust(top_up(rolling, 5, "a2"))
            for hours, topped_up in ((0, 12), (19, 12), (1, 5), (4, 5), (1, 0)):
                clock.ms += hours * HOUR_MS
                assert await numbers(book, rolling) == (WHOLE + topped_up, topped_up, 0, 0)

    run(test)


def test_one_scope_is_topped_up_and_its_parents_still_bind() -> None:
    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            child, parent = user_budget(0), tenant_budget(WHOLE)
            await book.adjust(top_up(child, 10 * WHOLE))
            assert isinstance(await book.hold(ask("r1", child, parent)), Allow)
            refused = await book.hold(ask("r2", child, parent))
            assert isinstance(refused, Deny)
            assert refused.scope == "tenant"
            other = BudgetAccount("user", '["acme","idp","bob"]', Budget(0))
            dims = replace(DIMS, user="bob")
            assert isinstance(await book.hold(ask("r3", other, dims=dims)), Deny)

    run(test)


def test_a_credit_lowers_what_is_owed_and_gives_no_room() -> None:
    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            budget = tenant_budget(WHOLE)
            await used(book, "r1", budget)
            await book.adjust(of(Kind.CREDIT, 40_000))
            assert await numbers(book, budget) == (WHOLE, 0, 32_000, 0)
            assert await book.spend(**ALL) == 32_000 - 40_000
            assert ("a1", "spend", "available", 40_000) in await ledger(book)
            assert isinstance(await book.hold(ask("r2", budget)), Deny)

    run(test)


def test_a_refund_goes_back_to_the_window_of_its_request_and_edits_nothing() -> None:
    async def test() -> None:
        clock = Clock()
        with folder() as where, opened(clock, where / "x.db") as book:
            day, month = tenant_budget(WHOLE, "calendar_day"), project_budget(10**9, "total")
            await used(book, "r1", day, month)
            clock.ms += 24 * HOUR_MS
            await used(book, "r2", day, month)
            await book.adjust(refund("r1", 12_000))
            assert await numbers(book, day) == (WHOLE, 0, 32_000, 0)
            assert await numbers(book, month) == (10**9, 0, 52_000, 0)
            clock.ms -= 24 * HOUR_MS
            assert await numbers(book, day) == (WHOLE, 0, 20_000, 0)
            told = await book.explain("r1")
            assert told is not None
            assert told.charge is not None
            assert (told.charge.total_nano_usd, told.refunded_nano_usd) == (32_000, 12_000)
            assert ("r1/settle", "available", "spend", 32_000) in await ledger(book)
            assert await book.spend(from_ms=0, to_ms=NOON_MS + 1) == 20_000

    run(test)


def test_a_refund_of_a_closed_month_counts_now_and_in_the_window_of_its_request() -> None:
    async def test() -> None:
        clock = Clock()
        with folder() as where, opened(clock, where / "x.db") as book:
            month = tenant_budget(10**9)
            await used(book, "r1", month)
            clock.ms += 40 * 24 * HOUR_MS
            january_ms = 1_798_761_600_000
            gate = update(schema.period_gate).values(closed_until_ms=january_ms)
            await book._store.write(lambda conn: conn.execute(gate) and None)
            await book.adjust(refund("r1", 2_000))
            assert await book.spend(from_ms=0, to_ms=january_ms) == 32_000
            assert await book.spend(from_ms=january_ms, to_ms=2**60) == -2_000
            assert await numbers(book, month) == (10**9, 0, 0, 0)
            clock.ms = NOON_MS
            assert await numbers(book, month) == (10**9, 0, 30_000, 0)

    run(test)


def test_no_more_is_refunded_than_was_charged() -> None:
    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            budget = tenant_budget(10**9)
            await used(book, "r1", budget)
            await book.adjust(refund("r1", 30_000))
            with pytest.raises(AdjustmentRefused, match=r"at most 0\.000002000 can be"):
                await book.adjust(refund("r1", 2_001, "a2"))
            await book.adjust(refund("r1", 2_000, "a2"))
            with pytest.raises(AdjustmentRefused, match=r"at most 0\.000000000 can be"):
                await book.adjust(refund("r1", 1, "a3"))
            assert await numbers(book, budget) == (10**9, 0, 0, 0)
            assert await book.spend(**ALL) == 0
            assert [each.id for each in await book.adjustments(tenant="acme")] == ["a1", "a2"]

    run(test)


def test_what_cannot_be_refunded_says_why() -> None:
    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            await book.hold(ask("open"))
            await book.hold(ask("voided"))
            await book.void("voided")
            await used(book, "theirs", dims=replace(DIMS, tenant="globex"))
            for request_id, kind, why in (
                ("open", AdjustmentRefused, "still running"),
                ("voided", AdjustmentRefused, "at most 0"),
                ("theirs", NothingToRefund, "no request"),
                ("never", NothingToRefund, "no request"),
            ):
                with pytest.raises(kind, match=why):
                    await book.adjust(refund(request_id, 1))
            assert await book.adjustments(tenant=None) == ()
            assert await book.open_holds() == 1

    run(test)


@pytest.mark.parametrize("late", (20, None))
def test_an_estimate_refunded_and_then_corrected_is_never_below_nothing(late: int | None) -> None:
    """50,000 assumed, all of it refunded, and then the usage arrives: what was used is given back, no
    more."""

    async def test() -> None:
        clock = Clock()
        with folder() as where, opened(clock, where / "x.db") as book:
            budget = tenant_budget(10**9)
            await book.hold(ask("r1", budget))
            clock.ms += 60_000
            assert (await book.sweep()).expired == ("r1",)
            await book.adjust(refund("r1", WHOLE))
            assert await numbers(book, budget) == (10**9, 0, 0, 0)
            if late is None:
                await book.void("r1")
            else:
                await book.settle("r1", Meters(input=100, output=late))
            charge = 0 if late is None else 32_000
            assert await numbers(book, budget) == (10**9, 0, 0, 0)
            assert await book.spend(**ALL) == 0
            assert ("r1/refund_returned", "available", "spend", WHOLE - charge) in await ledger(
                book
            )
            with pytest.raises(
                AdjustmentRefused, match=f"charged 0.{charge:09} USD, of which 0.{charge:09}"
            ):
                await book.adjust(refund("r1", 1, "a2"))

    run(test)


def test_the_same_asked_again_is_done_once_and_an_id_is_for_one_thing() -> None:
    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            budget = tenant_budget(WHOLE)
            await used(book, "r1", budget)
            asks = (top_up(budget, 5, "a"), of(Kind.CREDIT, 6, "b"), refund("r1", 7, "c"))
            for each in asks:
                first = await book.adjust(each)
                again = await book.adjust(replace(each, reason="another", actor="idp:else"))
                assert (again.repeat, again.made) == (True, first.made)
                with pytest.raises(IdTaken, match="id of its own"):
                    await book.adjust(replace(each, nano_usd=each.nano_usd + 1))
            with pytest.raises(IdTaken):
                await book.adjust(replace(asks[1], id="a"))
            many = await asyncio.gather(*(book.adjust(of(Kind.CREDIT, 1, "d")) for _ in range(20)))
            assert sorted(each.repeat for each in many) == [False, *[True] * 19]
            assert await numbers(book, budget) == (WHOLE + 5, 5, 32_000 - 7, 0)
            assert await book.spend(**ALL) == 32_000 - 6 - 7 - 1

    run(test)


def test_every_one_is_noted_with_who_and_why() -> None:
    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            await used(book)
            await book.adjust(top_up(tenant_budget(1), 5, "a"))
            await book.adjust(of(Kind.CREDIT, 6, "b"))
            await book.adjust(refund("r1", 7, "c"))
            table = schema.change
            columns = (table.c.kind, table.c.subject, table.c.actor, table.c.reason, table.c.tenant)
            query = select(*columns).order_by(table.c.id)
            rows = await book._store.read(lambda conn: conn.execute(query).all())
            who = ("idp:op", "because", "acme")
            assert [tuple(row) for row in rows] == [
                ("budget_topped_up", "tenant:acme", *who),
                ("credited", "acme", *who),
                ("refunded", "r1", *who),
            ]

    run(test)


def test_all_of_a_kind_stay_countable() -> None:
    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            await book.adjust(of(Kind.CREDIT, NANO_USD_MAX - 2))
            with pytest.raises(AdjustmentRefused, match="cannot be counted"):
                await book.adjust(of(Kind.CREDIT, 2, "a2", tenant="globex"))
            await book.adjust(of(Kind.CREDIT, 1, "a2", tenant="globex"))
            assert await book.spend(**ALL) == 1 - NANO_USD_MAX
            budget = tenant_budget(NANO_USD_MAX - 1)
            await book.adjust(top_up(budget, NANO_USD_MAX - 1, "a3"))
            assert (await numbers(book, budget))[0] == NANO_USD_MAX
            assert isinstance(await book.hold(ask("r1", budget)), Allow)

    run(test)


def test_every_cut_sums_to_the_ledger_with_rows_of_their_own() -> None:
    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            await used(book, "r1")
            await used(book, "r2", dims=replace(DIMS, tenant="globex", user="carol"))
            await book.adjust(refund("r1", 2_000, "a"))
            await book.adjust(of(Kind.CREDIT, 500, "b"))
            await book.adjust(of(Kind.CREDIT, 70, "c", tenant="hooli"))
            assert await book.spend(**ALL) == 64_000 - 2_570
            for by in ((), ("tenant",), ("user",), ("tenant", "project", "user", "key", "model")):
                rows = await book.usage(by, **ALL)
                assert sum(row.nano_usd for row in rows) == 64_000 - 2_570
                assert sum(row.adjustment_nano_usd for row in rows) == -2_570
                assert sum(row.requests for row in rows) == 2
            (row,) = await book.usage(["tenant"], tenant="acme", **ALL)
            assert (row.nano_usd, row.adjustment_nano_usd) == (29_500, -2_500)
            (row,) = await book.usage(["user"], tenant="hooli", **ALL)
            assert (row.group, row.requests, row.nano_usd) == (
                {"issuer": None, "user": None},
                *(0, -70),
            )

    run(test)
