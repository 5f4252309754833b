"""Rights to registered texts taken away: who reads is ended, who was told waits for it, nothing revives."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway import housekeeping
from policies.scope.labels import Document
from tenants.store import StoreUnavailable
from tests.gateway.inhouse import CHAT, MODEL, Exchange, Inhouse, inhouse
from tests.gateway.registered_kit import (
    BOB,
    CONFIRMED,
    DOCS,
    TMPLS,
    Telling,
    ask,
    do,
    queued,
    reading,
    register,
    said,
    sharing,
    told,
    told_of,
)
from tests.gateway.test_line import Hold, lived

LATER = ("rewrite", "suspend", "template")


def listed(shown: dict[str, Any]) -> list[str]:
    return [each["subject"] for each in shown["acl"]["users"]]


def tag_of(home: Inhouse, id_: str, acl_version: int) -> bytes:
    return home.house.registered.keys.of_document("acme", Document(id_, acl_version, 1))


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


@pytest.mark.parametrize(
    ("first", "users"), (("grant", "bob eve new"), ("take", "bob"), ("revoke", "eve"))
)
def test_a_change_of_what_was_seen_is_none_of_what_stands_now(
    tmp_path: Path, first: str, users: str
) -> None:
    """Whoever comes second and says what they have seen: neither takes back what was granted, nor gives
    back what was revoked, nor is told that they may not."""

    def seen(version: int, names: str) -> dict[str, Any]:
        return {"users": [{"subject": name} for name in names.split()], "acl_version": version}

    async def story(home: Inhouse) -> None:
        alice, admin = home.caller(), home.caller("acme/admin")
        path = f"{DOCS}/{await register(alice, **sharing('bob', 'eve'))}"
        other = "bob eve new" if first == "revoke" else "eve"
        callers = (admin, alice) if first == "revoke" else (alice, admin)
        async with home.house.registered.documents._alone:  # both have read, neither has written
            begun = []
            for caller, names in zip(callers, (users, other), strict=True):
                begun.append(caller.start("PUT", f"{path}/acl", seen(1, names)))
                await queued(home, len(begun))
        done, late = [await each.end() for each in begun]
        assert (done.status, done.json()["acl_version"]) == (200, 2)
        assert (late.status, late.error["type"]) == (409, "conflict")
        assert (late.error["code"], late.error["param"]) == ("changed_meanwhile", "acl_version")
        assert "version 2 now, not 1" in late.error["message"]
        stands = (await alice.get(path)).json()
        assert (stands["acl_version"], listed(stands)) == (2, users.split())
        kinds = [each["kind"] for each in home.audited()]
        changes = [each for each in kinds if each in {"document.granted", "document.revoked"}]
        assert changes == ["document.granted" if first == "grant" else "document.revoked"]
        assert "authz.denied" not in kinds
        # What they have seen since is theirs to change.
        again = await do(callers[1], "PUT", f"{path}/acl", seen(2, users.replace("bob", "")))
        assert (again.status, again.json()["acl_version"]) == (200, 3 - (first == "revoke"))

    lived(tmp_path, story)


def test_what_was_seen_is_a_number_that_its_readers_never_learn(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = home.caller()
        path = f"{DOCS}/{await register(alice, **sharing('bob'))}/acl"
        for body in ({"acl_version": 0}, {"acl_version": "1"}, {"acl_version": 1.5}, b""):
            assert (await do(alice, "PUT", path, body)).status == 400
        for name, status in (("acme/bob", 403), ("globex/carol", 404)):
            answers = [
                await do(home.caller(name), "PUT", path, {"acl_version": each}) for each in (1, 9)
            ]
            assert [each.status for each in answers] == [status, status]
            assert answers[0].error == answers[1].error
        assert (await do(alice, "PUT", path, {"acl_version": 9})).status == 409
        elsewhere = home.operator("acme/alice")  # the listener that the command line asks
        late = await do(elsewhere, "PUT", path.replace("/v1", "/v1/admin"), {"acl_version": 9})
        assert (late.status, late.json()["type"]) == (409, "urn:lockgate:changed_meanwhile")
        assert listed((await alice.get(path.removesuffix("/acl"))).json()) == ["bob"]
        emptied = await do(alice, "PUT", path, {})
        assert (emptied.status, listed(emptied.json())) == (200, [])

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
        await home.house.registered.sweep()
        assert echo.told == []
        assert home.house.live.withdraw() == ()  # whenever it is asked again
        gate.opened.set()
        assert (await exchange.end()).events()[-2]["choices"][0]["finish_reason"] == "stop"
        # What was computed by the old list is out of reach, and goes with its last reader.
        await home.house.registered.sweep()
        assert [tags for tags, _ in echo.told] == [(tag_of(home, id_, 1),)]
        await home.house.registered.sweep()
        assert len(echo.told) == 1

    lived(tmp_path, story, echo=echo)


@pytest.mark.slow
def test_a_list_that_shrinks_ends_what_was_computed_by_any_before(tmp_path: Path) -> None:
    """Also by one that had grown meanwhile, and by which somebody still read."""
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
        assert (await do(alice, "PUT", f"{DOCS}/{id_}/acl", {})).status == 200
        assert {*echo.told[0][0]} == {tag_of(home, id_, version) for version in (1, 2)}
        assert len(home.house.live) == 0
        await exchange.end()
        await home.house.registered.sweep()
        assert len(echo.told) == 1

    lived(tmp_path, story, echo=echo)


@pytest.mark.slow
def test_of_two_who_delete_at_the_same_time_one_has_done_it(tmp_path: Path) -> None:
    echo = Telling()

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        one = f"{DOCS}/{await register(alice)}"
        async with home.house.registered.documents._alone:
            begun = [alice.start("DELETE", one) for _ in range(2)]
            await queued(home, 2)
        assert sorted([(await each.end()).status for each in begun]) == [200, 404]
        assert told_of(home) == [("document.deleted", "pending"), CONFIRMED]

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
            await housekeeping.settle(home.house)
            await exchange.end()
            done = None
        assert done is None or done.status == 200
        assert echo.told
        assert len(home.house.live) == 0  # the answer came after its end
        ended = await exchange.end()
        assert ended.events()[-2]["error"]["code"] == "authorization_revoked"
        if how == "expire":
            assert told_of(home) == [("document.expired", "pending"), CONFIRMED]
            assert home.house.registered.documents.find(id_) is None

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
