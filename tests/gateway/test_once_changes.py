"""Changes by an `Idempotency-Key`, and what an answer still needs when it is told again: the right of now, the text
of then, and a secret that opens it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update
from starlette.routing import Route

from gateway.api.once import Once
from gateway.api.problems import Problems
from gateway.app import Rooms, admin_app, public_app
from policies.facts import Role
from security.dev_issuer import open_dev_issuer
from tenants import idempotency, schema
from tests.gateway.inhouse import Answered, Caller, Inhouse, inhouse
from tests.gateway.once_kit import KEY, REPLAYED, ask, keyed, reservations, rows, told
from tests.gateway.registered_kit import DOCS, TMPLS, do, register, sharing
from tests.gateway.test_line import lived

CHANGES = {"POST", "PUT", "PATCH", "DELETE"}
KEYS = "/v1/admin/keys"
ALICE: dict[str, Any] = {"tenant": "acme", "user": "alice"}


def routes(app: object) -> Iterable[Route]:
    rooms = app.app if isinstance(app, Problems) else app
    assert isinstance(rooms, Rooms)
    return [each for each in rooms.router.routes if isinstance(each, Route)]


def test_every_route_that_changes_something_stands_behind_the_mechanism(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        found = [*routes(public_app(home.house, lambda: 1)), *routes(admin_app(home.house))]
        changing = [each for each in found if CHANGES & set(each.methods or ())]
        assert len(changing) > 25
        for each in found:
            assert isinstance(each.endpoint, Once) == (each in changing), each.path

    lived(tmp_path, story)


async def by_key(caller: Caller, method: str, path: str, body: object = None) -> Answered:
    return await do(keyed(caller), method, path, body)


def test_a_document_is_registered_once(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = home.caller()
        first = await by_key(alice, "POST", DOCS, {"text": "The rent."})
        again = await by_key(alice, "POST", DOCS, {"text": "The rent."})
        assert told(again) == told(first)
        assert again.headers[REPLAYED] == "true"
        assert len((await alice.get(DOCS)).json()["data"]) == 1
        other = await by_key(alice, "POST", DOCS, {"text": "Another."})
        assert (other.status, other.error["code"]) == (422, "idempotency_key_reuse")
        created = [each for each in home.audited() if each["kind"] == "document.created"]
        assert len(created) == 1

    lived(tmp_path, story)


def test_one_key_for_two_paths_of_a_route_is_refused(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = home.caller()
        one, two = await register(alice), await register(alice)
        assert (await by_key(alice, "DELETE", f"{DOCS}/{one}")).status == 200
        assert (await by_key(alice, "DELETE", f"{DOCS}/{two}")).status == 422
        again = await by_key(alice, "DELETE", f"{DOCS}/{one}")
        assert (again.status, again.json()["deleted"], again.headers[REPLAYED]) == (
            200,
            True,
            "true",
        )
        assert (await do(alice, "DELETE", f"{DOCS}/{one}")).status == 404, "as it is without a key"
        assert (await alice.get(f"{DOCS}/{two}")).status == 200

    lived(tmp_path, story)


def test_what_is_gone_is_not_told_of_again(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = home.caller()
        made = await by_key(alice, "POST", DOCS, {"text": "x", "title": "The merger"})
        id_ = made.json()["id"]
        assert (await by_key(alice, "PATCH", f"{DOCS}/{id_}", {"text": "y"})).status == 200
        assert (await by_key(alice, "PATCH", f"{DOCS}/{id_}", {"text": "y"})).headers[REPLAYED]
        assert (await do(alice, "DELETE", f"{DOCS}/{id_}")).status == 200
        for method, path, body in (
            ("POST", DOCS, {"text": "x", "title": "The merger"}),
            ("PATCH", f"{DOCS}/{id_}", {"text": "y"}),
        ):
            again = await by_key(alice, method, path, body)
            assert (again.status, again.error["code"]) == (404, "document_not_found")
            assert b"merger" not in again.body

    lived(tmp_path, story)


def test_templates_and_lists_too(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        admin, alice = home.caller("acme/admin"), home.caller()
        first = await by_key(admin, "POST", TMPLS, {"text": "Hi {{name}}"})
        assert told(await by_key(admin, "POST", TMPLS, {"text": "Hi {{name}}"})) == told(first)
        id_ = await register(alice)
        listed = sharing("bob")["acl"]
        first = await by_key(alice, "PUT", f"{DOCS}/{id_}/acl", listed)
        again = await by_key(alice, "PUT", f"{DOCS}/{id_}/acl", listed)
        assert (told(again), again.json()["acl_version"]) == (told(first), 2)
        # On the administrators' listener it is another route.
        other = await by_key(
            home.operator("acme/admin"), "POST", "/v1/admin/templates", {"text": "Hi {{name}}"}
        )
        assert (other.status, REPLAYED in other.headers) == (200, False)

    lived(tmp_path, story)


def test_a_key_is_made_once_and_its_secret_kept_nowhere(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        admin = home.operator("acme/admin")
        made = (await by_key(admin, "POST", KEYS, ALICE)).json()
        again = await by_key(admin, "POST", KEYS, ALICE)
        assert again.status == 409
        told_again = again.json()
        assert told_again["type"] == "urn:lockgate:idempotency_result_gone"
        assert again.headers["content-type"] == "application/problem+json"
        assert "shown once" in told_again["detail"]
        assert len((await admin.get(KEYS)).json()["keys"]) == 1
        (row,) = await rows(home)
        assert (row["sealed"], row["why"]) == (None, "secret")
        rotated = await by_key(admin, "POST", f"{KEYS}/{made['id']}/rotate")
        assert rotated.status == 200
        assert (await by_key(admin, "POST", f"{KEYS}/{made['id']}/rotate")).status == 409

    lived(tmp_path, story)


def test_an_administrators_answer_is_told_again_by_the_roles_that_got_it(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        admin = home.operator("acme/admin")
        body = {"tenant": "acme", "issuer": "idp", "subject": "zed"}
        path = "/v1/admin/tokens/revoke"
        first = await by_key(admin, "POST", path, body)
        assert first.status == 200
        assert told(await by_key(admin, "POST", path, body)) == told(first)
        lesser = replace(admin, credential=_token(home, "admin"))
        refused = await by_key(lesser, "POST", path, body)
        assert (refused.status, refused.json()["type"]) == (403, "urn:lockgate:forbidden")
        back = replace(admin, credential=_token(home, "admin", Role.TENANT_ADMIN, Role.FINANCE))
        again = await by_key(back, "POST", path, body)
        assert (again.status, told(again)) == (200, told(first))
        sets = [each for each in home.audited() if each["kind"] == "subject.revoked"]
        assert len(sets) == 1

    lived(tmp_path, story)


def _token(home: Inhouse, user: str, *roles: Role) -> str:
    now_s = home.house.clock.wall_ms() // 1000
    issuer = open_dev_issuer(home.folder)
    return issuer.mint(
        now_s=now_s, ttl_s=600, tenant="acme", user=user, jti=f"j{len(roles)}", roles=roles
    )


def test_of_a_change_whose_gateway_died_nobody_says_that_it_was_done(tmp_path: Path) -> None:
    async def run() -> None:
        async with inhouse(tmp_path) as home:
            await by_key(home.operator(), "POST", "/v1/admin/tenants/acme/suspend", {})
            await _set(home, state="RUNNING", sealed=None, owner="dead", request_id="req_dead")
        async with inhouse(tmp_path) as home:
            operator = home.operator()
            path = "/v1/admin/tenants/acme/suspend"
            assert (await by_key(operator, "POST", path, {})).status == 409
            home.time.ahead_ms = idempotency.LEASE_S * 1000 + 1
            unknown = await by_key(operator, "POST", path, {})
            assert unknown.json()["type"] == "urn:lockgate:idempotency_unknown"
            assert (await do(keyed(operator, "new"), "POST", path, {})).status == 200

    asyncio.run(run())


async def _set(home: Inhouse, **values: object) -> None:
    await home.store.write(lambda conn: conn.execute(update(schema.idempotency).values(values)))


@pytest.mark.parametrize("end", ("revoked", "suspended", "model"))
def test_who_may_not_ask_any_more_hears_what_a_new_request_would(tmp_path: Path, end: str) -> None:
    async def story(home: Inhouse) -> None:
        operator = home.operator()
        made = (await operator.post(KEYS, ALICE)).json()
        alice = replace(home.caller(), credential=made["secret"])
        assert (await ask(alice)).status == 200
        if end == "revoked":
            await operator.post(f"{KEYS}/{made['id']}/revoke", {})
        elif end == "suspended":
            await operator.post("/v1/admin/tenants/acme/suspend", {})
        else:
            home.house.deployments["echo"].name = "renamed"
        again, new = await ask(alice), await ask(alice, key="new")
        assert again.status == {"revoked": 401, "suspended": 403, "model": 404}[end]
        assert (again.status, again.error) == (new.status, new.error)
        assert len(await reservations(home)) == 1

    lived(tmp_path, story)


def test_who_may_not_read_the_document_any_more_hears_that_there_is_none(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice, bob = home.caller(), home.caller("acme/bob")
        id_ = await register(alice, **sharing("bob"))
        file = {"type": "file", "file": {"file_id": id_}}
        messages: dict[str, Any] = {"messages": [{"role": "user", "content": [file]}]}
        first = await ask(bob, **messages)
        assert "4200" in first.body.decode()
        # A list that was changed and still has him: the same answer.
        await do(alice, "PUT", f"{DOCS}/{id_}/acl", sharing("bob", "carol")["acl"])
        assert told(await ask(bob, **messages)) == told(first)
        # Another text: his right stands, and what was said of the old one is not said again.
        await do(alice, "PATCH", f"{DOCS}/{id_}", {"text": "The rent is secret."})
        changed = await ask(bob, **messages)
        assert (changed.status, changed.error["code"]) == (409, "idempotency_result_gone")
        assert "has changed" in changed.error["message"]
        # No right.
        await do(alice, "PUT", f"{DOCS}/{id_}/acl", {})
        again, new = await ask(bob, **messages), await ask(bob, key="new", **messages)
        assert (again.status, again.error) == (new.status, new.error)
        assert (again.status, again.error["code"]) == (404, "document_not_found")
        assert len(await reservations(home)) == 1

    lived(tmp_path, story)


async def operate(home: Inhouse, path: str, **body: object) -> None:
    answer = await home.operator().post(f"/v1/admin/tenants/acme/{path}", {"reason": "r", **body})
    assert answer.status == 200, answer.body


def test_after_shredding_nothing_is_there_and_nothing_is_done_by_a_key(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice, carol = home.caller(), home.caller("globex/carol")
        first, other = await ask(alice), await ask(carol)
        await operate(home, "shred", confirm="acme")
        assert [row["tenant"] for row in await rows(home)] == ["globex"]
        again = await ask(alice)
        assert (again.status, again.error["code"]) == (403, "tenant_shredded")
        assert told(await ask(carol)) == told(other)
        assert len(await reservations(home)) == 2
        await operate(home, "secret/rotate")
        anew = await ask(alice)
        assert (anew.status, REPLAYED in anew.headers) == (200, False)
        assert anew.json()["id"] != first.json()["id"]

    lived(tmp_path, story)


def test_what_a_crash_left_of_a_shredded_tenant_is_swept(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        await ask(home.caller())
        await home.house.secrets.shred("acme")
        await home.house.runs.keys.counted()
        await home.house.runs.sweep()
        assert await rows(home) == []

    lived(tmp_path, story)


def test_a_rotation_takes_no_answer_and_a_retired_secret_closes_its_own(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = home.caller()
        old = await ask(alice, key="old")
        await operate(home, "secret/rotate")
        new = await ask(alice, key="new")
        assert told(await ask(alice, key="old")) == told(old)
        home.time.ahead_ns = 61_000_000_000
        await operate(home, "secret/retire", version=1)
        gone = await ask(alice, key="old")
        assert (gone.status, gone.error["code"]) == (409, "idempotency_result_gone")
        assert told(await ask(alice, key="new")) == told(new)
        assert len(await reservations(home)) == 2

    lived(tmp_path, story)


def test_an_answer_put_in_anothers_place_is_not_told(tmp_path: Path) -> None:
    """One person's two keys, swapped in the database by whoever can write there."""

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        await ask(alice, "my salary", key="one")
        await ask(alice, "the weather", key="two")
        sealed = {row["digest"]: row["sealed"] for row in await rows(home)}
        (one, first), (two, second) = sealed.items()
        table = schema.idempotency

        def swap(conn: Any) -> None:
            for digest, record in ((one, second), (two, first)):
                conn.execute(update(table).where(table.c.digest == digest).values(sealed=record))

        await home.store.write(swap)
        for key, content in (("one", "my salary"), ("two", "the weather")):
            answer = await ask(alice, content, key=key)
            assert (answer.status, answer.error["code"]) == (409, "idempotency_result_gone")
        assert [e["event"] for e in home.logged].count("idempotency.broken") == 2
        await home.store.read(lambda conn: conn.execute(select(table)).all())

    lived(tmp_path, story)


def test_neither_key_nor_body_nor_answer_is_in_the_database(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        await ask(home.caller(), "a-canary-in-a-prompt", key="a-canary-in-a-key")
        await ask(home.caller(), "a-canary-in-a-prompt", key=KEY, stream=True)
        files = [path.read_bytes() for path in home.folder.glob("lockgate.db*")]
        assert sum(map(len, files)) > 10_000
        for word in (b"a-canary", b"hatcmpl", KEY.encode()):
            assert not any(word in data for data in files)

    lived(tmp_path, story)
