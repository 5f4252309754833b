"""What a gateway does with tills that work, fail, hang, and forget: the book decides as if there were none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from policies.facts import Budget, Meters
from policies.outage import FAILURES_MOST, FIRST_PAUSE_MS, Trouble
from policies.till import NANO_USD_BELOW, PART, Seen
from policies.verdict import Allow, Deny, Reason
from tenants.asks import BookFault, Hold, HoldAsk
from tenants.book import Book
from tenants.journal import Journal
from tenants.places import Place
from tenants.scopes import BudgetAccount
from tenants.store import Store
from tenants.tempo.link import Failed, Untaken
from tenants.till import DrawAsk, Dry, MemoryTills, Told
from tenants.till.front import Front
from tests.tenants.house import Clock, Where, ask, folder, project_budget, run

WHOLE = 50_000
LIMIT = 100 * WHOLE
FILL = LIMIT // PART
HOT = BudgetAccount("tenant", "acme", Budget(LIMIT, till=True))
KEY = ("acme", Place("tenant", "acme"))
REFUSED = Deny(Reason.BUDGET_SPENT, scope="tenant", limit_name="budget", account="acme")


@dataclass
class Shaky:
    """Tills that fail as they are told to; what fails may have been done (`done_first`)."""

    kept: MemoryTills
    fails: Exception | None = None
    done_first: bool = False
    of: tuple[str, ...] = ("draw", "give_back", "fill")
    gate: asyncio.Event | None = None
    calls: list[str] = field(default_factory=list)

    async def _call(self, name: str, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        self.calls.append(name)
        if self.gate is not None:
            await self.gate.wait()
        fails = self.fails if name in self.of else None
        said = await call() if fails is None or self.done_first else None
        if fails is not None:
            raise fails
        return said

    async def draw(self, ask: DrawAsk) -> tuple[Seen, ...] | Dry:
        said: tuple[Seen, ...] | Dry = await self._call("draw", lambda: self.kept.draw(ask))
        return said

    async def give_back(self, ask: DrawAsk) -> None:
        await self._call("give_back", lambda: self.kept.give_back(ask))

    async def fill(self, tenant: str, told: tuple[Told, ...]) -> None:
        await self._call("fill", lambda: self.kept.fill(tenant, told))


@dataclass
class Gateway:
    clock: Clock
    tills: Shaky
    front: Front
    book: Book
    heard: list[Trouble | None]

    async def hold(
        self, request_id: str, *budgets: BudgetAccount, **more: Any
    ) -> Allow[Hold] | Deny:
        """And whatever is told after it."""
        verdict = await self.book.hold(ask(request_id, *(budgets or (HOT,)), **more))
        await self.front.aclose()
        return verdict

    @property
    def left(self) -> int:
        return self.tills.kept.tills[KEY].left

    async def floated(self) -> int:
        (balance,) = await self.book.balances([HOT])
        return balance.floated_nano_usd


@asynccontextmanager
async def gateway() -> AsyncIterator[Gateway]:
    with folder() as where:
        clock, heard = Clock(), list[Trouble | None]()
        store = Store.open(Where.url(where / "x.db"))
        tills = Shaky(MemoryTills(clock))
        front = Front(tills, clock, heard.append)
        journal = Journal(where / "unbooked.jsonl")
        book = Book(store, owner="p1", clock_ms=clock, journal=journal, till=front)
        try:
            yield Gateway(clock, tills, front, book, heard)
        finally:
            store.close()


def told(test: Callable[[Gateway], Coroutine[Any, Any, None]]) -> None:
    async def go() -> None:
        async with gateway() as at:
            await test(at)

    run(go)


def test_the_first_fills_and_the_next_draw() -> None:
    async def test(at: Gateway) -> None:
        for number in range(4):
            assert isinstance(await at.hold(f"r{number}"), Allow)
        assert at.front.outcomes == {"short": 1, "drawn": 3}
        assert at.left == await at.floated() == FILL - 3 * WHOLE
        await at.book.settle("r1", Meters(input=100))
        await at.book.void("r2")
        assert at.left == await at.floated() == FILL - 3 * WHOLE

    told(test)


def test_a_hundred_fit_and_then_nobody_asks_the_database() -> None:
    async def test(at: Gateway) -> None:
        answers = [await at.hold(f"r{number}") for number in range(120)]
        assert [isinstance(each, Allow) for each in answers] == [True] * 100 + [False] * 20
        assert set(answers[100:]) == {REFUSED}  # the till's are the database's, word for word
        assert at.front.outcomes["dry"] == 19
        assert at.front.outcomes["drawn"] > 80
        assert await at.floated() == 0

    told(test)


def test_money_that_came_back_is_known_within_a_second_and_a_smaller_request_at_once() -> None:
    async def test(at: Gateway) -> None:
        for number in range(101):
            await at.hold(f"r{number}")
        await at.book.void("r7")
        assert await at.hold("big") == REFUSED
        assert isinstance(await at.hold("small", out=1), Allow)
        await at.book.void("small")
        at.clock.ms += at.tills.kept.lives.dry_ms
        assert isinstance(await at.hold("big"), Allow)

    told(test)


def test_an_answer_of_unnamed_length_is_refused_by_what_it_needs_at_the_least() -> None:
    async def test(at: Gateway) -> None:
        for number in range(101):
            await at.hold(f"r{number}")
        await at.book.void("r7")
        verdict = await at.hold("cut", out=9_000, least=16)
        assert isinstance(verdict, Allow)
        assert verdict.value.limited_by == "tenant"

    told(test)


def test_what_another_ancestor_refuses_goes_back_to_the_till() -> None:
    async def test(at: Gateway) -> None:
        await at.hold("a")
        assert isinstance(await at.hold("b", HOT, project_budget(1)), Deny)
        assert at.left == await at.floated() == FILL
        assert at.front.outcomes["dry"] == 0

    told(test)


def test_an_id_that_was_used_before_gives_back_what_it_drew() -> None:
    async def test(at: Gateway) -> None:
        await at.hold("a")
        await at.book.void("a")
        at.tills.kept.marks.clear()
        with pytest.raises(BookFault):
            await at.book.hold(ask("a", HOT))
        await at.front.aclose()
        assert at.left == await at.floated() == FILL

    told(test)


def test_tills_that_fail_are_given_up_and_tried_now_and_then() -> None:
    async def test(at: Gateway) -> None:
        at.tills.fails = Failed(Trouble.UNREACHABLE)
        for number in range(10):
            assert isinstance(await at.hold(f"a{number}"), Allow)
        assert at.front.trouble is Trouble.UNREACHABLE
        assert at.heard == [Trouble.UNREACHABLE]
        assert at.tills.calls.count("draw") <= FAILURES_MOST
        assert at.front.outcomes == {"unasked": 10}
        at.clock.ms += FIRST_PAUSE_MS
        at.tills.gate = asyncio.Event()
        asked = len(at.tills.calls)
        crowd = [asyncio.create_task(at.book.hold(ask(f"b{n}", HOT))) for n in range(5)]
        await asyncio.wait(crowd[1:])  # one tries, nobody waits for it
        assert at.tills.calls[asked:] == ["draw"]
        at.tills.fails = None
        at.tills.gate.set()
        assert all(isinstance(each, Allow) for each in await asyncio.gather(*crowd))
        await at.front.aclose()
        assert at.heard == [Trouble.UNREACHABLE, None]
        assert isinstance(await at.hold("c"), Allow)
        assert at.front.outcomes["drawn"] == 1

    told(test)


@pytest.mark.parametrize("done_first", (False, True), ids=("not done", "done"))
def test_a_draw_of_which_nobody_heard_is_given_back_and_the_request_goes_on(
    done_first: bool,
) -> None:
    async def test(at: Gateway) -> None:
        await at.hold("a")
        at.tills.fails, at.tills.done_first = Failed(Trouble.SLOW), done_first
        at.tills.of = ("draw",)
        assert isinstance(await at.hold("b"), Allow)
        assert at.left == await at.floated() == FILL
        await at.tills.kept.draw(DrawAsk("b", "acme", (KEY[1],), WHOLE, WHOLE))  # it arrives now
        assert at.left == FILL

    told(test)


def test_what_was_not_asked_is_no_failure() -> None:
    async def test(at: Gateway) -> None:
        at.tills.fails = Untaken(Trouble.SLOW)
        for number in range(10):
            assert isinstance(await at.hold(f"a{number}"), Allow)
        assert at.front.trouble is None
        assert at.front.failures.total() == 0
        assert "give_back" not in at.tills.calls

    told(test)


def test_who_leaves_while_drawing_leaves_nothing_drawn() -> None:
    async def test(at: Gateway) -> None:
        await at.hold("a")
        at.tills.gate = asyncio.Event()
        held = asyncio.create_task(at.book.hold(ask("b", HOT)))
        while at.tills.calls[-1] != "draw":
            await asyncio.sleep(0)
        held.cancel()
        with pytest.raises(asyncio.CancelledError):
            await held
        at.tills.gate.set()
        await at.front.aclose()
        assert at.left == await at.floated() == FILL
        assert await at.book.open_holds() == 1

    told(test)


def test_a_word_that_was_lost_is_said_again() -> None:
    async def test(at: Gateway) -> None:
        await at.hold("a")
        fill = at.tills.kept.fill

        async def deaf(tenant: str, told: tuple[Told, ...]) -> None:
            return None

        at.tills.kept.fill = deaf  # type: ignore[method-assign]
        for number in range(7):  # six drain it, and of what the next sets aside nobody hears
            await at.hold(f"b{number}")
        assert at.left < WHOLE < await at.floated()
        at.tills.kept.fill = fill  # type: ignore[method-assign]
        await at.hold("c")
        assert at.left == await at.floated()

    told(test)


@pytest.mark.parametrize("wiped", (True, False), ids=("wiped", "restored"))
def test_a_till_that_forgot_is_begun_anew(wiped: bool) -> None:
    async def test(at: Gateway) -> None:
        await at.hold("a")
        before = dict(at.tills.kept.tills)
        for number in range(4):
            await at.hold(f"b{number}")
        at.tills.kept.tills.clear()
        at.tills.kept.tills.update({} if wiped else before)
        at.tills.kept.marks.clear()
        at.clock.ms += 1_000
        for number in range(4):
            assert isinstance(await at.hold(f"c{number}"), Allow)
        assert at.left == await at.floated()
        for number in range(120):
            await at.hold(f"d{number}")
        (balance,) = await at.book.balances([HOT])
        assert (balance.held_nano_usd, balance.floated_nano_usd) == (LIMIT, 0)

    told(test)


def test_several_words_for_one_till_are_one_call() -> None:
    async def test(at: Gateway) -> None:
        await at.hold("a")
        asked: list[HoldAsk | Deny] = [await at.front.draw(ask(f"b{n}", HOT)) for n in range(9)]
        assert sum(each.till[0].seen.drawn_nano_usd > 0 for each in asked) == 6  # type: ignore[union-attr]
        at.tills.calls.clear()
        turns = [at.book._store.ask(at.book._turn, each) for each in asked]  # type: ignore[arg-type]
        for each, answer in zip(asked, await asyncio.gather(*turns), strict=True):
            at.front.hear(each, answer)  # type: ignore[arg-type]
        await at.front.aclose()
        assert at.tills.calls == ["fill"]
        assert at.left == await at.floated()

    told(test)


def test_what_no_till_could_count_and_what_has_none_is_not_asked() -> None:
    async def test(at: Gateway) -> None:
        dear = replace(ask().price, id="dear", output=NANO_USD_BELOW)
        assert isinstance(await at.hold("a", out=10**6, price=dear), Deny)
        assert isinstance(await at.hold("b", project_budget(10**9)), Allow)
        assert at.tills.calls == []
        assert at.front.outcomes == {}

    told(test)
