"""Documents and templates over HTTP: who may what in every state, and nothing in the clear."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from gateway.api.doorway import Doorway
from gateway.api.registered.call import Call
from gateway.app import registered
from gateway.errors import ApiError
from gateway.identify import identify
from gateway.references import References, resolve
from policies.facts import Principal
from policies.registered import Right
from security.keyring_tenants import SecretGone
from tenants.documents import Kind
from tests.gateway.inhouse import CHAT, MODEL, Answered, Inhouse
from tests.gateway.registered_kit import (
    DOCS,
    TMPLS,
    ask,
    do,
    on_disk,
    register,
    said,
    sharing,
)
from tests.gateway.test_line import lived

CANARY = "canary-4200-heron"
ISSUER = "https://dev.lockgate.invalid/"
ABSENT = "doc_" + "0" * 32
ROUTES = (
    ("GET", "", None),
    ("GET", "/content", None),
    ("PATCH", "", {"text": "other"}),
    ("PUT", "/acl", {"users": [{"subject": "bob"}]}),
    ("DELETE", "", None),
)


async def in_states(home: Inhouse) -> dict[str, str]:
    """An id of each state in which there is nothing for acme's bob."""
    alice = home.caller()
    ids = {"absent": ABSENT, "refused": await register(alice)}
    ids["foreign"] = await register(home.caller("globex/carol"), **sharing("bob"))
    ids["deleted"] = await register(alice, **sharing("bob"))
    await do(alice, "DELETE", f"{DOCS}/{ids['deleted']}")
    soon = home.house.clock.wall_ms() // 1000 + 60
    ids["expired"] = await register(alice, expires_at=soon, **sharing("bob"))
    home.time.ahead_ns += 61_000_000_000
    await home.house.registered.documents.confirm()
    return ids


@pytest.mark.slow
def test_what_is_not_for_somebody_looks_alike_by_every_route(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        ids = await in_states(home)
        for name, skipped in (
            ("acme/bob", ""),
            ("globex/admin", "foreign"),
            ("acme/admin", "refused"),
        ):
            caller = home.caller(name)
            for method, suffix, body in ROUTES:
                seen = [
                    await do(caller, method, f"{DOCS}/{id_}{suffix}", body)
                    for state, id_ in ids.items()
                    if state != skipped
                ]
                assert {each.status for each in seen} == {404}
                assert len({each.body for each in seen}) == 1
                assert len({headers(each) for each in seen}) == 1
            asked = [await ask(caller, id_) for id_ in ids.values()]
            assert {each.status for each in asked} == {404}
            assert len({(each.body, headers(each)) for each in asked}) == 1
        assert (await home.caller("acme/bob").get(DOCS)).json()["data"] == []

    lived(tmp_path, story)


def headers(answer: Answered) -> tuple[tuple[str, str], ...]:
    """But for the request's own id."""
    return tuple(sorted((k, v) for k, v in answer.headers.items() if k != "x-request-id"))


@contextmanager
def steps() -> Iterator[list[str]]:
    """Every function that is called, in order: what time is made of."""
    seen: list[str] = []

    def profile(frame: FrameType, event: str, arg: object) -> None:
        if event == "call":
            seen.append(frame.f_code.co_qualname)
        elif event == "c_call":
            seen.append(getattr(arg, "__qualname__", "?"))

    sys.setprofile(profile)
    try:
        yield seen
    finally:
        sys.setprofile(None)


def test_what_is_not_for_somebody_takes_the_same_steps(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        ids = await in_states(home)
        who = await principal(home, "acme/bob")
        traces: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
        for state, id_ in ids.items():
            call = Call(home.house, who, {"type": "http"}, b"", Kind.DOCUMENT, id_)
            with steps() as looked, pytest.raises(ApiError):
                call.found(Right.SEE)
            with steps() as resolved, pytest.raises(ApiError):
                await resolve(home.house.registered, who, References((id_,)))
            assert "Documents.texts" not in resolved
            traces[state] = tuple(looked), tuple(resolved)
        counts = {state: [len(part) for part in trace] for state, trace in traces.items()}
        assert len({tuple(each) for each in counts.values()}) == 1, counts
        assert len(set(traces.values())) == 1

    lived(tmp_path, story)


async def principal(home: Inhouse, name: str) -> Principal:
    bearer = (b"authorization", b"Bearer " + home.tokens[name].encode())
    scope = {"type": "http", "method": "GET", "raw_path": b"/v1/me", "headers": [bearer]}
    return await identify(home.house, scope)


def test_an_owner_a_reader_and_an_administrator_see_what_is_theirs(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice, bob, admin = (home.caller(f"acme/{name}") for name in ("alice", "bob", "admin"))
        id_ = await register(alice, title="Lease", **sharing("bob"))
        one = f"{DOCS}/{id_}"
        of = {
            name: (await each.get(one)).json()
            for name, each in zip("abx", (alice, bob, admin), strict=True)
        }
        assert of["a"]["acl"]["users"] == [{"issuer": ISSUER, "subject": "bob"}]
        assert [of[name]["title"] for name in "abx"] == ["Lease", "Lease", None]
        assert [of[name]["owned"] for name in "abx"] == [True, False, False]
        assert "acl" not in of["b"]
        assert "acl_version" not in of["b"]
        assert of["x"]["acl"] == of["a"]["acl"]
        assert (await alice.get(one + "/content")).body == b"The rent is 4200."
        for other in (bob, admin):
            assert (await other.get(one + "/content")).status == 403
            assert (await do(other, "PATCH", one, {"text": "x"})).status == 403
        assert (await do(bob, "PUT", one + "/acl", {})).status == 403
        assert (await do(bob, "DELETE", one)).status == 403
        # An administrator takes away, and never lets in: not themselves, either.
        wider = {"users": [{"subject": "bob"}, {"subject": "admin"}]}
        assert (await do(admin, "PUT", one + "/acl", wider)).status == 403
        assert "4200" in said(await ask(bob, id_))
        assert (await ask(admin, id_)).status == 404
        assert (await do(admin, "PUT", one + "/acl", {})).status == 200
        assert (await ask(bob, id_)).status == 404
        assert "4200" in said(await ask(alice, id_))
        assert (await do(admin, "DELETE", one)).json() == {
            "id": id_,
            "object": "document",
            "deleted": True,
        }
        assert (await ask(alice, id_)).status == 404
        kinds = [each["kind"] for each in home.audited()]
        assert kinds.count("document.read") == 3
        assert {"document.created", "document.revoked", "document.deleted"} <= set(kinds)
        assert id_ not in str(home.audited())

    lived(tmp_path, story)


@pytest.mark.slow
def test_groups_and_roles_read_by_the_issuer_that_says_so(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = home.caller()
        by_role = await register(alice, **sharing(roles=["finance"]))
        foreign: dict[str, Any] = {
            "acl": {"users": [{"subject": "bob", "issuer": "https://other.example/"}]}
        }
        by_other = await register(alice, "The rent is 4200.", **foreign)
        assert "4200" in said(await ask(home.caller("acme/finance"), by_role))
        assert (await ask(home.caller("acme/bob"), by_role)).status == 404
        assert (await ask(home.caller("acme/bob"), by_other)).status == 404

    lived(tmp_path, story)


@pytest.mark.slow
def test_the_widest_list_is_read_first_and_each_document_once(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = home.caller()
        narrow = await register(alice, "NARROW")
        wide = await register(alice, "WIDE", **sharing("bob"))
        text = said(await ask(alice, narrow, wide, narrow, text="QUESTION"))
        assert text.index("WIDE") < text.index("NARROW") < text.index("QUESTION")
        assert text.count("NARROW") == 1
        assert (await ask(home.caller("acme/bob"), wide, narrow)).status == 404  # C8: one of two
        first = await alice.post(
            CHAT,
            {
                "model": MODEL,
                "messages": [
                    {"role": "system", "content": "BE BRIEF"},
                    {"role": "user", "content": [{"type": "file", "file": {"file_id": wide}}]},
                ],
            },
        )
        assert said(first).startswith("system\nWIDE\n\nBE BRIEF\nuser\n")

    lived(tmp_path, story)


@pytest.mark.slow
def test_a_list_has_pages_and_shows_what_may_be_read(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice, bob = home.caller(), home.caller("acme/bob")
        ids = {await register(alice, title=f"t{i}", **sharing("bob")) for i in range(3)}
        await register(alice)
        first = (await bob.get(DOCS, "limit=2")).json()
        assert [len(first["data"]), first["has_more"]] == [2, True]
        rest = (await bob.get(DOCS, f"limit=2&after={first['last_id']}")).json()
        assert [len(rest["data"]), rest["has_more"]] == [1, False]
        assert {each["id"] for each in first["data"] + rest["data"]} == ids
        assert {each["title"] for each in first["data"] + rest["data"]} == {"t0", "t1", "t2"}
        for query in ("limit=0", "limit=101", "limit=x", "limit=", f"after={ABSENT}", "q=1"):
            assert (await bob.get(DOCS, query)).status == 400, query
        assert (await home.caller("globex/carol").get(DOCS)).json()["data"] == []
        assert (await home.operator().get("/v1/admin/documents")).status == 403

    lived(tmp_path, story)


@pytest.mark.slow
def test_nothing_that_is_registered_lies_anywhere_in_the_clear(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = home.caller()
        id_ = await register(alice, f"text {CANARY}", title=f"title {CANARY}", **sharing("bob"))
        kept = await register(alice, f"kept {CANARY}")
        await do(alice, "PATCH", f"{DOCS}/{id_}", {"text": f"more {CANARY}", "title": CANARY})
        tmpl = await home.caller("acme/admin").post(
            TMPLS, {"text": f"Say {CANARY}", "title": CANARY}
        )
        assert CANARY in said(await ask(alice, id_, prompt={"id": tmpl.json()["id"]}))
        refused = await ask(home.caller("globex/carol"), id_)
        assert CANARY not in refused.body.decode() + str(home.logged) + str(home.audited())
        disk = on_disk(home.folder)
        assert CANARY.encode() not in disk
        sealed = await home.house.registered.documents.texts([(id_, 2), (kept, 1)])
        records = [part for pair in sealed.values() for part in pair]
        assert all(part in disk for part in records)
        await do(alice, "DELETE", f"{DOCS}/{id_}")
        gone = sealed[id_, 2]
        assert not any(part in on_disk(home.folder) for part in gone)
        # A tenant whose secret is destroyed has nothing left that could be opened.
        before = await home.house.registered.documents.texts([(kept, 1)])
        assert await home.house.registered.shred("acme") == 2
        with pytest.raises(SecretGone):
            home.house.secrets.current("acme")
        assert not any(part in on_disk(home.folder) for part in before[kept, 1])
        assert (await ask(alice, kept)).status == 404
        assert (await alice.post(DOCS, {"text": "x"})).error["code"] == "tenant_shredded"

    lived(tmp_path, story)


def test_every_route_on_both_listeners_is_tested_here(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        routes = registered(home.house, "/v1", Doorway())
        found = {(method, each.path) for each in routes for method in (each.methods or set())}
        expected = {(m, DOCS + "/{id}" + suffix) for m, suffix, _ in ROUTES}
        expected |= {(m, TMPLS + "/{id}" + s) for m, s, _ in ROUTES if s != "/acl"}
        expected |= {(m, path) for m in ("GET", "POST") for path in (DOCS, TMPLS)}
        assert {each for each in found if each[0] != "HEAD"} == expected

    lived(tmp_path, story)
