"""One table of cases for tills in memory and in Redis, and whatever else is asked of both at random.

The scripts run as they ship.  Time is let pass by what is left of each key's life, since the server counts
it by its own clock; lives are long enough that no pause of the machine matters.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

import pytest

from policies.till import NANO_USD_BELOW, Seen
from tenants.places import Place
from tenants.till import DrawAsk, Dry, Lives, MemoryTills, Tills, Told
from tests.servers_valkey import Valkey

LIVES = Lives(mark_ms=10**9, till_ms=6 * 10**9, dry_ms=10**8)
TENANT, PROJECT = Place("tenant", "acme"), Place("project", '["acme","search"]')
BOTH = (TENANT, PROJECT)


@dataclass
class World:
    """Tills, and how to let time pass for them."""

    tills: Tills
    pass_ms: Callable[[int], None]


@dataclass
class Clock:
    ms: int = 0
    passed: list[Callable[[int], None]] = field(default_factory=list)

    def __call__(self) -> int:
        return self.ms


@asynccontextmanager
async def memory(request: pytest.FixtureRequest | None = None) -> AsyncIterator[World]:
    clock = Clock()

    def pass_ms(ms: int) -> None:
        clock.ms += ms

    yield World(MemoryTills(clock, LIVES), pass_ms)


@asynccontextmanager
async def in_redis(server: Valkey) -> AsyncIterator[World]:
    from tenants.tempo.link import Link
    from tenants.tempo.scripts import Scripts
    from tenants.till.redis import RedisTills
    from tests.tenants import redis_kit

    link = Link(server.url, deadlines=redis_kit.PATIENT, scripts=Scripts(redis_kit.source))

    def pass_ms(ms: int) -> None:
        for key, ttl_ms in server.lives().items():
            server.say("PEXPIRE", key, str(ttl_ms - ms))  # what is not above 0 deletes it

    try:
        yield World(RedisTills(link, redis_kit.plain, LIVES), pass_ms)
    finally:
        await link.aclose()


def redis(request: pytest.FixtureRequest) -> AbstractAsyncContextManager[World]:
    return in_redis(request.getfixturevalue("valkey_server"))


Maker = Callable[[pytest.FixtureRequest], AbstractAsyncContextManager[World]]
MAKERS: tuple[object, ...] = (
    pytest.param(memory, id="memory"),
    pytest.param(redis, id="redis", marks=pytest.mark.slow),
)


def draw(
    request_id: str, nano_usd: int, least: int | None = None, places: tuple[Place, ...] = (TENANT,)
) -> tuple[object, ...]:
    of = DrawAsk(request_id, "acme", places, nano_usd, nano_usd if least is None else least)
    return "draw", of


def back(request_id: str, places: tuple[Place, ...] = (TENANT,)) -> tuple[object, ...]:
    return "give_back", DrawAsk(request_id, "acme", places, 0, 0)


def fill(
    epoch: int, issued: int, since: int = 0, refused: int = 0, place: Place = TENANT
) -> tuple[object, ...]:
    return "fill", "acme", (Told(place, epoch, since, issued, refused),)


def found(*seen: tuple[int, int, int]) -> tuple[Seen, ...]:
    return tuple(Seen(*each) for each in seen)


Step = tuple[int, tuple[object, ...], object]
"""Milliseconds to let pass, the call, what it answers."""

STORIES: dict[str, list[Step]] = {
    "what is not there cannot be drawn": [(0, draw("a", 5), found((0, 0, 0)))],
    "what was filled is drawn until too little is left": [
        (0, fill(7, 10), None),
        (0, draw("a", 4), found((7, 10, 4))),
        (0, draw("b", 4), found((7, 10, 4))),
        (0, draw("c", 4), found((7, 10, 0))),
        (0, draw("d", 2), found((7, 10, 2))),
        (0, draw("e", 1), found((7, 10, 0))),
    ],
    "the same request draws once and hears the first answer": [
        (0, fill(7, 10), None),
        (0, draw("a", 6), found((7, 10, 6))),
        (0, draw("a", 6), found((7, 10, 6))),
        (0, draw("b", 4), found((7, 10, 4))),
        (0, draw("c", 1), found((7, 10, 0))),
        (0, fill(7, 20, 10), None),
        (0, draw("c", 1), found((7, 10, 0))),
        (0, draw("d", 10), found((7, 20, 10))),
    ],
    "what was not held comes back once": [
        (0, fill(7, 10), None),
        (0, draw("a", 4), found((7, 10, 4))),
        (0, draw("b", 5), found((7, 10, 5))),
        (0, back("a"), None),
        (0, back("a"), None),
        (0, draw("c", 6), found((7, 10, 0))),
        (0, draw("d", 5), found((7, 10, 5))),
    ],
    "a draw that arrives after its return takes nothing": [
        (0, fill(7, 10), None),
        (0, back("a"), None),
        (0, draw("a", 6), found((0, 0, 0))),
        (0, draw("b", 10), found((7, 10, 10))),
    ],
    "nothing comes back that was not drawn": [
        (0, fill(7, 10), None),
        (0, draw("a", 11), found((7, 10, 0))),
        (0, back("a"), None),
        (0, draw("b", 10), found((7, 10, 10))),
        (0, draw("c", 1), found((7, 10, 0))),
    ],
    "nor into another epoch": [
        (0, fill(7, 10), None),
        (0, draw("a", 10), found((7, 10, 10))),
        (0, fill(8, 10), None),
        (0, draw("b", 10), found((8, 10, 10))),
        (0, back("a"), None),
        (0, draw("c", 1), found((8, 10, 0))),
    ],
    "a word that is repeated fills once": [
        (0, fill(7, 10), None),
        (0, fill(7, 10), None),
        (0, draw("a", 10), found((7, 10, 10))),
        (0, fill(7, 10), None),
        (0, draw("b", 1), found((7, 10, 0))),
    ],
    "words that come in another order come to the same": [
        (0, fill(7, 10), None),
        (0, fill(7, 30, 20), None),
        (0, fill(7, 20, 10), None),
        (0, draw("a", 30), found((7, 30, 30))),
    ],
    "a later epoch takes the place of an earlier one and never the reverse": [
        (0, fill(7, 10), None),
        (0, fill(9, 4), None),
        (0, fill(8, 100), None),
        (0, fill(7, 20, 10), None),
        (0, draw("a", 5), found((9, 4, 0))),
        (0, draw("b", 4), found((9, 4, 4))),
    ],
    "a till that was lost begins with what is new alone": [
        (0, fill(7, 30, 20), None),
        (0, draw("a", 11), found((7, 30, 0))),
        (0, draw("b", 10), found((7, 30, 10))),
    ],
    "an epoch without anything is dry of the earlier one's": [
        (0, fill(7, 10), None),
        (0, fill(8, 0), None),
        (0, draw("a", 1), found((8, 0, 0))),
    ],
    "two tills are drawn from each by itself": [
        (0, fill(7, 10), None),
        (0, draw("a", 4, places=BOTH), found((7, 10, 4), (0, 0, 0))),
        (0, fill(9, 4, place=PROJECT), None),
        (0, draw("b", 4, places=BOTH), found((7, 10, 4), (9, 4, 4))),
        (0, back("a", BOTH), None),
        (0, back("b", BOTH), None),
        (0, draw("c", 10, places=BOTH), found((7, 10, 10), (9, 4, 0))),
    ],
    "what was refused is refused until that is forgotten": [
        (0, fill(7, 2), None),
        (0, fill(7, 2, refused=5), None),
        (0, draw("a", 9, 5), Dry(TENANT)),
        (0, draw("a", 9, 6), Dry(TENANT)),
        (10**8 // 2, draw("a", 9), Dry(TENANT)),
        (10**8, draw("a", 9), found((7, 2, 0))),
    ],
    "and what is less is not": [
        (0, fill(7, 4, refused=5), None),
        (0, draw("a", 9, 4), found((7, 4, 0))),
        (0, draw("b", 4), found((7, 4, 4))),
    ],
    "the least that was refused counts, and for its own time": [
        (0, fill(7, 0, refused=5), None),
        (10**8 // 2, fill(7, 0, refused=8), None),
        (0, draw("a", 6), Dry(TENANT)),
        (10**8 * 3 // 4, draw("b", 9), found((7, 0, 0))),
        (0, fill(7, 0, refused=8), None),
        (0, fill(7, 0, refused=3), None),
        (0, draw("c", 3), Dry(TENANT)),
    ],
    "one that is dry keeps the other as it was": [
        (0, fill(7, 10), None),
        (0, fill(9, 0, refused=5, place=PROJECT), None),
        (0, draw("a", 5, places=BOTH), Dry(PROJECT)),
        (0, draw("b", 10), found((7, 10, 10))),
    ],
    "what is filled is dry no more": [
        (0, fill(7, 0, refused=5), None),
        (0, fill(7, 6), None),
        (0, draw("a", 6), found((7, 6, 6))),
    ],
    "a refusal of before a fill is not believed": [
        (0, fill(7, 6), None),
        (0, fill(7, 0, refused=5), None),
        (0, fill(6, 90, refused=5), None),
        (0, draw("a", 6), found((7, 6, 6))),
    ],
    "a till that is not filled goes away, and drawing keeps it not": [
        (0, fill(7, 10), None),
        (4 * 10**9, draw("a", 4), found((7, 10, 4))),
        (3 * 10**9, draw("b", 4), found((0, 0, 0))),
    ],
    "21 amounts near 2^53 are exact": [
        (0, fill(NANO_USD_BELOW - 1, NANO_USD_BELOW - 2), None),
        (0, draw("a", NANO_USD_BELOW - 5), found((NANO_USD_BELOW - 1, NANO_USD_BELOW - 2, NANO_USD_BELOW - 5))),
        (0, draw("b", 4), found((NANO_USD_BELOW - 1, NANO_USD_BELOW - 2, 0))),
        (0, draw("c", 3), found((NANO_USD_BELOW - 1, NANO_USD_BELOW - 2, 3))),
    ],
}  # fmt: skip


async def tell(world: World, story: list[Step]) -> None:
    for at, (ms, (name, *args), expected) in enumerate(story):
        if ms:
            world.pass_ms(ms)
        assert await getattr(world.tills, str(name))(*args) == expected, f"step {at}"


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES.keys())
def test_every_till_tells_the_same_story(
    story: list[Step], make: Maker, request: pytest.FixtureRequest
) -> None:
    async def test() -> None:
        async with make(request) as world:
            await tell(world, story)

    asyncio.run(test())


def at_random(server: Valkey, seeds: range) -> None:
    """Whatever is asked of both: the same answers, and the same state."""

    async def test(seed: int) -> None:
        dice = random.Random(seed)
        server.say("FLUSHALL")
        async with memory() as twin, in_redis(server) as world:
            for step in range(60):
                number = dice.randrange(12)
                name, places = f"r{number}", ((TENANT,), BOTH, BOTH[::-1])[number % 3]
                match dice.randrange(6):
                    case 0 | 1:
                        amount = dice.choice((0, 1, 3, 4, 10))
                        call = draw(name, amount, dice.randrange(amount + 1), places)
                    case 2:
                        call = back(name, places)
                    case 3 | 4:
                        since = dice.randrange(20)
                        issued = since + dice.choice((0, 0, 5, 10))
                        call = fill(
                            dice.randrange(5), issued, since, dice.choice((0, 0, 3)), places[0]
                        )
                    case _:
                        ms = dice.choice((10**8 * 3 // 4, 10**9 * 3 // 4, 5 * 10**9))
                        twin.pass_ms(ms)
                        world.pass_ms(ms)
                        continue
                kind, *args = call
                answers = [await getattr(each.tills, str(kind))(*args) for each in (twin, world)]
                assert answers[0] == answers[1], f"seed {seed}, step {step}: {call}"

    for seed in seeds:
        asyncio.run(test(seed))


@pytest.mark.slow
def test_they_agree_on_whatever_is_asked(valkey_server: Valkey) -> None:
    at_random(valkey_server, range(40))
