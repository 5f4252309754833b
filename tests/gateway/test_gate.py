"""The gate: so many at work, the others in their order, and nobody lost on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from gateway.gate import STRANGER, Caller, Gate
from policies.shedding import TERMS, Rank

ACME, GLOBEX = Caller(Rank.WEIGHTED, "acme"), Caller(Rank.WEIGHTED, "globex")
NIGHTLY, ALARM = Caller(Rank.BACKFILL, "nightly"), Caller(Rank.RESERVED, "alarm")


class Played:
    """A gate for one at a time, a clock that a test moves on, and who has had a turn."""

    def __init__(self, **terms: float) -> None:
        self.now_ms = 0.0
        given = replace(TERMS, **{"at_work": 1, "oldest_each": 1000, **terms})  # type: ignore[arg-type]
        self.gate = Gate(lambda: self.now_ms, given)
        self.entered: list[str] = []

    async def come(self, name: str, who: Caller) -> asyncio.Task[None]:
        async def enter() -> None:
            await self.gate.enter(name, who)
            self.entered.append(name)

        task = asyncio.create_task(enter())
        await asyncio.sleep(0)
        return task

    async def leave(self, name: str) -> None:
        self.gate.leave(name)
        await asyncio.sleep(0)
        await asyncio.sleep(0)


def play(scene: Callable[[Played], Awaitable[None]], **terms: float) -> Played:
    played = Played(**terms)

    async def run() -> None:
        await scene(played)
        assert (played.gate.waiting, played.gate.at_work) == (0, 0)

    asyncio.run(run())
    return played


def test_turns_go_by_rank_then_round_the_tenants_then_in_order() -> None:
    async def scene(played: Played) -> None:
        await played.come("first", ACME)
        for name, who in (
            ("stranger", STRANGER),
            ("batch", NIGHTLY),
            *((f"acme{n}", ACME) for n in range(3)),
            ("globex", GLOBEX),
            ("alarm", ALARM),
        ):
            await played.come(name, who)
        assert played.gate.waiting == 7
        for _ in range(8):
            await played.leave(played.entered[-1])

    order = ["first", "alarm", "acme0", "globex", "acme1", "acme2", "batch", "stranger"]
    assert play(scene).entered == order


def test_whoever_waited_longest_has_a_turn_now_and_then() -> None:
    async def scene(played: Played) -> None:
        await played.come("first", ACME)
        await played.come("stranger", STRANGER)
        played.now_ms += 5
        for n in range(4):
            await played.come(f"acme{n}", ACME)
        for _ in range(6):
            await played.leave(played.entered[-1])

    assert play(scene, oldest_each=3).entered.index("stranger") == 3


def test_who_gives_up_leaves_no_place_taken() -> None:
    async def scene(played: Played) -> None:
        await played.come("first", ACME)
        gone, stays = await played.come("gone", ACME), await played.come("stays", ACME)
        gone.cancel()
        await asyncio.sleep(0)
        assert played.gate.waiting == 1
        await played.leave("first")
        await stays
        last = await played.come("last", ACME)
        played.gate.leave("stays")
        last.cancel()  # just as its turn has come
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    assert play(scene).entered == ["first", "stays"]


def test_who_is_cancelled_just_before_their_turn_is_passed_over() -> None:
    async def scene(played: Played) -> None:
        await played.come("first", ACME)
        gone, stays = await played.come("gone", ACME), await played.come("stays", ACME)
        gone.cancel()
        played.gate.leave("first")  # in the same turn of the loop
        await stays
        assert gone.cancelled()
        await played.leave("stays")

    assert play(scene).entered == ["first", "stays"]


def test_a_turn_is_over_by_itself() -> None:
    async def scene(played: Played) -> None:
        await played.come("stuck", ACME)
        waiting = await played.come("next", ACME)
        assert played.gate.holds("stuck")
        played.now_ms += TERMS.turn_ms
        assert not played.gate.holds("stuck")
        async with asyncio.timeout(5):
            await waiting
        played.now_ms += TERMS.turn_ms  # and where nobody waits for it
        await played.come("last", ACME)
        await played.leave("last")

    assert play(scene).entered == ["stuck", "next", "last"]


def test_a_turn_ends_sooner_where_that_is_said_and_later_again() -> None:
    async def scene(played: Played) -> None:
        await played.come("first", ACME)
        played.gate.ends("first", 20.0)
        played.now_ms += 19
        played.gate.ends("first")
        played.now_ms += 19
        assert played.gate.holds("first")
        played.gate.ends("first", 20.0)
        played.now_ms += 20
        assert not played.gate.holds("first")
        await played.come("next", ACME)
        played.gate.ends("first")  # it has none, and gets none by this
        await played.leave("next")

    assert play(scene).entered == ["first", "next"]


def test_a_body_that_drips_keeps_its_turn_no_longer_than_another() -> None:
    async def scene(played: Played) -> None:
        await played.come("drips", ACME)
        for _ in range(int(TERMS.turn_ms) // 10):
            assert played.gate.holds("drips")
            played.gate.ends("drips", 20.0)
            played.now_ms += 10
            played.gate.ends("drips")
        assert not played.gate.holds("drips")
        await played.come("next", ACME)
        await played.leave("next")

    assert play(scene).entered == ["drips", "next"]


def test_what_ends_waits_for_none_and_keeps_others_waiting() -> None:
    async def scene(played: Played) -> None:
        await played.come("first", ACME)
        with played.gate.finishing("other"):
            waiting = await played.come("next", ACME)
            await played.leave("first")
            assert not waiting.done()
        await waiting
        with played.gate.finishing("next"):  # has one already
            pass
        assert played.gate.at_work == 0

    play(scene)


def test_a_long_wait_shuts_out_more_of_the_same_and_nobody_else() -> None:
    async def scene(played: Played) -> None:
        await played.come("first", ACME)
        await played.come("waits", ACME)
        assert played.gate.open_to(ACME)
        played.now_ms += TERMS.high_ms + 1
        assert not played.gate.open_to(ACME)
        assert played.gate.open_to(GLOBEX)
        assert played.gate.open_to(NIGHTLY)
        assert played.gate.open_to(STRANGER)
        await played.leave("first")
        assert played.gate.open_to(ACME)
        await played.leave("waits")

    play(scene)


def test_leaving_twice_is_leaving_once() -> None:
    async def scene(played: Played) -> None:
        await played.come("first", ACME)
        second, third = await played.come("second", ACME), await played.come("third", ACME)
        await played.leave("first")
        await played.leave("first")
        assert second.done()
        assert not third.done()
        await played.leave("second")
        await played.leave("third")

    play(scene)
