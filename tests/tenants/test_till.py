"""Tills by hand, on both databases: what a turn makes of a draw, and what it gives back to the budget."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, select, update
from sqlalchemy.exc import IntegrityError

from policies.facts import Budget, Meters
from policies.till import PART, SETTLE_US, Float, Seen
from policies.verdict import Allow, Deny
from tenants import ledger, schema
from tenants.adjustments import AdjustAsk, Kind
from tenants.asks import Drawn, HoldAsk, SettleAsk, VoidAsk, Word, Worded
from tenants.book import Book, BudgetAccount
from tests.tenants.house import NOON_MS, Clock, ask, folder, on_both, opened, project_budget, run

__all__ = ["on_both"]
pytestmark = pytest.mark.usefixtures("on_both")

WHOLE = 50_000
"""What `ask` comes to."""
LIMIT = 100 * WHOLE
NOW_US = NOON_MS * 1000
FILL = LIMIT // PART


def till_budget(limit: int = LIMIT, window: str = "calendar_month") -> BudgetAccount:
    return BudgetAccount("tenant", "acme", Budget(limit, window, till=True))


TILL = till_budget()
STRICT = replace(TILL, budget=replace(TILL.budget, till=False))


def drawn(request_id: str, seen: Seen, *budgets: BudgetAccount, **more: Any) -> HoldAsk:
    found = (Drawn("tenant", "acme", seen),)
    return replace(ask(request_id, *(budgets or (TILL,)), **more), till=found)


class Desk:
    """One book, by hand."""

    def __init__(self, book: Book, clock: Clock) -> None:
        self.book, self.clock = book, clock

    async def turn(self, *asks: Any) -> list[Any]:
        return await self.book._store.write(
            lambda conn: ledger.turn(conn, asks, owner="p1", now_ms=self.clock())
        )

    async def one(self, asked: Any) -> Any:
        (answer,) = await self.turn(asked)
        return answer

    async def floated(self) -> Float:
        """What is set aside; and that all of it fits."""

        def op(conn: Connection) -> Any:
            table = schema.budget_window
            return conn.execute(select(table).where(table.c.scope == "tenant")).one()

        row = await self.book._store.read(op)
        assert row.spent + row.held + row.floated <= row.limit_nano_usd + row.topped_up
        return Float(row.epoch, row.floated, row.issued)

    async def begun(self) -> Float:
        """After one request that found nothing."""
        await self.one(drawn("first", Seen()))
        return await self.floated()


@contextmanager
def desk() -> Iterator[Desk]:
    with folder() as where:
        clock = Clock()
        with opened(clock, where / "x.db") as book:
            yield Desk(book, clock)


def told(test: Callable[[Desk], Coroutine[Any, Any, None]]) -> None:
    async def go() -> None:
        with desk() as at:
            await test(at)

    run(go)


def refused(answer: Any) -> bool:
    verdict = answer.verdict if isinstance(answer, Worded) else answer
    assert isinstance(verdict, Allow | Deny)
    return isinstance(verdict, Deny)


def test_the_first_request_sets_aside_a_part_and_says_so() -> None:
    async def test(at: Desk) -> None:
        answer = await at.one(drawn("a", Seen()))
        assert isinstance(answer.verdict, Allow)
        assert answer.words == (Word("tenant", "acme", NOW_US, 0, FILL, spent=False),)
        assert await at.floated() == Float(NOW_US, FILL, FILL)
        (balance,) = await at.book.balances([TILL])
        assert (balance.held_nano_usd, balance.floated_nano_usd) == (WHOLE, FILL)
        assert balance.remaining_nano_usd == LIMIT - WHOLE  # what is set aside is not spent

    told(test)


def test_a_draw_becomes_a_hold_once() -> None:
    async def test(at: Desk) -> None:
        kept = await at.begun()
        wanted = drawn("a", Seen(kept.epoch, FILL, WHOLE))
        first, again = await at.turn(wanted, wanted)
        assert first == Worded(again, ())
        assert await at.floated() == Float(kept.epoch, FILL - WHOLE, FILL)
        assert await at.one(wanted) == again
        assert await at.floated() == Float(kept.epoch, FILL - WHOLE, FILL)

    told(test)


def test_a_request_that_found_too_little_fills_up_for_all_who_did() -> None:
    async def test(at: Desk) -> None:
        kept = await at.begun()
        seen = Seen(kept.epoch, FILL)
        await at.turn(*(drawn(f"d{n}", replace(seen, drawn_nano_usd=WHOLE)) for n in range(6)))
        assert (await at.floated()).nano_usd == FILL - 6 * WHOLE
        answers = await at.turn(*(drawn(f"s{n}", seen) for n in range(3)))
        assert await at.floated() == Float(kept.epoch, FILL, FILL + 6 * WHOLE)
        word = Word("tenant", "acme", kept.epoch, FILL, FILL + 6 * WHOLE, spent=False)
        assert [each.words for each in answers] == [(word,)] * 3  # in case the first is lost

    told(test)


def test_a_draw_of_another_epoch_is_void_and_the_request_is_not() -> None:
    async def test(at: Desk) -> None:
        kept = await at.begun()
        answer = await at.one(drawn("a", Seen(kept.epoch - 1, FILL, WHOLE)))
        assert not refused(answer)
        assert await at.floated() == kept
        assert answer.words == ()  # whoever began it has told of it, a moment ago
        at.clock.ms += SETTLE_US // 1000
        answer = await at.one(drawn("b", Seen(kept.epoch - 1, FILL, WHOLE)))
        after = await at.floated()
        assert answer.words == (Word("tenant", "acme", after.epoch, 0, FILL, spent=False),)
        assert after == Float(at.clock() * 1000, FILL, FILL)

    told(test)


def test_a_till_that_gives_what_it_does_not_have_is_recalled() -> None:
    """It was restored to an earlier state."""

    async def test(at: Desk) -> None:
        kept = await at.begun()
        seen = Seen(kept.epoch, FILL, WHOLE)
        answers = await at.turn(*(drawn(f"d{n}", seen) for n in range(9)))
        assert not any(map(refused, answers))
        after = await at.floated()
        assert after.epoch > kept.epoch
        (word,) = answers[6].words  # six were set aside
        assert (word.epoch, word.since, word.issued) == (after.epoch, 0, after.issued)

    told(test)


def test_what_is_set_aside_keeps_nobody_out() -> None:
    """A hundred fit, whoever set aside what and whatever became of it; and exactly a hundred."""

    async def test(at: Desk) -> None:
        answers = [await at.one(drawn(f"a{n}", Seen())) for n in range(40)]
        answers += await at.turn(*(drawn(f"b{n}", Seen(NOW_US, FILL)) for n in range(40)))
        answers += await at.turn(*(ask(f"c{n}", TILL) for n in range(40)))
        assert [refused(each) for each in answers] == [False] * 100 + [True] * 20
        assert (await at.floated()).nano_usd == 0

    told(test)


def test_an_answer_of_unnamed_length_is_not_cut_for_what_is_set_aside() -> None:
    async def test(at: Desk) -> None:
        await at.begun()
        asked = ask("a", TILL, out=9_000, least=16)
        most = (LIMIT - WHOLE - 20_000) // 600
        assert (await at.one(asked)).value.output_tokens == most
        assert (await at.floated()).nano_usd == 0

    told(test)


def test_a_request_that_would_not_fit_anyway_recalls_nothing() -> None:
    async def test(at: Desk) -> None:
        kept = await at.begun()
        answer = await at.one(drawn("a", Seen(kept.epoch, FILL), out=10_000))
        assert isinstance(answer.verdict, Deny)
        (word,) = answer.words
        assert word.spent
        assert (word.epoch, word.since, word.issued) == (kept.epoch, FILL, FILL)
        assert await at.floated() == kept

    told(test)


def test_another_ancestor_that_refuses_leaves_the_draw_as_it_was() -> None:
    """The gateway gives it back, there where it was drawn."""

    async def test(at: Desk) -> None:
        kept = await at.begun()
        answer = await at.one(drawn("a", Seen(kept.epoch, FILL, WHOLE), TILL, project_budget(1)))
        assert isinstance(answer.verdict, Deny)
        assert answer.verdict.scope == "project"
        assert answer.words == ()
        assert await at.floated() == kept

    told(test)


def test_another_ancestor_that_cuts_it_leaves_the_rest_to_the_budget() -> None:
    async def test(at: Desk) -> None:
        kept = await at.begun()
        narrow = project_budget(WHOLE + WHOLE - 600)
        asked = drawn("a", Seen(kept.epoch, FILL, WHOLE), TILL, narrow, least=16)
        answer = await at.one(asked)
        assert answer.verdict.value.amount_nano_usd == WHOLE - 600
        assert await at.floated() == Float(kept.epoch, FILL - WHOLE, FILL)

    told(test)


def test_what_ends_goes_back_to_the_budget_and_not_to_the_till() -> None:
    async def test(at: Desk) -> None:
        kept = await at.begun()
        await at.one(drawn("a", Seen(kept.epoch, FILL, WHOLE)))
        await at.turn(VoidAsk("a"), SettleAsk("first", Meters(input=100)))
        assert await at.floated() == Float(kept.epoch, FILL - WHOLE, FILL)
        (balance,) = await at.book.balances([TILL])
        assert balance.remaining_nano_usd == LIMIT - 20_000

    told(test)


@pytest.mark.parametrize("now", (STRICT, replace(STRICT, budget=Budget(LIMIT, hard=False))))
def test_a_budget_that_has_a_till_no_more_takes_everything_back(now: BudgetAccount) -> None:
    async def test(at: Desk) -> None:
        kept = await at.begun()
        await at.one(ask("a", now))
        assert await at.floated() == Float(kept.epoch + 1)

    told(test)


def test_a_limit_that_was_lowered_binds_those_too_who_have_drawn() -> None:
    async def test(at: Desk) -> None:
        kept = await at.begun()
        lowered = till_budget(2 * WHOLE)
        seen = Seen(kept.epoch, FILL, WHOLE)
        answers = await at.turn(drawn("a", seen, lowered), drawn("b", seen, lowered))
        assert [refused(each) for each in answers] == [False, True]
        assert (await at.floated()).nano_usd == 0

    told(test)


def test_an_overrun_takes_back_what_does_not_fit_any_more() -> None:
    async def test(at: Desk) -> None:
        kept = await at.begun()
        settled = await at.one(SettleAsk("first", Meters(output=LIMIT // 600)))
        assert settled.alarm
        after = await at.floated()
        assert after.nano_usd == 0
        assert after.epoch > kept.epoch

    told(test)


def test_the_next_window_begins_with_nothing_set_aside() -> None:
    async def test(at: Desk) -> None:
        kept = await at.begun()
        at.clock.ms += 3 * 86_400_000  # December
        answer = await at.one(drawn("a", Seen(kept.epoch, FILL, WHOLE)))
        (word,) = answer.words
        assert (word.epoch, word.since, word.issued) == (at.clock() * 1000, 0, FILL)

        def rows(conn: Connection) -> list[Any]:
            table = schema.budget_window
            return list(conn.execute(select(table.c.held, table.c.floated).order_by("start_s")))

        assert await at.book._store.read(rows) == [(WHOLE, FILL), (WHOLE, FILL)]

    told(test)


def test_a_row_that_was_lost_begins_an_epoch_that_was_never_before() -> None:
    async def test(at: Desk) -> None:
        kept = await at.begun()
        await at.book._store.write(lambda conn: conn.execute(schema.budget_window.delete()))
        at.clock.ms += 1
        answer = await at.one(drawn("a", Seen(kept.epoch, FILL, WHOLE)))
        assert not refused(answer)
        after = await at.floated()
        assert after.epoch > kept.epoch
        assert after.nano_usd == FILL
        (balance,) = await at.book.balances([TILL])
        assert balance.held_nano_usd == 2 * WHOLE

    told(test)


def test_a_top_up_is_room_for_a_till_too() -> None:
    async def test(at: Desk) -> None:
        assert refused(await at.one(drawn("a", Seen(), till_budget(10))))
        given = AdjustAsk(
            id="t", kind=Kind.TOP_UP, tenant="acme", nano_usd=LIMIT, actor="x", reason="y",
            budget=till_budget(10),
        )  # fmt: skip
        await at.book.adjust(given)
        assert not refused(await at.one(drawn("b", Seen(), till_budget(10))))
        assert (await at.floated()).nano_usd == (LIMIT + 10) // PART

    told(test)


def test_no_row_has_less_than_nothing_set_aside() -> None:
    async def test(at: Desk) -> None:
        await at.begun()
        table = schema.budget_window
        for wrong in ({"floated": -1}, {"floated": FILL + 1}, {"epoch": -1}):

            def op(conn: Connection, to: dict[str, int] = wrong) -> None:
                conn.execute(update(table).values(**to))

            with pytest.raises(IntegrityError):
                await at.book._store.write(op)

    told(test)
