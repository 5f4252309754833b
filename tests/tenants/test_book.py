"""The book as its callers see it: every path of a hold, and every number to the last unit."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest
from sqlalchemy import select

from policies.facts import Budget, Meters, Price
from policies.price import Charge
from policies.verdict import Allow, Deny, Reason
from tenants import schema
from tenants.book import Book, BookFault, BudgetAccount, Hold, Swept
from tests.tenants.house import (
    DIMS,
    NOON_MS,
    PRICE,
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

WHOLE = 50_000  # 100 prompt tokens at 200, 50 output at 600
HOUR_MS = 3_600_000


async def money(book: Book, account: BudgetAccount) -> tuple[int, int]:
    (balance,) = await book.balances([account])
    return balance.spent_nano_usd, balance.held_nano_usd


async def held(book: Book, *args: object, **more: object) -> Hold:
    verdict = await book.hold(ask(*args, **more))  # type: ignore[arg-type]
    assert isinstance(verdict, Allow)
    return verdict.value


async def entries(book: Book) -> list[tuple[str, str, str, int]]:
    table = schema.ledger_entry
    columns = (table.c.transfer_id, table.c.debit, table.c.credit, table.c.amount)
    rows = await book._store.read(lambda conn: conn.execute(select(*columns)).all())
    return sorted((row[0], row[1], row[2], row[3]) for row in rows)


def test_hold_settle_and_the_books_of_a_clerk() -> None:
    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            budget = tenant_budget(10**9)
            hold = await held(book, "r1", budget)
            assert (hold.output_tokens, hold.amount_nano_usd, hold.limited) == (50, WHOLE, False)
            assert hold.dims == DIMS
            assert await money(book, budget) == (0, WHOLE)
            settled = await book.settle("r1", Meters(input=100, output=20), record())
            assert settled.charge.total_nano_usd == 20_000 + 12_000
            assert (settled.repeat, settled.alarm) == (False, False)
            assert await money(book, budget) == (32_000, 0)
            assert await entries(book) == [
                ("r1/settle", "available", "spend", 32_000),
            ]

    run(test)


def test_a_repeat_hears_the_first_result_whatever_it_says() -> None:
    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            budget = tenant_budget(10**9)
            await held(book, "r1", budget)
            first = await book.settle("r1", Meters(input=100, output=20), record())
            again = await book.settle("r1", Meters(input=100, output=50), record(reason="other"))
            assert again == replace(first, repeat=True)
            assert await book.void("r1", record()) is False
            assert await money(book, budget) == (32_000, 0)
            told = await book.explain("r1")
            assert told is not None
            assert told.record == record()

    run(test)


def test_two_hundred_at_once_against_a_budget_for_37() -> None:
    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            budgets = (user_budget(10**12), tenant_budget(37 * WHOLE))
            verdicts = await asyncio.gather(
                *(book.hold(ask(f"r{i}", *budgets)) for i in range(200))
            )
            refused = [verdict for verdict in verdicts if isinstance(verdict, Deny)]
            assert len(refused) == 163
            assert {(r.reason, r.scope) for r in refused} == {(Reason.BUDGET_SPENT, "tenant")}
            assert await money(book, budgets[0]) == (0, 37 * WHOLE)
            assert await money(book, budgets[1]) == (0, 37 * WHOLE)

    run(test)


def test_a_parent_that_is_spent_leaves_no_partial_hold() -> None:
    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            child, parent = project_budget(10**9), tenant_budget(WHOLE - 1)
            assert isinstance(await book.hold(ask("r1", child, parent)), Deny)
            assert await money(book, child) == (0, 0)
            assert await entries(book) == []
            assert await book.void("r1") is False

    run(test)


def test_without_a_named_length_the_rest_of_the_budget_is_lent() -> None:
    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            budget = project_budget(20_000 + 600 * 20 + 599)
            hold = await held(book, "r1", budget, tenant_budget(10**9), least=16)
            assert (hold.output_tokens, hold.limited, hold.limited_by) == (20, True, "project")
            assert hold.amount_nano_usd == 20_000 + 600 * 20
            assert isinstance(await book.hold(ask("r2", budget, least=16)), Deny)

    run(test)


def test_a_soft_budget_lets_through_and_says_so() -> None:
    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            soft = tenant_budget(1, hard=False)
            hold = await held(book, "r1", soft)
            assert (hold.output_tokens, hold.over) == (50, ("tenant",))
            assert await money(book, soft) == (0, WHOLE)

    run(test)


def test_a_shadow_lets_through_and_says_what_it_would_have_refused() -> None:
    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            of = BudgetAccount("tenant", "acme", Budget(WHOLE, hard=False, shadow=True))
            first = await held(book, "r1", of)
            assert (first.output_tokens, first.shadowed, first.over) == (50, (), ())
            third = await held(book, "r3", of)
            assert (third.output_tokens, third.shadowed, third.over) == (50, ("tenant",), ())
            assert await held(book, "r3", of) == third
            assert await money(book, of) == (0, 2 * WHOLE)
            (balance,) = await book.balances([of])
            assert (balance.mode, balance.hard, balance.remaining_nano_usd) == ("shadow", False, 0)

    run(test)


def test_void_gives_everything_back() -> None:
    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            budget = tenant_budget(WHOLE)
            await held(book, "r1", budget)
            assert await book.void("r1", record())
            assert await book.void("r1") is False
            assert await money(book, budget) == (0, 0)
            late = await book.settle("r1", Meters(output=1))
            assert (late.charge, late.repeat, late.alarm) == (Charge("m@0", (), 0), True, True)
            await held(book, "r2", budget)

    run(test)


def test_more_than_reserved_is_an_entry_of_its_own_with_an_alarm() -> None:
    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            budget = tenant_budget(WHOLE)
            await held(book, "r1", budget)
            settled = await book.settle("r1", Meters(input=100, output=60))
            assert settled.alarm
            assert settled.charge.total_nano_usd == 56_000
            assert await money(book, budget) == (56_000, 0)
            assert ("r1/overrun", "available", "spend", 6_000) in await entries(book)
            (balance,) = await book.balances([budget])
            assert balance.remaining_nano_usd == 0

    run(test)


def test_an_expired_hold_is_billed_as_reserved_until_its_usage_arrives() -> None:
    async def test() -> None:
        clock = Clock()
        with folder() as where, opened(clock, where / "x.db") as book:
            budget = tenant_budget(10**9)
            await held(book, "r1", budget)
            await held(book, "r2", budget)
            clock.ms += 40_000
            assert await book.renew(["r2", "never"]) == ("never",)
            clock.ms += 20_000
            swept = await book.sweep()
            assert (swept.expired, swept.voided) == (("r1",), ())
            assert await money(book, budget) == (WHOLE, WHOLE)
            told = await book.explain("r1")
            assert told is not None
            assert (told.state, told.estimated, told.record) == ("EXPIRED", True, None)
            assert told.charge is not None
            assert told.charge.total_nano_usd == WHOLE
            late = await book.settle("r1", Meters(input=100, output=20), record())
            assert (late.charge.total_nano_usd, late.repeat) == (32_000, False)
            assert await book.settle("r1", Meters()) == replace(late, repeat=True)
            assert await money(book, budget) == (32_000, WHOLE)
            assert ("r1/correct", "spend", "available", 18_000) in await entries(book)
            (row,) = await book.usage(["tenant"], from_ms=0, to_ms=2**50)
            assert (row.nano_usd, row.input_tokens, row.output_tokens) == (32_000, 100, 20)
            assert (await book.sweep()).expired == ()

    run(test)


def test_a_void_that_comes_after_the_lease_corrects_to_nothing() -> None:
    async def test() -> None:
        clock = Clock()
        with folder() as where, opened(clock, where / "x.db") as book:
            budget = tenant_budget(10**9)
            await held(book, "r1", budget)
            clock.ms += 60_000
            await book.sweep()
            assert await book.void("r1", record())
            assert await money(book, budget) == (0, 0)

    run(test)


def test_a_crash_voids_what_was_not_dispatched_and_charges_what_is_unknown() -> None:
    async def test() -> None:
        clock = Clock()
        budget = tenant_budget(10**9)
        with folder() as where:
            with opened(clock, where / "x.db", "p1") as book:
                await held(book, "ran", budget)
                await held(book, "waited", budget, dispatched=False)
                await held(book, "marked", budget, dispatched=False)
                assert await book.mark_dispatched("marked")
                assert await book.open_holds() == 3
                assert not await book.mark_dispatched("never")
            with opened(clock, where / "x.db", "p2") as book:
                if book._store.shared:  # whose process is no more is known by its leases alone
                    assert await book.recover() == Swept()
                    clock.ms += 60_000
                await held(book, "new", budget)
                found = await book.recover()
                assert sorted(found.expired) == ["marked", "ran"]
                assert found.voided == ("waited",)
                assert await book.recover() == type(found)()
                assert await money(book, budget) == (2 * WHOLE, WHOLE)
                assert not await book.mark_dispatched("waited")

    run(test)


def test_a_lapsed_lease_may_not_be_dispatched() -> None:
    async def test() -> None:
        clock = Clock()
        with folder() as where, opened(clock, where / "x.db") as book:
            await held(book, "r1", dispatched=False)
            clock.ms += 60_000
            assert not await book.mark_dispatched("r1")
            assert (await book.sweep()).voided == ("r1",)

    run(test)


def test_a_settlement_belongs_to_the_window_of_its_reservation() -> None:
    async def test() -> None:
        clock = Clock()
        with folder() as where, opened(clock, where / "x.db") as book:
            day, rolling = tenant_budget(10**9, "calendar_day"), project_budget(10**9)
            await held(book, "r1", day, rolling)
            clock.ms += 13 * HOUR_MS
            assert await money(book, day) == (0, 0)
            await book.settle("r1", Meters(input=100))
            assert await money(book, day) == (0, 0)
            assert await money(book, rolling) == (20_000, 0)
            clock.ms -= 13 * HOUR_MS
            assert await money(book, day) == (20_000, 0)
            clock.ms += 24 * HOUR_MS
            assert await money(book, rolling) == (20_000, 0)
            clock.ms += HOUR_MS
            assert await money(book, rolling) == (0, 0)

    run(test)


def test_the_rolling_window_never_lets_24_hours_exceed_the_limit() -> None:
    async def test() -> None:
        clock = Clock(NOON_MS + HOUR_MS - 1)  # the last millisecond of an hour
        with folder() as where, opened(clock, where / "x.db") as book:
            budget = project_budget(2 * WHOLE)
            await held(book, "r1", budget)
            clock.ms += 12 * HOUR_MS
            await held(book, "r2", budget)
            clock.ms += 12 * HOUR_MS
            assert isinstance(await book.hold(ask("r3", budget)), Deny)
            clock.ms += HOUR_MS
            await held(book, "r4", budget)

    run(test)


def test_a_budget_set_late_counts_what_its_window_has_cost_already() -> None:
    async def test() -> None:
        clock = Clock()
        with folder() as where, opened(clock, where / "x.db") as book:
            await held(book, "gone")
            clock.ms += 60_000
            await book.sweep()
            await held(book, "done")
            await book.settle("done", Meters(input=100, output=20))
            await held(book, "open")
            await held(book, "other", dims=replace(DIMS, project="else", user="bob"))
            await held(book, "foreign", dims=replace(DIMS, tenant="globex"))
            for budget, others in (
                (tenant_budget(10**9), WHOLE),
                (project_budget(10**9), 0),
                (user_budget(10**9), 0),
                (tenant_budget(10**9, "total"), WHOLE),
            ):
                assert await money(book, budget) == (WHOLE + 32_000, WHOLE + others)
                late = f"late-{budget.scope}-{budget.budget.window}"
                await held(book, late, budget)  # makes the row
                await book.void(late)
            clock.ms += 1000
            await book.settle("open", Meters(output=1))
            await book.settle("gone", Meters(output=2))
            spent = 32_000 + 600 + 1200
            assert (await money(book, project_budget(10**9)))[0] == spent
            assert (await money(book, tenant_budget(10**9)))[0] == spent

    run(test)


@pytest.mark.parametrize("other", ("total", "rolling_24h", "calendar_day"))
def test_a_window_that_was_left_counts_what_happened_meanwhile(other: str) -> None:
    """Month, something else, month again: the month has cost what it has cost."""

    async def test() -> None:
        clock = Clock()
        with folder() as where, opened(clock, where / "x.db") as book:
            month, meanwhile = tenant_budget(3 * WHOLE), tenant_budget(10 * WHOLE, other)
            await held(book, "r1", month)
            await held(book, "r2", meanwhile)
            await held(book, "r3", meanwhile)
            await book.settle("r2", Meters(input=100, output=50), record("r2"))
            assert isinstance(await book.hold(ask("r4", month)), Deny)
            assert await money(book, month) == (WHOLE, 2 * WHOLE)
            for request_id in ("r1", "r3"):
                await book.settle(request_id, Meters(input=100, output=50), record(request_id))
            assert await money(book, month) == (3 * WHOLE, 0)
            assert await money(book, meanwhile) == (3 * WHOLE, 0)

    run(test)


def test_a_budget_that_was_gone_for_a_while_counts_what_happened_meanwhile() -> None:
    """Configuration changes with a restart, so that is where totals are taken anew."""

    async def test() -> None:
        clock = Clock()
        with folder() as where:
            month = tenant_budget(3 * WHOLE)
            with opened(clock, where / "x.db", "p1") as book:
                await held(book, "r1", month)
                await book.settle("r1", Meters(input=100, output=50), record("r1"))
            with opened(clock, where / "x.db", "p2") as book:
                await book.recover()
                await held(book, "r2")
                await book.settle("r2", Meters(input=100, output=50), record("r2"))
            with opened(clock, where / "x.db", "p3") as book:
                await book.recover()
                assert await money(book, month) == (2 * WHOLE, 0)
                await held(book, "r3", month)
                assert isinstance(await book.hold(ask("r4", month)), Deny)

    run(test)


def test_the_lines_of_an_estimate_can_be_recomputed() -> None:
    """Reserved is the prompt at the dearest price it could have had, and the line says so."""

    async def test() -> None:
        clock = Clock()
        dear = Price("m@1", "m", 0, 300_000_000, 50_000_000, 700_000_000, 600_000_000)
        with folder() as where, opened(clock, where / "x.db") as book:
            await held(book, "r1", price=dear)
            clock.ms += 3_600_000
            assert (await book.sweep()).expired == ("r1",)
            told = await book.explain("r1")
            assert told is not None
            assert told.charge is not None
            assert [(line.tokens, line.unit_price) for line in told.charge.lines] == [
                (100, 700_000_000),
                (50, 600_000_000),
            ]
            for line in told.charge.lines:
                assert line.tokens * line.unit_price == line.nano_usd * 1_000_000

    run(test)


def test_a_limit_lowered_below_what_is_spent_denies_and_stays_positive() -> None:
    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            await held(book, "r1", tenant_budget(10**9))
            assert isinstance(await book.hold(ask("r2", tenant_budget(10))), Deny)
            (balance,) = await book.balances([tenant_budget(10)])
            assert (balance.remaining_nano_usd, balance.held_nano_usd) == (0, WHOLE)
            await book.settle("r1", Meters(input=100, output=50))
            assert isinstance(await book.hold(ask("r3", tenant_budget(10))), Deny)
            await held(book, "r4", tenant_budget(10**9))

    run(test)


def test_balances_say_when_they_reset() -> None:
    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            month, rolling, total = await book.balances(
                [tenant_budget(9), project_budget(9), tenant_budget(9, "total")]
            )
            assert month.resets_at_s == 1_796_083_200  # 2026-12-01T00:00:00Z
            assert rolling.resets_at_s == NOON_MS // 1000 + 3600
            assert total.resets_at_s is None

    run(test)


def test_a_hold_repeated_is_one_hold_and_an_id_used_twice_is_our_fault() -> None:
    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            budget = tenant_budget(WHOLE)
            first = await held(book, "r1", budget)
            assert await held(book, "r1", budget) == first
            assert await money(book, budget) == (0, WHOLE)
            with pytest.raises(BookFault, match="minted once"):
                await book.hold(ask("r1", budget, prompt=7))
            await book.settle("r1", Meters())
            with pytest.raises(BookFault, match="minted once"):
                await book.hold(ask("r1", budget))
            with pytest.raises(BookFault, match="ever held"):
                await book.settle("never", Meters())

    run(test)


def test_what_used_nothing_is_known_to_every_report() -> None:
    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            await held(book, "r1", tenant_budget(10**9))
            first = await book.settle("r1", Meters(), record("r1", device_ns=7))
            assert first.charge == Charge("m@0", (), 0)
            assert await book.settle("r1", Meters(output=9)) == replace(first, repeat=True)
            (row,) = await book.usage(["user"], from_ms=0, to_ms=2**50)
            assert (row.requests, row.nano_usd, row.device_ns) == (1, 0, 7)

    run(test)


def test_an_account_that_is_spelt_otherwise_is_refused() -> None:
    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            wrong = BudgetAccount("user", "alice", Budget(10**9))
            with pytest.raises(AssertionError):
                await book.hold(ask("r1", wrong))

    run(test)


def test_a_caller_cancelled_while_it_waits_leaves_no_hold() -> None:
    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            budget = tenant_budget(10**9)
            gate = threading.Event()
            blocked = asyncio.ensure_future(book._store.write(lambda _: gate.wait(10)))
            await asyncio.sleep(0)
            task = asyncio.ensure_future(book.hold(ask("r1", budget)))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            gate.set()
            await blocked
            await book._store.write(lambda _: None)
            told = await book.explain("r1")
            assert told is not None
            assert told.state == "VOIDED"
            assert await money(book, budget) == (0, 0)

    run(test)


def test_prices_are_immutable_once_used() -> None:
    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            await book.publish_prices([PRICE])
            await book.publish_prices([PRICE])
            with pytest.raises(BookFault, match="later date"):
                await book.publish_prices([replace(PRICE, output=1)])
            with pytest.raises(BookFault, match="later date"):
                await book.hold(ask("r1", price=replace(PRICE, output=1)))

    run(test)


def test_it_settles_at_the_price_it_was_held_at() -> None:
    async def test() -> None:
        odd = Price("odd", "m", 1, 333_333, 1, 500_000, 777_777, 0.1)
        with folder() as where, opened(Clock(), where / "x.db") as book:
            hold = await held(book, "r1", price=odd, n=3)
            settled = await book.settle("r1", Meters(50, 25, 25, 150))
            assert [line.nano_usd for line in settled.charge.lines] == [17, 0, 13, 117]
            assert settled.charge.total_nano_usd == 147 <= hold.amount_nano_usd
            assert (await book.settle("r1", Meters())).charge == settled.charge

    run(test)


def test_amounts_near_two_to_the_53_are_exact() -> None:
    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            dear = Price("dear", "m", 0, 0, 0, 0, 28_059_810_762_433)  # × 321 = 2**53 + 1
            budget = tenant_budget(2**60)
            hold = await held(book, "r1", budget, price=dear, out=321 * 10**6)
            assert hold.amount_nano_usd == 2**53 + 1
            await book.settle("r1", Meters(output=321 * 10**6))
            assert await money(book, budget) == (2**53 + 1, 0)

    run(test)


def test_one_tenants_traffic_never_alters_anothers_balance() -> None:
    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            theirs = BudgetAccount("tenant", "globex", Budget(WHOLE))
            dims = replace(DIMS, tenant="globex")
            await held(book, "r1", tenant_budget(WHOLE))
            await held(book, "r2", theirs, dims=dims)
            await book.settle("r1", Meters(input=100, output=50))
            assert await money(book, theirs) == (0, WHOLE)

    run(test)


def test_old_hours_are_forgotten_and_reservations_are_not() -> None:
    async def test() -> None:
        clock = Clock()
        with folder() as where, opened(clock, where / "x.db") as book:
            await held(book, "r1", project_budget(10**9), tenant_budget(10**9, "total"))
            await book.settle("r1", Meters(input=100))
            clock.ms += 2 * HOUR_MS
            await held(book, "open", project_budget(10**9))
            clock.ms += 9 * 24 * HOUR_MS
            await book.renew(["open"])
            await book.sweep()
            rows = await book._store.read(
                lambda conn: conn.execute(select(schema.budget_window.c.window_id)).scalars().all()
            )
            still_open = (NOON_MS + 2 * HOUR_MS) // HOUR_MS
            assert sorted(rows) == [f"rolling_24h/{still_open}", "total"]
            clock.ms -= 9 * 24 * HOUR_MS
            assert await money(book, project_budget(10**9)) == (20_000, WHOLE)

    run(test)


def test_a_request_that_was_never_held_is_explained_too() -> None:
    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            refused = record("r0", reason="rate_requests", trace=(("refused", NOON_MS),))
            assert await book.record(refused)
            assert not await book.record(refused)
            told = await book.explain("r0")
            assert told is not None
            assert (told.record, told.state, told.charge) == (refused, None, None)
            assert await book.explain("nobody") is None
            assert await book.renew([]) == ()

    run(test)
