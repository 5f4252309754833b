"""One table of cases for used proofs in memory and in Redis.  The script runs as it ships, by the test's clock."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from itertools import count

import pytest

from policies.outage import Trouble
from tenants.tempo.link import Failed
from tenants.tempo.proofs import MemoryProofs, NoRoom, Proofs
from tests.servers_valkey import Valkey
from tests.tenants import redis_kit

KEPT_MS, OF_TENANT = 95_000, 4
START_MS = 1_800_000_000_000


@dataclass
class World:
    proofs: Proofs
    now_ms: int = START_MS

    async def first(self, digest: str, tenant: str = "acme") -> bool | str:
        try:
            return await self.proofs.first(tenant, digest)
        except NoRoom:
            return "no room"


@asynccontextmanager
async def memory(_: pytest.FixtureRequest) -> AsyncIterator[World]:
    world: World
    proofs = MemoryProofs(lambda: world.now_ms, KEPT_MS, of_tenant_max=OF_TENANT)
    world = World(proofs)
    yield world


@asynccontextmanager
async def redis(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    from tenants.tempo.proofs_redis import RedisProofs

    world: World
    server: Valkey = request.getfixturevalue("valkey_server")
    link = redis_kit.ClockedLink(
        server.url, deadlines=redis_kit.PATIENT, scripts=redis_kit.by_the_tests_clock()
    )
    link.clock = lambda: world.now_ms
    calls = count()
    try:
        world = World(RedisProofs(link, lambda: f"call-{next(calls)}", KEPT_MS, OF_TENANT))
        yield world
    finally:
        await link.aclose()


Maker = Callable[[pytest.FixtureRequest], AbstractAsyncContextManager[World]]
Story = Callable[[World], Awaitable[None]]
MAKERS = pytest.mark.parametrize(
    "maker",
    (pytest.param(memory, id="memory"), pytest.param(redis, id="redis", marks=pytest.mark.slow)),
)


def lived(maker: Maker, request: pytest.FixtureRequest, story: Story) -> None:
    async def run() -> None:
        async with maker(request) as world:
            await story(world)

    asyncio.run(run())


@MAKERS
def test_once_and_not_again_until_it_is_forgotten(
    maker: Maker, request: pytest.FixtureRequest
) -> None:
    async def story(world: World) -> None:
        assert await world.first("a") is True
        assert await world.first("a") is False
        world.now_ms += KEPT_MS - 1
        assert await world.first("a") is False
        world.now_ms += 1
        assert await world.first("a") is True

    lived(maker, request, story)


@MAKERS
def test_each_is_by_itself_and_each_tenants_own(
    maker: Maker, request: pytest.FixtureRequest
) -> None:
    async def story(world: World) -> None:
        for tenant in ("acme", "globex", "", "a{b}", "a:p"):
            assert await world.first("a", tenant) is True
            assert await world.first("b", tenant) is True
            assert await world.first("a", tenant) is False

    lived(maker, request, story)


@MAKERS
def test_where_there_is_no_room_nothing_is_forgotten_for_it(
    maker: Maker, request: pytest.FixtureRequest
) -> None:
    async def story(world: World) -> None:
        for at in range(OF_TENANT):
            assert await world.first(f"{at}") is True
            world.now_ms += 1000
        assert await world.first("more") == "no room"
        assert await world.first("0") is False
        assert await world.first("0", "globex") is True
        world.now_ms = START_MS + KEPT_MS
        assert await world.first("more") is True
        assert await world.first("yet more") == "no room"

    lived(maker, request, story)


@MAKERS
def test_of_many_at_once_one_is_first(maker: Maker, request: pytest.FixtureRequest) -> None:
    async def story(world: World) -> None:
        said = await asyncio.gather(*(world.first("a") for _ in range(20)))
        assert sorted(map(bool, said)) == [False] * 19 + [True]

    lived(maker, request, story)


@pytest.mark.slow
def test_both_say_the_same_of_anything(request: pytest.FixtureRequest) -> None:
    async def story() -> None:
        rng = random.Random(9)
        async with memory(request) as one, redis(request) as other:
            for _ in range(600):
                one.now_ms = other.now_ms = one.now_ms + rng.choice((0, 1, 5_000, KEPT_MS))
                tenant, digest = rng.choice(("acme", "globex")), f"{rng.randrange(7)}"
                assert await one.first(digest, tenant) == await other.first(digest, tenant)

    asyncio.run(story())


# --- memory's own


def test_in_all_there_is_a_bound_and_at_rest_nothing() -> None:
    async def story() -> None:
        now_ms = 0
        proofs = MemoryProofs(lambda: now_ms, 10, of_tenant_max=2, in_all_max=3)
        for tenant, digest in (("a", "1"), ("a", "2"), ("b", "1")):
            assert await proofs.first(tenant, digest)
        with pytest.raises(NoRoom):
            await proofs.first("c", "1")
        now_ms = 10
        assert await proofs.first("c", "1")
        assert len(proofs) == 1
        assert set(proofs._of_tenant) == {"c"}

    asyncio.run(story())


# --- Redis's own


@pytest.mark.slow
def test_what_is_sent_again_is_still_the_first(valkey_server: Valkey) -> None:
    """The link sends a call again that it has no answer to; that is no replay."""
    from tenants.tempo.link import Link
    from tenants.tempo.proofs_redis import RedisProofs

    def named(call: str) -> Callable[[], str]:
        return lambda: call

    async def story() -> None:
        link = Link(valkey_server.url, deadlines=redis_kit.PATIENT)
        try:
            same, other = (RedisProofs(link, named(call), KEPT_MS) for call in ("x", "y"))
            assert [await same.first("acme", "a"), await same.first("acme", "a")] == [True, True]
            assert await other.first("acme", "a") is False
            assert all(0 < ttl <= KEPT_MS for ttl in valkey_server.lives().values())
            slots = {key.partition("}")[0] for key in valkey_server.lives()}
            assert slots == {"{t:acme"}
        finally:
            await link.aclose()

    asyncio.run(story())


@pytest.mark.slow
def test_a_lost_redis_says_nothing_and_neither_does_a_strange_one(valkey_server: Valkey) -> None:
    from tenants.tempo.link import Deadlines, Link
    from tenants.tempo.proofs_redis import RedisProofs

    class Strange(Link):
        said: list[str]

        async def run(self, *_: object, **__: object) -> list[str]:
            return self.said

    async def story() -> None:
        away = Link(f"{valkey_server.url}.not", deadlines=Deadlines(attempts=1))
        with pytest.raises(Failed):
            await RedisProofs(away, str, KEPT_MS).first("acme", "a")
        await away.aclose()
        strange = Strange(valkey_server.url)
        for said in ([], ["1"], ["first", "first"], ["FIRST"]):
            strange.said = said
            with pytest.raises(Failed) as caught:
                await RedisProofs(strange, str, KEPT_MS).first("acme", "a")
            assert caught.value.trouble is Trouble.WRONG
        await strange.aclose()

    asyncio.run(story())
