"""What may be registered, how much of it, and how often: refused by name."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.api.registered.documents import LIST_BYTES_MAX, READERS_MAX
from policies.facts import Limits
from tenants.documents import LISTS_BYTES_MAX
from tests.gateway.inhouse import PLAN, Inhouse
from tests.gateway.registered_kit import DOCS, TMPLS, do, register, sharing
from tests.gateway.test_line import lived

ABSENT = "doc_" + "0" * 32
BAD: tuple[tuple[object, str | None], ...] = (
    ({}, "text"),
    ({"text": ""}, "text"),
    ({"text": 5}, "text"),
    ({"text": "a\0b"}, "text"),
    (b'{"text": "\\ud800"}', None),
    ({"text": "x", "title": ""}, "title"),
    ({"text": "x", "title": "t" * 257}, "title"),
    ({"text": "x", "title": "a\nb"}, "title"),
    ({"text": "x", "title": "\0"}, "title"),
    ({"text": "x", "expires_at": 1}, "expires_at"),
    ({"text": "x", "expires_at": "soon"}, "expires_at"),
    ({"text": "x", "expires_at": 2**63}, "expires_at"),
    ({"text": "x", "acl": {"users": [{"subject": ""}]}}, "acl.users[0].subject"),
    ({"text": "x", "acl": {"users": [{"subject": " a"}]}}, "acl.users[0]"),
    (
        {"text": "x", "acl": {"users": [{"subject": "a", "issuer": "\x1b[0m"}]}},
        "acl.users[0].issuer",
    ),
    ({"text": "x", "acl": {"groups": [{"name": "a\0"}]}}, "acl.groups[0]"),
    ({"text": "x", "acl": {"roles": ["operator"]}}, "acl.roles"),
    ({"text": "x", "acl": {"roles": ["user"]}}, "acl.roles"),
    ({"text": "x", "acl": {"everyone": True}}, None),
    ({"text": "x", "id": ABSENT}, None),
    ({"text": "x", "cache_salt": "s"}, None),
    ([], None),
)


@pytest.mark.slow
def test_what_is_no_document_is_refused_by_name(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = home.caller()
        for body, param in BAD:
            answer = await alice.post(DOCS, body)
            assert answer.status == 400, (body, answer.body)
            if param is not None:
                assert answer.error["param"] == param, body
        many = [{"subject": f"u{i}"} for i in range(10_000)]
        crowded = await alice.post(DOCS, {"text": "x", "acl": {"users": many}})
        assert (crowded.status, crowded.error["param"]) == (400, "acl.users")
        assert (
            await alice.post(DOCS, {"text": "x", "acl": {"users": many[:READERS_MAX]}})
        ).status == 200
        long = await alice.post(DOCS, {"text": "x " * 4000})
        assert (long.status, long.error["code"]) == (400, "context_length_exceeded")
        assert (await home.operator().post("/v1/admin/documents", {"text": "x"})).status == 403

    lived(tmp_path, story)


@pytest.mark.slow
def test_a_plan_says_how_many_and_how_long(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = home.caller()
        made = await asyncio.gather(*(alice.post(DOCS, {"text": "12345"}) for _ in range(6)))
        assert sorted(each.status for each in made) == [200] * 3 + [403] * 3
        full = next(each for each in made if each.status == 403)
        assert full.error["code"] == "registry_full"
        kept = next(each.json()["id"] for each in made if each.status == 200)
        longer = await do(alice, "PATCH", f"{DOCS}/{kept}", {"text": "1234567890123456"})
        assert (longer.status, longer.error["code"]) == (403, "registry_full")
        assert (await do(alice, "PATCH", f"{DOCS}/{kept}", {"text": "1234"})).status == 200
        await do(alice, "DELETE", f"{DOCS}/{kept}")
        assert (await alice.post(DOCS, {"text": "12345"})).status == 200
        assert (await home.caller("globex/carol").post(DOCS, {"text": "12345"})).status == 200

    lived(tmp_path, story, plan=replace(PLAN, documents=3, document_tokens=20))


@pytest.mark.slow
def test_lists_of_readers_have_room_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LISTS_BYTES_MAX == 16 * 2**20
    issuer = "https://dev.lockgate.invalid/"
    monkeypatch.setattr("tenants.documents.LISTS_BYTES_MAX", 2 * (len(issuer) + 3))

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        long = [{"subject": f"{i:04}" + "x" * 200} for i in range(READERS_MAX)]
        for method, path, body in (
            ("POST", DOCS, {"text": "x", "acl": {"users": long}}),
            ("PUT", f"{DOCS}/{await register(alice)}/acl", {"users": long}),
        ):
            answer = await do(alice, method, path, body)
            assert (answer.status, answer.error["param"]) == (400, "acl")
            assert str(LIST_BYTES_MAX) in answer.error["message"]
        first, second = [await register(alice, **sharing("bob")) for _ in range(2)]
        for full in (
            await alice.post(DOCS, {"text": "x", **sharing("eve")}),
            await do(alice, "PUT", f"{DOCS}/{first}/acl", sharing("bob", "eve")["acl"]),
        ):
            assert (full.status, full.error["code"]) == (403, "registry_full")
            assert "readers' names" in full.error["message"]
        assert (await do(alice, "PUT", f"{DOCS}/{first}/acl", sharing("eve")["acl"])).status == 200
        await register(home.caller("globex/carol"), **sharing("bob"))
        assert (await do(alice, "PUT", f"{DOCS}/{first}/acl", {})).status == 200
        assert (await do(alice, "DELETE", f"{DOCS}/{second}")).status == 200
        await register(alice, **sharing("bob", "eve"))

    lived(tmp_path, story)


@pytest.mark.slow
def test_registering_draws_from_the_rate_that_completions_draw_from(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice, admin = home.caller(), home.caller("acme/admin")
        id_ = await register(alice)
        assert (await alice.chat()).status == 200
        for method, path, body in (
            ("POST", DOCS, {"text": "x"}),
            ("GET", DOCS, None),
            ("GET", f"{DOCS}/{id_}/content", None),
            ("GET", f"{DOCS}/{ABSENT}", None),
            ("PUT", f"{DOCS}/{id_}/acl", {}),
            ("PATCH", f"{DOCS}/{id_}", {"text": "x"}),
            ("POST", TMPLS, {"text": "x"}),
        ):
            answer = await do(alice, method, path, body)
            assert (answer.status, answer.error["code"]) == (429, "rate_limit_exceeded"), path
            assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert (await alice.chat()).status == 429
        assert (await admin.post(TMPLS, {"text": "x"})).status == 200  # another's
        assert (await do(alice, "DELETE", f"{DOCS}/{id_}")).status == 200  # takes a right away
        for _ in range(3):  # who has no plan
            made = await home.operator().post("/v1/admin/templates", {"text": "x"})
            assert made.status == 200

    lived(tmp_path, story, plan=replace(PLAN, user_limits=Limits(rpm=2)))
