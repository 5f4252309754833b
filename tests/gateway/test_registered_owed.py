"""What was taken away and is not confirmed: in force, recorded, asked for again, and nobody else's trouble."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway import housekeeping
from gateway.errors import ApiError
from gateway.revocations import Ending
from tenants.documents import Documents, Readers, Room
from tenants.secrets import SecretTable
from tenants.store import StoreUnavailable
from tests.gateway.inhouse import Inhouse
from tests.gateway.registered_kit import (
    BOB,
    CONFIRMED,
    DOCS,
    Telling,
    ask,
    do,
    on_disk,
    register,
    sharing,
    told_of,
)
from tests.gateway.test_line import lived


@pytest.mark.slow
@pytest.mark.parametrize("how", ("narrow", "rewrite", "delete", "suspend"))
def test_what_is_not_acknowledged_is_in_force_recorded_and_asked_again(
    tmp_path: Path, how: str
) -> None:
    echo = Telling()
    kind = {"narrow": "revoked", "rewrite": "changed", "delete": "deleted", "suspend": "suspended"}

    async def story(home: Inhouse) -> None:
        alice, registered = home.caller(), home.house.registered
        id_ = await register(alice, **sharing("bob"))
        sealed = (await registered.documents.texts([(id_, 1)]))[id_, 1]
        one = f"{DOCS}/{id_}"
        await registered.sweep()
        echo.lost = True
        if how == "narrow":
            answer = await do(alice, "PUT", one + "/acl", {})
        elif how == "rewrite":
            answer = await do(alice, "PATCH", one, {"text": "another"})
        elif how == "delete":
            answer = await do(alice, "DELETE", one)
        else:
            answer = await home.operator().post("/v1/admin/tenants/acme/suspend", {})
        assert answer.status == 503
        assert b"revocation_pending" in answer.body
        noun = "tenant" if how == "suspend" else "document"
        pending = (f"{noun}.{kind[how]}", "pending")
        assert told_of(home) == [pending]
        if how in {"rewrite", "delete"}:  # that an executor is silent keeps nothing in the files
            assert not any(part in on_disk(home.folder) for part in sealed)
        told = len(echo.told)
        await housekeeping.settle(home.house)
        assert told_of(home) == [pending]
        echo.lost = False
        await housekeeping.settle(home.house)
        assert echo.told[told - 1] == echo.told[told] == echo.told[told + 1]
        assert told_of(home) == [pending, CONFIRMED]
        await housekeeping.settle(home.house)
        assert len(echo.told) == told + 2  # nothing is owed any more
        if how == "narrow":
            assert (await ask(home.caller("acme/bob"), id_)).status == 404

    lived(tmp_path, story, echo=echo)


@pytest.mark.slow
def test_each_change_answers_for_its_own_and_is_told_by_its_own_snapshot(tmp_path: Path) -> None:
    """One tenant's debt is no other's: not in its answers, and not the end of who was decided later."""
    echo = Telling()

    async def story(home: Inhouse) -> None:
        alice, carol = home.caller(), home.caller("globex/carol")
        hers, theirs = await register(alice), await register(carol)
        echo.lost = True
        assert (await do(alice, "DELETE", f"{DOCS}/{hers}")).status == 503
        owed = echo.told[-1]
        echo.lost = False
        echo.told.clear()
        assert (await do(carol, "DELETE", f"{DOCS}/{theirs}")).status == 200
        assert owed[0] not in [tags for tags, _ in echo.told]
        echo.told.clear()
        await home.house.registered.sweep()
        assert echo.told == [owed]

    lived(tmp_path, story, echo=echo)


@pytest.mark.slow
def test_a_round_goes_on_past_what_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    echo = Telling()

    async def story(home: Inhouse) -> None:
        alice, registered = home.caller(), home.house.registered
        ids = [await register(alice, f"text {i}") for i in range(3)]
        echo.lost = True
        for id_ in ids:
            assert (await do(alice, "DELETE", f"{DOCS}/{id_}")).status == 503
        owed = list(echo.told)
        echo.lost, echo.deaf_to = False, owed[0][0]
        echo.told.clear()

        async def down(*_: object) -> None:
            raise StoreUnavailable("down")

        def failing() -> None:
            raise StoreUnavailable("down")

        swept = asyncio.Event()

        async def book_down() -> None:
            swept.set()
            await down()

        with monkeypatch.context() as patched:
            patched.setattr(registered.documents, "lapsed", failing)
            patched.setattr(registered.documents, "confirm", down)
            patched.setattr(registered.documents, "forget", down)
            patched.setattr(home.house.book, "sweep", book_down)
            house = asyncio.create_task(housekeeping.keep_house(home.house, home.run, every_s=0))
            async with asyncio.timeout(20):
                await swept.wait()
            house.cancel()
            await asyncio.wait([house])
        assert echo.told[:3] == owed
        echo.deaf_to, before = (), len(echo.told)
        await registered.sweep()
        assert echo.told[before:] == owed[:1]

    lived(tmp_path, story, echo=echo)


@pytest.mark.slow
def test_a_process_that_starts_wipes_what_the_one_before_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(home: Inhouse) -> None:
        registered, rounds = home.house.registered, 0
        forget = registered.documents.forget

        async def counted() -> None:
            nonlocal rounds
            rounds += 1
            await forget()

        monkeypatch.setattr(registered.documents, "forget", counted)
        await registered.sweep()
        await registered.sweep()
        assert rounds == 1

    lived(tmp_path, story)


@pytest.mark.slow
def test_who_is_answered_is_wiped_whoever_began_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(home: Inhouse) -> None:
        alice, registered = home.caller(), home.house.registered
        ids = [await register(alice, f"text {i}") for i in range(2)]
        going, forget = asyncio.Event(), registered.documents.forget

        async def held() -> None:
            await going.wait()
            await forget()

        monkeypatch.setattr(registered.documents, "forget", held)
        endings = []
        for id_ in ids:  # both are durable before either is wiped
            record = registered.documents.find(id_)
            assert record is not None
            endings += [
                each for each in await registered.remove([record]) if isinstance(each, Ending)
            ]
        finishing = [asyncio.create_task(registered.finish(each)) for each in endings]
        for _ in range(50):
            await asyncio.sleep(0)
        assert [each.done() for each in finishing] == [False, False]
        going.set()
        assert await asyncio.gather(*finishing) == [True, True]

    lived(tmp_path, story)


@pytest.mark.slow
def test_a_suspension_has_its_record_though_the_registry_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(home: Inhouse) -> None:
        async def down(*_: object) -> None:
            raise StoreUnavailable("down")

        suspend = "/v1/admin/tenants/acme/suspend"
        with monkeypatch.context() as patched:
            patched.setattr(home.house.registered.documents, "count_up", down)
            answer = await home.operator().post(suspend, {})
        assert (answer.status, answer.json()["type"]) == (503, "urn:lockgate:store_unavailable")
        assert told_of(home) == [("tenant.suspended", "done")]
        assert (await home.operator().post(suspend, {})).status == 200

    lived(tmp_path, story)


@pytest.mark.slow
def test_nothing_is_changed_that_could_not_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(home: Inhouse) -> None:
        alice = home.caller()
        id_ = await register(alice, **sharing("bob"))
        with monkeypatch.context() as patched:
            patched.setattr(home.house.audit, "_stalled", True)
            answer = await do(alice, "DELETE", f"{DOCS}/{id_}")
            assert (answer.status, answer.error["code"]) == (503, "audit_unavailable")
        assert home.house.registered.documents.find(id_) is not None

    lived(tmp_path, story)


@pytest.mark.slow
@pytest.mark.parametrize("failing", ("executor", "secrets", "texts"))
def test_a_shredding_that_fails_midway_still_reaches_what_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """The tags by which it is found are owed before the secret goes, and known after it is gone."""
    echo = Telling()

    async def story(home: Inhouse) -> None:
        registered = home.house.registered
        id_ = await register(home.caller())
        tag = registered.keys.of_secret("acme", registered.secrets.current("acme").version)
        before = registered.documents.snapshot().id

        async def down(*_: object, **__: object) -> None:
            raise StoreUnavailable("down")

        def heard() -> bool:
            return any(tag in tags and before < snapshot for tags, snapshot in echo.told)

        with monkeypatch.context() as patched:
            if failing == "executor":
                echo.lost = True
            elif failing == "secrets":
                patched.setattr(SecretTable, "destroy", down)
            else:
                patched.setattr(registered.documents, "remove", down)
            with pytest.raises((ApiError, StoreUnavailable)):
                await registered.shred("acme")
        echo.lost = False
        echo.told.clear()
        await registered.sweep()
        assert heard()
        echo.told.clear()
        await registered.shred("acme")  # asked again, when there is no secret to ask of
        assert heard()
        assert registered.documents.find(id_) is None
        echo.told.clear()
        await registered.sweep()
        assert echo.told == []

    lived(tmp_path, story, echo=echo)


@pytest.mark.slow
def test_what_another_process_took_is_ended_here_and_judged_by(tmp_path: Path) -> None:
    echo = Telling()

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        id_ = await register(alice, **sharing("bob"))
        mine = home.house.registered.documents
        clock = home.house.clock
        theirs = Documents(
            mine._store, monotonic_ns=clock.monotonic_ns, wall_s=lambda: clock.wall_ms() / 1000
        )
        await theirs.load()
        await theirs.put(id_, lambda old: replace(old, readers=Readers()), None, Room())
        kept = await do(home.caller("acme/admin"), "PUT", f"{DOCS}/{id_}/acl", BOB)
        assert (kept.status, kept.error["code"]) == (403, "forbidden")
        await home.house.registered.sweep()
        assert len(echo.told) == 1
        await theirs.remove([id_])
        assert (await do(alice, "PUT", f"{DOCS}/{id_}/acl", BOB)).status == 404
        await home.house.registered.sweep()
        assert len(echo.told) == 2

    lived(tmp_path, story, echo=echo)


@pytest.mark.slow
def test_what_is_registered_while_its_tenant_is_shredded_is_refused_and_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(home: Inhouse) -> None:
        alice, registered = home.caller(), home.house.registered
        create, sealed, go = Documents.create, asyncio.Event(), asyncio.Event()

        async def late(*args: Any) -> Any:
            sealed.set()
            await go.wait()
            return await create(*args)

        monkeypatch.setattr(Documents, "create", late)
        asking = alice.start("POST", DOCS, {"text": "x"})
        await sealed.wait()
        await registered.shred("acme")
        go.set()
        answer = await asking.end()
        assert (answer.status, answer.json()["error"]["code"]) == (403, "tenant_shredded")
        assert registered.documents.of("acme") == ()

    lived(tmp_path, story)


@pytest.mark.slow
def test_what_a_crash_leaves_of_a_shredded_tenant_is_swept(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        registered = home.house.registered
        await register(home.caller())
        other = await register(home.caller("globex/carol"))
        await registered.secrets.shred("acme")  # and then no more
        await registered.sweep()
        assert registered.documents.of("acme") == ()
        assert registered.documents.find(other) is not None

    lived(tmp_path, story)
