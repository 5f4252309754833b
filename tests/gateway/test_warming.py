"""What is registered is computed beforehand: once an executor and version, pinned, charged as cache write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from executor.contract import Cause, Ended, Purged, Submit
from executor.echo import EchoExecutor
from gateway.caching import CacheTerms
from gateway.caching_start import enforce
from gateway.cli.doctor import without_room
from gateway.metrics_registered import WarmthGauges
from gateway.warming import Warming, room_tokens
from tests.gateway.inhouse import Caller, Inhouse
from tests.gateway.registered_kit import DOCS, TMPLS, ask, do, register, said, sharing
from tests.gateway.test_line import lived


class Recording(EchoExecutor):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.submits: list[Submit] = []

    def turn(self, job: Submit):  # type: ignore[no-untyped-def] # noqa: ANN201 — as its base's
        self.submits.append(job)
        return super().turn(job)


def test_each_text_is_computed_once_a_version_and_again_for_another_executor(
    tmp_path: Path,
) -> None:
    echo = Recording()

    async def story(home: Inhouse) -> None:
        numbers = count(1)
        warming = Warming(lambda: f"req_warm{next(numbers)}")
        alice, admin = home.caller(), home.caller("acme/admin")
        id_ = await register(alice, "LEASE " * 20, **sharing("bob"))
        await admin.post(TMPLS, {"text": "BRIEF " * 20 + "\nFor {{who}}."})
        assert await warming.round(home.house) == 2
        assert await warming.round(home.house) == 0
        assert all(each.warm and each.workload == "batch" for each in echo.submits)
        for each in echo.submits:
            assert each.caching is not None
            assert each.caching.scopes[-1].until == len(each.prompt)
            assert all(scope.pinned for scope in each.caching.scopes)
        # Who reads it begins with the very tokens, under the very label.
        said(await ask(home.caller("acme/bob"), id_))
        warm, read = echo.submits[0], echo.submits[-1]
        assert read.prompt[: len(warm.prompt)] == warm.prompt
        assert warm.caching is not None
        assert read.caching is not None
        assert read.caching.scopes[0] == warm.caching.scopes[0]
        assert not read.warm
        used = await home.operator().get("/v1/admin/usage", "by=user&tenant=acme")
        rows = {row["user"]: row for row in used.json()["rows"]}
        assert rows["alice"]["cache_write_tokens"] == len(warm.prompt)
        assert rows["alice"]["input_tokens"] == 0
        await do(alice, "PUT", f"{DOCS}/{id_}/acl", {})
        assert await warming.round(home.house) == 1  # under its new version
        assert echo.submits[-1].caching != warm.caching
        await do(alice, "DELETE", f"{DOCS}/{id_}")
        assert await warming.round(home.house) == 0
        echo.fail()
        assert await warming.round(home.house) == 0
        echo.recover()

    lived(tmp_path, story, echo=echo)


def no_room(job: Submit) -> Ended | None:
    """As an executor that keeps nothing of what is registered says at once."""
    return Ended(request=0, cause=Cause.QUOTA) if job.warm else None


def test_what_finds_no_room_costs_nothing_and_waits_for_room_of_its_own_tenant(
    tmp_path: Path,
) -> None:
    echo = Recording(refuses=no_room)

    async def story(home: Inhouse) -> None:
        numbers = count(1)
        warming = Warming(lambda: f"req_warm{next(numbers)}")
        alice, carol = home.caller(), home.caller("globex/carol")
        await register(alice, "LEASE " * 20)
        other = await register(alice, "OTHER " * 20)
        theirs = await register(carol, "THEIRS " * 20)
        assert await warming.round(home.house) == 0
        asked = len(echo.submits)
        assert asked == 3
        used = await home.operator().get("/v1/admin/usage", "by=user&tenant=acme")
        assert not any(row["cache_write_tokens"] for row in used.json()["rows"])
        await do(carol, "DELETE", f"{DOCS}/{theirs}")
        await warming.round(home.house)
        assert len(echo.submits) == asked, "another tenant's room is not theirs"
        await do(alice, "DELETE", f"{DOCS}/{other}")
        await warming.round(home.house)
        assert len(echo.submits) == asked + 1

    lived(tmp_path, story, echo=echo)


def asked(echo: Recording) -> list[int]:
    """Lengths of what was to be pinned, in order."""
    return [len(each.prompt) for each in echo.submits if each.warm]


def warming_of() -> Warming:
    numbers = count(1)
    return Warming(lambda: f"req_warm{next(numbers)}")


def test_a_pin_has_no_end_but_its_documents(tmp_path: Path) -> None:
    echo = Recording()

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        await register(alice, "LEASE " * 20)
        soon = home.house.clock.wall_ms() // 1000 + 3600
        await register(alice, "SHORT " * 20, expires_at=soon)
        late = home.house.clock.wall_ms() // 1000 + 2 * 366 * 86_400
        await register(alice, "LONG " * 20, expires_at=late)
        assert await warming_of().round(home.house) == 3
        ends_ms = [each.caching.absolute_ms for each in echo.submits if each.caching is not None]
        assert ends_ms[0] is ends_ms[2] is None
        assert ends_ms[1] is not None
        assert 3_500_000 < ends_ms[1] <= 3_600_000

    lived(tmp_path, story, echo=echo)


def test_tenants_take_turns(tmp_path: Path) -> None:
    """One place, and three texts of one tenant before one of another."""
    echo = Recording()

    async def story(home: Inhouse) -> None:
        alice, carol = home.caller(), home.caller("globex/carol")
        for _ in range(3):
            await register(alice, "LEASE " * 20)
        await register(carol, "THEIRS " * 20)
        warming = warming_of()
        warming.at_once = 1
        assert await warming.round(home.house) == 4
        owners = [each.share[0][0] for each in echo.submits]
        assert [owners.index(each) for each in owners] == [0, 1, 0, 0]

    lived(tmp_path, story, echo=echo)


class Stuck(Recording):
    """Nothing of one tenant comes to its turn, until it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.held: str | None = None
        self.let = asyncio.Event()

    @asynccontextmanager
    async def turn(self, job: Submit) -> AsyncIterator[Any]:
        self.submits.append(job)
        self.held = self.held or job.share[0][0]
        if job.share[0][0] == self.held:
            await self.let.wait()
        async with EchoExecutor.turn(self, job) as found:
            yield found


def test_a_slow_tenant_holds_up_nobody(tmp_path: Path) -> None:
    echo = Stuck()

    async def story(home: Inhouse) -> None:
        alice, carol = home.caller(), home.caller("globex/carol")
        await register(alice, "LEASE " * 20)
        await register(carol, "THEIRS " * 20)
        warming = warming_of()
        warming.look(home.house)
        theirs = await register(carol, "MORE " * 20)
        mine = await register(alice, "OTHER " * 20)

        async def shows(caller: Caller, id_: str) -> bool:
            return bool((await caller.get(f"{DOCS}/{id_}")).json()["warm"])

        async with asyncio.timeout(20):
            while not await shows(carol, theirs):
                warming.look(home.house)
        assert not await shows(alice, mine)
        echo.let.set()
        await warming.round(home.house)
        await warming.round(home.house)
        assert await shows(alice, mine)

    lived(tmp_path, story, echo=echo)


def test_a_tenant_that_is_refused_is_left_alone_for_longer_and_longer(tmp_path: Path) -> None:
    busy = True

    def refuses(job: Submit) -> Ended | None:
        acme = job.share[0][0] == first[0]
        return Ended(request=0, cause=Cause.BACKLOG, retry_ms=1) if acme and busy else None

    echo, first = Recording(refuses=refuses), [""]

    async def story(home: Inhouse) -> None:
        nonlocal busy
        first[0] = home.house.pseudonym("acme")
        for _ in range(3):
            await register(home.caller(), "LEASE " * 20)
        await register(home.caller("globex/carol"), "THEIRS " * 20)
        warming = warming_of()
        assert await warming.round(home.house) == 1
        tries = 1
        for wait_s in (5, 10, 20):
            assert len(asked(echo)) == tries + 1, "one try, and its others were not asked for"
            home.time.ahead_ns += (wait_s - 1) * 1_000_000_000
            await warming.round(home.house)
            assert len(asked(echo)) == tries + 1
            home.time.ahead_ns += 1_000_000_000
            await home.house.registered.documents.confirm()
            await warming.round(home.house)
            tries += 1
        busy = False
        home.time.ahead_ns += 600_000_000_000
        await home.house.registered.documents.confirm()
        assert await warming.round(home.house) == 3

    lived(tmp_path, story, echo=echo)


def test_what_has_no_room_is_said_to_its_owner_and_to_operators_and_tried_again(
    tmp_path: Path,
) -> None:
    full = True
    echo = Recording(refuses=lambda job: no_room(job) if full else None)

    async def story(home: Inhouse) -> None:
        nonlocal full
        alice, bob = home.caller(), home.caller("acme/bob")
        long = await register(alice, "LEASE " * 40, **sharing("bob"))
        short = await register(alice, "SHORT " * 20)
        warming = warming_of()
        assert await warming.round(home.house) == 0
        assert (await alice.get(f"{DOCS}/{long}")).json()["warm"] is False
        assert "warm" not in (await bob.get(f"{DOCS}/{long}")).json()
        told = [each for each in home.logged if each["event"] == "registered.no_room"]
        assert [each["text_tokens"] for each in told] == [240, 120]
        assert {each["room_tokens"] for each in told} == {room_tokens(home.house, "echo", "acme")}
        registry = CollectorRegistry()
        registry.register(WarmthGauges(home.house.warmth.counts))
        assert without_room(generate_latest(registry).decode()) == 2
        # It is not there, so what bob asks about it is his own, and can be found again.
        said(await ask(bob, long))
        read = echo.submits[-1].caching
        assert read is not None
        assert not any(scope.pinned for scope in read.scopes)
        tries = len(asked(echo))
        home.time.ahead_ns += 5_000_000_000
        assert await warming.round(home.house) == 0
        assert len(asked(echo)) == tries + 1, "the smallest alone"
        assert asked(echo)[-1] == min(asked(echo))
        full = False
        home.time.ahead_ns += 10_000_000_000
        assert await warming.round(home.house) == 1
        assert await warming.round(home.house) == 1, "there is room for others too"
        for id_ in (long, short):
            assert (await alice.get(f"{DOCS}/{id_}")).json()["warm"] is True
        assert without_room(generate_latest(registry).decode()) == 0
        said(await ask(bob, long))
        read = echo.submits[-1].caching
        assert read is not None
        assert read.scopes[0].pinned

    lived(tmp_path, story, echo=echo)


def test_of_a_template_the_newest_version_is_kept_and_the_one_before_let_go(
    tmp_path: Path,
) -> None:
    echo = Recording()
    purged: list[tuple[str | None, int, bool]] = []

    async def purge(
        owner: str | None = None, tags: tuple[bytes, ...] = (), *, spare: bool = False
    ) -> Purged:
        purged.append((owner, len(tags), spare))
        return Purged(number=0, entries=len(tags), ended=0, zeroed=True)

    echo.purge = purge  # type: ignore[method-assign]

    async def story(home: Inhouse) -> None:
        admin, warming = home.caller("acme/admin"), warming_of()
        made = await admin.post(TMPLS, {"text": "BRIEF " * 20})
        id_ = made.json()["id"]
        assert await warming.round(home.house) == 1
        assert not purged
        await do(admin, "PATCH", f"{TMPLS}/{id_}", {"text": "SHORTER " * 20})
        assert await warming.round(home.house) == 1
        assert purged == [(home.house.pseudonym("acme"), 1, True)]
        assert await warming.round(home.house) == 0
        assert len(purged) == 1

    lived(tmp_path, story, echo=echo)


def test_whatever_may_have_ended_a_pin_has_it_asked_for_again(tmp_path: Path) -> None:
    echo = Recording()

    async def story(home: Inhouse) -> None:
        house, warming = home.house, warming_of()
        await register(home.caller(), "LEASE " * 20)
        assert await warming.round(house) == 1
        await enforce(house, {"acme": CacheTerms(quota=0.5, ttl_s=60)})
        assert await warming.round(house) == 1
        house.purges.note("acme")
        assert await warming.round(house) == 1
        await enforce(house, {"globex": CacheTerms(quota=0.5, ttl_s=60)})
        assert await warming.round(house) == 0
        await enforce(house, {"acme": CacheTerms(quota=0.5, ttl_s=60)})
        assert await warming.round(house) == 1
        assert await warming.round(house) == 0

    lived(tmp_path, story, echo=echo)
