"""Rights to registered texts taken away: who reads is ended, who was told waits for it, nothing revives."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from executor.contract import ExecutorLost, Revoked
from executor.echo import EchoExecutor
from gateway import housekeeping
from gateway.errors import ApiError
from tenants.documents import Documents, Readers, Room
from tenants.secrets import SecretTable
from tenants.store import StoreUnavailable
from tests.gateway.inhouse import CHAT, MODEL, Exchange, Inhouse, inhouse
from tests.gateway.test_line import Hold, lived
from tests.gateway.test_registered import DOCS, TMPLS, ask, do, register, said, sharing

LATER = ("rewrite", "suspend", "template")
BOB = {"users": [{"subject": "bob"}]}


class Telling(EchoExecutor):
    """Remembers what it is told; `answer` holds its word back, `lost` is a connection that broke."""

    def __init__(self, gate: Hold | None = None) -> None:
        super().__init__(gate=gate)
        self.told: list[tuple[tuple[bytes, ...], int]] = []
        self.answer = asyncio.Event()
        self.answer.set()
        self.lost = False

    async def revoke(self, tags: tuple[bytes, ...], snapshot: int) -> Revoked:
        self.told.append((tags, snapshot))
        await self.answer.wait()
        if self.lost:
            raise ExecutorLost
        return await super().revoke(tags, snapshot)


def reading(home: Inhouse, name: str, id_: str) -> Exchange:
    parts = [{"type": "file", "file": {"file_id": id_}}, {"type": "text", "text": "hi"}]
    body = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": parts}]}
    return home.caller(name).start("POST", CHAT, body)


async def told(echo: Telling) -> None:
    async with asyncio.timeout(20):
        while not echo.told:
            await asyncio.sleep(0)


async def queued(home: Inhouse, count: int) -> None:
    """Until so many changes of the registry wait for their turn."""
    async with asyncio.timeout(20):
        while len(home.house.registered.documents._changing) < count:
            await asyncio.sleep(0)


def test_a_narrowed_list_ends_who_lost_by_it_and_answers_afterwards(tmp_path: Path) -> None:
    gate = Hold(free=2)
    echo = Telling(gate)

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        id_ = await register(alice, **sharing("bob"))
        exchange = reading(home, "acme/bob", id_)
        await exchange.until(lambda seen: b"delta" in b"".join(seen.parts))
        echo.answer.clear()
        narrowing = alice.start("PUT", f"{DOCS}/{id_}/acl", {})
        await told(echo)
        # Durable and in force, and not yet answered.
        assert (await ask(home.caller("acme/bob"), id_)).status == 404
        assert not narrowing.task.done()
        ended = await exchange.end()
        assert ended.events()[-2]["error"]["code"] == "authorization_revoked"
        assert not narrowing.task.done()
        echo.answer.set()
        answer = await narrowing.end()
        assert (answer.status, answer.json()["acl_version"]) == (200, 2)
        tags, snapshot = echo.told[-1]
        assert len(tags) == 1
        assert snapshot == home.house.registered.documents.snapshot().id
        # Given back, it is another right: what was said of the first stays said.
        granted = await do(alice, "PUT", f"{DOCS}/{id_}/acl", BOB)
        assert granted.json()["acl_version"] == 3
        assert echo.told[-1][0] != tags
        assert echo.told[-1][1] > snapshot
        gate.opened.set()
        assert "4200" in said(await ask(home.caller("acme/bob"), id_))

    lived(tmp_path, story, echo=echo)


def test_what_an_owner_takes_no_administrator_gives_back_at_the_same_time(tmp_path: Path) -> None:
    """A narrowing is judged by the list that it replaces, not by the one that was read before its turn."""

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        id_ = await register(alice, **sharing("bob"))
        path = f"{DOCS}/{id_}/acl"
        async with (
            home.house.registered.documents._alone
        ):  # both have read the list, neither has written
            taken = alice.start("PUT", path, {})
            await queued(home, 1)
            kept = home.caller("acme/admin").start("PUT", path, BOB)
            await queued(home, 2)
        answers = [await each.end() for each in (taken, kept)]
        assert [each.status for each in answers] == [200, 403]
        assert answers[1].error["code"] == "forbidden"
        kinds = [each["kind"] for each in home.audited()]
        assert (kinds.count("document.revoked"), kinds.count("authz.denied")) == (1, 1)
        assert (await ask(home.caller("acme/bob"), id_)).status == 404

    lived(tmp_path, story)


@pytest.mark.slow
@pytest.mark.parametrize("order", (("text", "list"), ("list", "text")))
def test_an_owners_changes_at_the_same_time_come_one_after_the_other(
    tmp_path: Path, order: tuple[str, str]
) -> None:
    """Whatever all of them had read before: the last one stands, and none is a conflict."""
    bodies: dict[str, tuple[str, str, list[object]]] = {
        "text": ("PATCH", "", [{"text": f"text {i}"} for i in range(3)]),
        "list": ("PUT", "/acl", [{"users": [{"subject": f"u{i}"}]} for i in range(3)]),
    }

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        one = f"{DOCS}/{await register(alice)}"
        begun: list[Exchange] = []
        async with home.house.registered.documents._alone:  # all have read, none has written
            for method, suffix, sent in (bodies[each] for each in order):
                for body in sent:
                    begun.append(alice.start(method, one + suffix, body))
                    await queued(home, len(begun))
        answers = [await each.end() for each in begun]
        assert {each.status for each in answers} == {200}
        last = (await alice.get(one)).json()
        assert (last["version"], last["acl_version"]) == (4, 4)
        assert [each["subject"] for each in last["acl"]["users"]] == ["u2"]
        assert (await alice.get(one + "/content")).body == b"text 2"

    lived(tmp_path, story)


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
        assert len(echo.told) == 1
        await theirs.remove([id_])
        assert (await do(alice, "PUT", f"{DOCS}/{id_}/acl", BOB)).status == 404
        assert len(echo.told) == 2

    lived(tmp_path, story, echo=echo)


@pytest.mark.slow
def test_a_list_that_grows_takes_nothing_from_who_reads(tmp_path: Path) -> None:
    gate = Hold(free=2)
    echo = Telling(gate)

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        id_ = await register(alice, **sharing("bob"))
        exchange = reading(home, "acme/bob", id_)
        await exchange.until(lambda seen: b"delta" in b"".join(seen.parts))
        wider = {"users": [{"subject": "bob"}, {"subject": "eve"}]}
        assert (await do(alice, "PUT", f"{DOCS}/{id_}/acl", wider)).status == 200
        assert echo.told == []
        assert home.house.live.withdraw() == ()  # whenever it is asked again
        gate.opened.set()
        assert (await exchange.end()).events()[-2]["choices"][0]["finish_reason"] == "stop"

    lived(tmp_path, story, echo=echo)


@pytest.mark.parametrize(
    "how", ("delete", "expire", *(pytest.param(how, marks=pytest.mark.slow) for how in LATER))
)
def test_whatever_ends_a_right_ends_its_readers(tmp_path: Path, how: str) -> None:
    gate = Hold(free=2)
    echo = Telling(gate)

    async def story(home: Inhouse) -> None:
        alice, admin = home.caller(), home.caller("acme/admin")
        soon = home.house.clock.wall_ms() // 1000 + 60
        id_ = await register(alice, expires_at=soon, **sharing("bob"))
        if how == "template":
            tmpl = (await admin.post(TMPLS, {"text": "BRIEF"})).json()["id"]
            body = {"model": MODEL, "stream": True, "prompt": {"id": tmpl}}
            messages = [{"role": "user", "content": "hi"}]
            exchange = home.caller("acme/bob").start("POST", CHAT, {**body, "messages": messages})
        else:
            exchange = reading(home, "acme/bob", id_)
        await exchange.until(lambda seen: b"delta" in b"".join(seen.parts))
        if how == "delete":
            done = await do(alice, "DELETE", f"{DOCS}/{id_}")
        elif how == "rewrite":
            done = await do(alice, "PATCH", f"{DOCS}/{id_}", {"text": "another"})
        elif how == "template":
            done = await do(admin, "DELETE", f"{TMPLS}/{tmpl}")
        elif how == "suspend":
            done = await home.operator().post("/v1/admin/tenants/acme/suspend", {})
        else:
            home.time.ahead_ms -= 86_400_000  # the wall clock is no way out (C10)
            home.time.ahead_ns += 61_000_000_000
            await home.house.registered.documents.confirm()
            await housekeeping.expire(home.house)
            done = None
        assert done is None or done.status == 200
        assert echo.told
        assert len(home.house.live) == 0  # the answer came after its end
        ended = await exchange.end()
        assert ended.events()[-2]["error"]["code"] == "authorization_revoked"
        if how == "expire":
            assert "document.expired" in [each["kind"] for each in home.audited()]
            assert home.house.registered.documents.find(id_) is None

    lived(tmp_path, story, echo=echo)


@pytest.mark.slow
def test_what_is_not_acknowledged_is_in_force_said_and_asked_again(tmp_path: Path) -> None:
    echo = Telling()

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        id_ = await register(alice, **sharing("bob"))
        echo.lost = True
        answer = await do(alice, "PUT", f"{DOCS}/{id_}/acl", {})
        assert (answer.status, answer.error["code"]) == (503, "revocation_pending")
        assert (await ask(home.caller("acme/bob"), id_)).status == 404
        told = len(echo.told)
        echo.lost = False
        await home.house.registered.sweep()
        assert echo.told[told][0] == echo.told[told - 1][0]
        await home.house.registered.sweep()
        assert len(echo.told) == told + 1  # nothing is owed any more

    lived(tmp_path, story, echo=echo)


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

    lived(tmp_path, story, echo=echo)


@pytest.mark.slow
def test_a_crash_within_a_revocation_leaves_it_done(tmp_path: Path) -> None:
    """Durable first: whoever starts again finds the narrower list, whatever came after that step."""
    echo = Telling()

    async def before() -> str:
        async with inhouse(tmp_path, echo=echo) as home:
            alice = home.caller()
            id_ = await register(alice, **sharing("bob"))
            echo.answer.clear()
            narrowing = alice.start("PUT", f"{DOCS}/{id_}/acl", {})
            await told(echo)
            narrowing.task.cancel()
            echo.answer.set()  # what was begun ends by itself, as a closing house waits for it
            await asyncio.wait([narrowing.task])
            return id_

    async def after(id_: str) -> None:
        async with inhouse(tmp_path) as home:
            assert (await ask(home.caller("acme/bob"), id_)).status == 404
            assert "4200" in said(await ask(home.caller(), id_))

    asyncio.run(after(asyncio.run(before())))


def test_what_cannot_be_confirmed_is_not_gone_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(home: Inhouse) -> None:
        alice = home.caller()
        id_ = await register(alice)

        async def down(_: object) -> None:
            raise StoreUnavailable("down")

        documents = home.house.registered.documents
        with monkeypatch.context() as patched:
            patched.setattr(documents._store, "read", down)
            home.time.ahead_ns += 31_000_000_000
            with pytest.raises(StoreUnavailable):
                await documents.confirm()
            answer = await ask(alice, id_)
            assert (answer.status, answer.error["code"]) == (503, "policy_unavailable")
        await documents.confirm()
        assert "4200" in said(await ask(alice, id_))

    lived(tmp_path, story)
