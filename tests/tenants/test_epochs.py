"""What one gateway withdraws, another refuses within the bound: with a bell, without one, with a broken one.

Two directories over one database stand for two gateways; time is the test's, so the bounds are counted in
looks and milliseconds, not measured.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from policies.facts import Budget, Standing
from policies.verdict import Deny, Reason
from tenants.directory import BudgetTarget, Change, ChangeKind, Directory
from tenants.documents import Documents
from tenants.epochs import ALONE_MS, ANYWAY_MS, LOOK_S, STALE_MS, Bell, Epochs, Unheard
from tenants.store import Store, StoreUnavailable
from tenants.tempo.bell import KEY as BELL_KEY
from tenants.tempo.bell import RedisBell
from tenants.tempo.link import Deadlines, Link
from tests.servers_postgres import database, needs_postgres
from tests.servers_valkey import Valkey
from tests.tenants.house import folder, run
from tests.tenants.redis_kit import PATIENT
from tests.tenants.test_directory import BY, CONFIG, KEY, NOW_S, TOKEN, store_in, who

LOOK_MS = int(LOOK_S * 1000)


class Chime:
    """A bell in this process, that may fail."""

    def __init__(self) -> None:
        self.word: str | None = None
        self.rung = 0
        self.broken = False

    async def ring(self) -> None:
        self._ask()
        self.rung += 1
        self.word = str(self.rung)

    async def heard(self) -> str | None:
        self._ask()
        return self.word

    def _ask(self) -> None:
        if self.broken:
            raise Unheard


@dataclass
class Counted:
    """How often SQL was read."""

    store: Store
    reads: int = 0
    down: bool = False

    async def read(self, op: Callable[..., object]) -> object:
        self.reads += 1
        if self.down:
            raise StoreUnavailable("down")
        return await self.store.read(op)

    async def write(self, op: Callable[..., object]) -> object:
        return await self.store.write(op)


@dataclass
class Gateway:
    directory: Directory
    epochs: Epochs
    store: Counted
    told: list[Change]

    @property
    def refuses(self) -> bool:
        token: dict[str, Any] = TOKEN
        return self.directory.is_revoked(**token) is not None


@dataclass
class Fleet:
    ms: int
    gateways: list[Gateway]

    def __call__(self) -> int:
        return self.ms

    async def pass_time(self, ms: int) -> None:
        """Each gateway looks as often as it does."""
        for _ in range(ms // LOOK_MS):
            self.ms += LOOK_MS
            for each in self.gateways:
                await each.epochs.look()


@asynccontextmanager
async def fleet(
    path: Path, bells: Sequence[Bell | None], stores: Sequence[Store] = ()
) -> AsyncIterator[Fleet]:
    """`stores`: one for each, of one database; without any, they share one of a file."""
    with ExitStack() as stack:
        shared = [] if stores else [stack.enter_context(store_in(path / "x.db"))] * len(bells)
        made = Fleet(0, [])
        for bell, store in zip(bells, stores or shared, strict=True):
            epochs = Epochs(made, bell)
            counted = Counted(store)
            directory = Directory(
                CONFIG,
                counted,  # type: ignore[arg-type]  # the two calls that it makes
                clock_s=lambda: NOW_S,
                epochs=epochs,
            )
            await directory.load()
            epochs.follow(directory.refresh)
            told: list[Change] = []
            directory.subscribe(told.append)
            made.gateways.append(Gateway(directory, epochs, counted, told))
            await epochs.look()
        yield made


def among(
    bells: Callable[[], Sequence[Bell | None]], test: Callable[[Fleet], Awaitable[None]]
) -> None:
    async def go() -> None:
        with folder() as path:
            async with fleet(path, bells()) as made:
                await test(made)

    run(go)


def chimes() -> Sequence[Bell | None]:
    return [Chime()] * 2


def alone() -> Sequence[Bell | None]:
    return [None, None]


@pytest.mark.parametrize(
    ("bells", "bound_ms"),
    ((chimes, 2 * LOOK_MS), (alone, ALONE_MS)),
    ids=("with a bell", "without"),
)
def test_a_revocation_is_heard_within_the_bound_and_told_once(
    bells: Callable[[], Sequence[Bell | None]], bound_ms: int
) -> None:
    async def test(at: Fleet) -> None:
        first, second = at.gateways
        await first.directory.revoke_token("jti-1", **BY)
        assert first.refuses
        assert not second.refuses
        await at.pass_time(bound_ms)
        assert second.refuses
        assert [change.kind for change in second.told] == [ChangeKind.LEARNED]
        assert [change.kind for change in first.told] == [ChangeKind.TOKEN_REVOKED]
        await at.pass_time(2 * ANYWAY_MS)
        assert len(second.told) == len(first.told) == 1

    among(bells, test)


def test_every_kind_of_change_is_learned_both_ways() -> None:
    async def test(at: Fleet) -> None:
        first, second = at.gateways
        for here, there, name in ((first, second, "a"), (second, first, "b")):
            key = replace(KEY, id=name, digest=name.encode() * 32)
            budget = BudgetTarget("acme", "project", f"search{name}")
            await here.directory.add_key(key, **BY)
            await here.directory.set_budget(budget, Budget(7), **BY)
            await here.directory.suspend("globex", **BY)
            await at.pass_time(2 * LOOK_MS)
            assert await there.directory.find(key.digest) == key
            assert there.directory.budgets("acme")[budget] == Budget(7)
            assert there.directory.standing(who("globex")) == Deny(Reason.TENANT_SUSPENDED)
            await there.directory.resume("globex", **BY)
            await there.directory.revoke_key(key.id, **BY)
            await there.directory.set_budget(budget, None, **BY)
            await at.pass_time(2 * LOOK_MS)
            assert isinstance(here.directory.standing(who("globex")), Standing)
            found = here.directory.key(key.id)
            assert found is not None
            assert found.revoked
            assert budget not in here.directory.budgets("acme")

    among(chimes, test)


def test_a_bell_that_only_the_writer_cannot_ring_is_made_up_for() -> None:
    async def test(at: Fleet) -> None:
        first, second = at.gateways
        chime = first.epochs._bell
        assert isinstance(chime, Chime)
        second.epochs._bell = Chime()  # hears nothing of the other
        await first.directory.revoke_token("jti-1", **BY)
        await at.pass_time(ANYWAY_MS)
        assert second.refuses

    among(chimes, test)


def test_a_broken_bell_is_rung_later_and_sql_is_asked_meanwhile() -> None:
    async def test(at: Fleet) -> None:
        first, second = at.gateways
        chime = first.epochs._bell
        assert isinstance(chime, Chime)
        chime.broken = True
        await first.directory.revoke_token("jti-1", **BY)
        await at.pass_time(ALONE_MS)
        assert second.refuses
        assert chime.rung == 0
        chime.broken = False
        await at.pass_time(LOOK_MS)
        assert chime.rung == 1

    among(chimes, test)


def test_while_nothing_changes_sql_is_left_alone() -> None:
    async def test(at: Fleet) -> None:
        before = [each.store.reads for each in at.gateways]
        await at.pass_time(60_000)
        reads = [each.store.reads - was for each, was in zip(at.gateways, before, strict=True)]
        assert reads == [60_000 // ANYWAY_MS] * 2

    among(chimes, test)


def test_who_cannot_know_allows_nobody() -> None:
    async def test(at: Fleet) -> None:
        first, second = at.gateways
        second.store.down = True
        await first.directory.revoke_token("jti-1", **BY)
        for _ in range(STALE_MS // LOOK_MS + ANYWAY_MS // LOOK_MS + 1):
            at.ms += LOOK_MS
            await first.epochs.look()
            with suppress(StoreUnavailable):
                await second.epochs.look()
        assert second.directory.standing(who()) == Deny(Reason.POLICY_STALE)
        assert isinstance(first.directory.standing(who()), Standing)
        second.store.down = False
        await at.pass_time(LOOK_MS)
        assert second.refuses
        assert isinstance(second.directory.standing(who()), Standing)

    among(alone, test)


def test_a_change_of_ours_is_never_undone_by_an_older_reading() -> None:
    """What was read before it was durable arrives after it was visible."""

    async def test(at: Fleet) -> None:
        first, second = at.gateways
        await second.directory.suspend("globex", **BY)
        read = first.store.read
        late: list[asyncio.Task[object]] = []

        async def slow(op: Callable[..., object]) -> object:
            said = await read(op)
            if isinstance(said, tuple) and not late:
                late.append(asyncio.current_task())  # type: ignore[arg-type]
                await first.directory.revoke_token("jti-1", **BY)
            return said

        first.store.read = slow  # type: ignore[method-assign]
        await first.directory.refresh()
        assert late
        assert first.refuses
        first.store.read = read  # type: ignore[method-assign]
        await first.directory.refresh()
        assert first.refuses
        assert first.directory.standing(who("globex")) == Deny(Reason.TENANT_SUSPENDED)

    among(alone, test)


async def both_change_at_once(at: Fleet) -> None:
    first, second = at.gateways
    await asyncio.gather(
        *(first.directory.revoke_token(f"a{each}", **BY) for each in range(20)),
        *(second.directory.revoke_token(f"b{each}", **BY) for each in range(20)),
        *(each.directory.refresh() for each in at.gateways for _ in range(10)),
    )
    await at.pass_time(2 * LOOK_MS)
    for each in at.gateways:
        for name in "ab":
            for number in range(20):
                token: dict[str, Any] = {**TOKEN, "token_id": f"{name}{number}"}
                assert each.directory.is_revoked(**token) == "token_revoked"


def test_two_that_change_at_once_both_end_up_with_both() -> None:
    among(chimes, both_change_at_once)


@pytest.mark.slow
@needs_postgres
def test_two_processes_stores_on_postgresql() -> None:
    """Each with a writer of its own, so that what is counted up first may commit last."""

    async def test() -> None:
        with database() as url, ExitStack() as stack:
            stores = [Store.open(url) for _ in range(2)]
            for store in stores:
                stack.callback(store.close)
            async with fleet(Path(), chimes(), stores) as at:
                await both_change_at_once(at)

    run(test)


def test_a_reloaded_configuration_survives_what_is_learned() -> None:
    async def test(at: Fleet) -> None:
        first, second = at.gateways
        fresh = replace(CONFIG, tenants={"acme": CONFIG.tenants["acme"]})
        second.directory.configure(fresh)
        await first.directory.revoke_token("jti-1", **BY)
        await at.pass_time(2 * LOOK_MS)
        assert second.refuses
        assert set(second.directory.tenants()) == {"acme"}

    among(chimes, test)


def test_lists_of_readers_ring_too() -> None:
    async def test() -> None:
        with folder() as path, store_in(path / "x.db") as store:
            rung: list[None] = []
            here, there = (
                Documents(
                    store,
                    monotonic_ns=lambda: 1,
                    wall_s=lambda: NOW_S,
                    changed=lambda: rung.append(None),
                )
                for _ in range(2)
            )
            await here.load()
            await there.load()
            assert rung == []
            await here.count_up()
            assert len(rung) == 1
            await there.confirm()
            assert len(rung) == 1  # hearing of it is no change of one's own
            assert there.snapshot().id == here.snapshot().id

    run(test)


@pytest.mark.slow
def test_the_bell_in_redis(valkey_server: Valkey) -> None:
    """Also when it is wiped: what it said once it never says again."""

    async def test() -> None:
        links = [Link(valkey_server.url, deadlines=PATIENT) for _ in range(2)]
        drawn = iter(range(100))
        bells = [RedisBell(link, lambda: str(next(drawn))) for link in links]
        async with aclosing(links[0]), aclosing(links[1]):
            with folder() as path:
                async with fleet(path, bells) as at:
                    await by_the_bell(at)

    async def by_the_bell(at: Fleet) -> None:
        first, second = at.gateways
        for withdrawn in (True, False, True):
            valkey_server.say("FLUSHALL")
            change = first.directory.suspend if withdrawn else first.directory.resume
            await change("globex", **BY)
            await at.pass_time(2 * LOOK_MS)
            standing = second.directory.standing(who("globex"))
            assert isinstance(standing, Deny) is withdrawn
            assert valkey_server.lives()[BELL_KEY] > 0

    run(test)


def test_a_bell_that_is_not_there() -> None:
    async def test() -> None:
        with folder() as path:
            link = Link(f"unix://{path}/nothing", deadlines=Deadlines(attempts=1))
            bell = RedisBell(link, lambda: "x")
            for call in (bell.ring, bell.heard):
                with pytest.raises(Unheard):
                    await call()
            await link.aclose()

    run(test)
