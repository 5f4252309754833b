"""One table of cases for every tempo: what memory answers is what Redis has to answer.

A case is a story: at a time, a call, and what it must say.  `MAKERS` lists the implementations.  In Redis
the scripts run as they ship but for `clock.lua`, in whose place they read the test's clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import pytest

from policies.facts import Limits
from policies.rate import Window
from policies.verdict import Allow, Deny, Reason
from tenants.tempo import Headroom, MemoryTempo, ScopeLimits, Tempo, TempoAsk


@dataclass
class Clock:
    ms: int = 1_000_000

    def __call__(self) -> int:
        return self.ms


@asynccontextmanager
async def memory(clock: Clock, request: pytest.FixtureRequest) -> AsyncIterator[Tempo]:
    yield MemoryTempo(clock)


@asynccontextmanager
async def redis(clock: Clock, request: pytest.FixtureRequest) -> AsyncIterator[Tempo]:
    from tests.tenants.redis_kit import shared

    async with shared(request.getfixturevalue("valkey_server"), clock) as tempo:
        yield tempo


Maker = Callable[[Clock, pytest.FixtureRequest], AbstractAsyncContextManager[Tempo]]
MAKERS: tuple[object, ...] = (
    pytest.param(memory, id="memory"),
    pytest.param(redis, id="redis", marks=pytest.mark.slow),
)

NARROW = ScopeLimits("user", '["acme","idp","alice"]', Limits(rpm=2, output_tpm=100, concurrent=2))
WIDE = ScopeLimits("tenant", "acme", Limits(rpm=60, input_tpm=600, output_tpm=600, concurrent=3))
OTHER = ScopeLimits("user", '["acme","idp","bob"]', NARROW.limits)
BOTH = (NARROW, WIDE)

Step = tuple[int, tuple[object, ...], object]
"""Milliseconds to let pass, the call, what it answers (None: do not look)."""


def admit(
    request_id: str, scopes: tuple[ScopeLimits, ...] = BOTH, inp: int = 10, out: int = 20
) -> tuple[object, ...]:
    return "admit", TempoAsk(request_id, "acme", scopes, inp, out)


def rooms(requests: tuple[int, int, int], tokens: tuple[int, int, int]) -> Headroom:
    return Headroom(Window(*requests), Window(*tokens))


LOOK = ("headroom", "acme", BOTH)
UNTOUCHED = rooms((2, 2, 0), (100, 100, 0))

STORIES: dict[str, list[Step]] = {
    "taking shows what is left": [
        (0, admit("a"), Allow(rooms((2, 1, 30_000), (100, 80, 12_000)))),
        (30_000, LOOK, UNTOUCHED),
    ],
    "the same request is taken once": [
        (0, admit("a"), None),
        (0, admit("a"), Allow(rooms((2, 1, 30_000), (100, 80, 12_000)))),
    ],
    "and its answer is the first one": [
        (0, admit("a"), Allow(rooms((2, 1, 30_000), (100, 80, 12_000)))),
        (9_000, admit("b"), Allow(rooms((2, 0, 51_000), (100, 75, 15_000)))),
        (1, admit("a"), Allow(rooms((2, 1, 30_000), (100, 80, 12_000)))),
    ],
    "a refusal names the scope that waits longest and takes nothing": [
        (0, admit("a"), None),
        (0, ("release", "a", 20), None),
        (0, admit("b"), None),
        (0, ("release", "b", 20), None),
        (
            0,
            admit("c"),
            Deny(Reason.RATE_REQUESTS, 30_000, 2, 1, "user", limit_name="rpm"),
        ),
        (0, ("headroom", "acme", (WIDE,)), rooms((60, 58, 2_000), (600, 560, 4_000))),
        (29_999, admit("c"), Deny(Reason.RATE_REQUESTS, 1, 2, 1, "user", limit_name="rpm")),
        (1, admit("c"), Allow(rooms((2, 0, 60_000), (100, 80, 12_000)))),
    ],
    "what was not used comes back once": [
        (0, admit("a", out=100), Allow(rooms((2, 1, 30_000), (100, 0, 60_000)))),
        (0, ("release", "a", 25), None),
        (0, LOOK, rooms((2, 1, 30_000), (100, 75, 15_000))),
        (0, ("release", "a", 0), None),
        (0, ("refund", "a"), None),
        (0, LOOK, rooms((2, 1, 30_000), (100, 75, 15_000))),
    ],
    "more used than taken costs nothing more": [
        (0, admit("a"), None),
        (0, ("release", "a", 90), None),
        (0, LOOK, rooms((2, 1, 30_000), (100, 80, 12_000))),
    ],
    "what comes back fills no bucket above its brim": [
        (0, admit("a", out=100), None),
        (59_000, ("release", "a", 10), None),
        (0, LOOK, UNTOUCHED),
    ],
    "what comes back to a plan that was raised meanwhile": [
        (0, admit("a", (NARROW,), out=100), None),
        (0, ("release", "a", 40), None),
        (
            0,
            ("headroom", "acme", (ScopeLimits("user", NARROW.id, Limits(output_tpm=200)),)),
            Headroom(None, Window(200, 60, 42_000)),
        ),
    ],
    "what comes back to a plan that was raised meanwhile is no more than its brim": [
        (0, admit("a", (NARROW,), out=100), None),
        (59_000, ("release", "a", 0), None),
        (
            0,
            ("headroom", "acme", (ScopeLimits("user", NARROW.id, Limits(output_tpm=200)),)),
            Headroom(None, Window(200, 100, 30_000)),
        ),
    ],
    "a plan that was lowered meanwhile cuts at once": [
        (0, admit("a", (NARROW,), out=20), None),
        (
            0,
            ("headroom", "acme", (ScopeLimits("user", NARROW.id, Limits(output_tpm=50)),)),
            Headroom(None, Window(50, 50, 0)),
        ),
    ],
    "a minute fills a bucket to its brim and no further": [
        (0, admit("a"), None),
        (60_000, admit("b"), Allow(rooms((2, 1, 30_000), (100, 80, 12_000)))),
    ],
    "a refund undoes everything": [
        (0, admit("a"), None),
        (0, ("refund", "a"), None),
        (0, LOOK, UNTOUCHED),
        (0, ("refund", "a"), None),
        (0, LOOK, UNTOUCHED),
    ],
    "seats are leases at every scope": [
        (0, admit("a", (WIDE,)), None),
        (0, admit("b", (WIDE,)), None),
        (0, admit("c"), None),
        (0, admit("d"), Deny(Reason.CONCURRENCY, 1000, 3, 1, "tenant", limit_name="concurrent")),
        (0, ("release", "b", 0), None),
        (0, admit("d"), Allow(rooms((2, 0, 60_000), (100, 60, 24_000)))),
    ],
    "a lease lapses unless it is renewed": [
        (0, admit("a"), None),
        (0, admit("b"), None),
        (40_000, ("renew", ("a", "never")), ("never",)),
        (20_000, ("renew", ("a", "b")), ("b",)),
        (0, ("release", "b", 0), None),
        (59_999, ("renew", ("a",)), ()),
        (60_000, ("renew", ("a",)), ("a",)),
    ],
    "a lapsed seat is free": [
        (0, admit("a", (NARROW,)), None),
        (0, admit("b", (NARROW,)), None),
        (
            59_999,
            admit("c", (NARROW,)),
            Deny(Reason.CONCURRENCY, 1000, 2, 1, "user", limit_name="concurrent"),
        ),
        (1, admit("c", (NARROW,)), Allow(rooms((2, 1, 30_000), (100, 80, 12_000)))),
    ],
    "users do not share": [
        (0, admit("a", (NARROW,), out=100), None),
        (0, admit("b", (OTHER,), out=100), Allow(rooms((2, 1, 30_000), (100, 0, 60_000)))),
    ],
    "a plan lowered meanwhile can never fit": [
        (
            0,
            admit("a", (NARROW,), out=101),
            Deny(Reason.NEVER_FITS, None, 100, 101, "user", limit_name="output_tpm"),
        ),
        (
            0,
            admit("a", (ScopeLimits("user", "x", Limits(rpm=0)),)),
            Deny(Reason.NEVER_FITS, None, 0, 1, "user", limit_name="rpm"),
        ),
        (
            0,
            ("headroom", "acme", (ScopeLimits("user", "x", Limits(rpm=0)),)),
            Headroom(Window(0, 0, 0), None),
        ),
    ],
    "no limits, no windows": [
        (0, admit("a", ()), Allow(Headroom(None, None))),
        (0, ("release", "a", 5), None),
    ],
}


async def tell(tempo: Tempo, clock: Clock, story: list[Step]) -> None:
    for number, (wait_ms, (call, *arguments), expected) in enumerate(story):
        clock.ms += wait_ms
        said = await getattr(tempo, str(call))(*arguments)
        if expected is not None:
            assert said == expected, f"step {number}: {call} {arguments}"


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES.keys())
def test_story(maker: Maker, story: list[Step], request: pytest.FixtureRequest) -> None:
    async def test() -> None:
        clock = Clock()
        async with maker(clock, request) as tempo:
            await tell(tempo, clock, story)

    asyncio.run(test())
