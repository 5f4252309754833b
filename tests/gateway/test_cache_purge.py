"""Purging what is kept: by whom, of what, and never told as more than was done."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from executor.contract import COVERS_MAX, Purged
from gateway.purging import Heard, Target, purge
from gateway.warming import Warming
from policies.scope.labels import Document
from security.audit import AuditUnavailable
from tests.gateway.inhouse import Inhouse
from tests.gateway.keeping import PURGE, WHY, Keeping, Order, purge_records, read
from tests.gateway.registered_kit import DOCS, TMPLS, do, register, sharing
from tests.gateway.test_admin import ISSUER, problem
from tests.gateway.test_line import lived


def test_a_purge_of_a_tenant_answers_with_its_proof(tmp_path: Path) -> None:
    echo = Keeping(entries=12)

    async def story(home: Inhouse) -> None:
        answer = await home.operator("acme/admin").post(PURGE, {"tenant": "acme", **WHY})
        assert answer.status == 200, answer.body
        told = answer.json()
        del told["proof"]
        assert told == {
            "scope": "acme",
            "tenant": "acme",
            "blocks": 12,
            "blocks_zeroed": 12,
            "blocks_read_zero": 12,
            "requests_ended": 1,
            "executors": 1,
            "record": 1,
        }
        assert echo.purges == [Order(home.house.pseudonym("acme"), (), False)]
        found = read(home, answer)
        assert (found.index, found.tenant, found.purged.scope) == (1, "acme", "acme")
        assert found.purged.blocks == 12
        assert found.purged.is_complete
        (record,) = purge_records(home)
        assert record["subject"] == home.house.names.person("acme", ISSUER, "admin")
        assert record["request_id"] == answer.headers["x-request-id"]
        assert "SAID-BY-A-PERSON" not in json.dumps(home.audited())
        assert home.house.purges.count("acme") == 1
        assert home.house.purges.count("globex") == 0

    lived(tmp_path, story, echo=echo)


def test_who_and_why_is_kept_in_the_database_before_it_is_done(tmp_path: Path) -> None:
    echo = Keeping()

    async def story(home: Inhouse) -> None:
        from sqlalchemy import select

        from tenants.schema import change

        assert (await home.operator().post(PURGE, {"all": True, **WHY})).status == 200
        (noted,) = await home.house.book._store.read(
            lambda conn: list(conn.execute(select(change)))
        )
        assert (noted.kind, noted.subject, noted.tenant) == ("cache_purged", "all", "")
        assert noted.reason == WHY["reason"]
        assert noted.actor.endswith(":operator")
        assert echo.purges == [Order(None, (), False)]
        assert home.house.purges.count("globex") == 1

    lived(tmp_path, story, echo=echo)


def test_a_user_is_found_by_whatever_rests_on_that_person(tmp_path: Path) -> None:
    echo = Keeping()

    async def story(home: Inhouse) -> None:
        keys = home.house.caches.keys
        for body, issuer in (({}, ISSUER), ({"issuer": "idp"}, "idp")):
            named = {"tenant": "acme", "user": "alice", **body, **WHY}
            answer = await home.operator("acme/admin").post(PURGE, named)
            assert answer.status == 200
            tags = (keys.of_person("acme", issuer, "alice"),)
            assert echo.purges[-1] == Order(home.house.pseudonym("acme"), tags, False)
            scope = answer.json()["scope"]
            assert scope == home.house.names.person("acme", issuer, "alice")
            assert "alice" not in json.dumps(purge_records(home))

    lived(tmp_path, story, echo=echo)


def test_a_document_is_found_by_every_list_that_it_had(tmp_path: Path) -> None:
    echo = Keeping()

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        id_ = await register(alice)
        for users in (("bob",), ("bob", "eve")):
            wider = sharing(*users)["acl"]
            assert (await do(alice, "PUT", f"{DOCS}/{id_}/acl", wider)).status == 200
        answer = await home.operator("acme/admin").post(PURGE, {"document": id_, **WHY})
        assert answer.status == 200, answer.body
        keys = home.house.caches.keys
        tags = {keys.of_document("acme", Document(id_, acl, 1)) for acl in (1, 2, 3)}
        (order,) = echo.purges
        assert (order.owner, set(order.tags)) == (home.house.pseudonym("acme"), tags)
        assert answer.json()["scope"] == home.house.names.document("acme", id_)
        assert id_ not in json.dumps(purge_records(home))

    lived(tmp_path, story, echo=echo)


def test_a_list_that_was_changed_often_is_purged_in_pieces(tmp_path: Path) -> None:
    echo = Keeping(entries=2)

    async def story(home: Inhouse) -> None:
        id_ = await register(home.caller())
        documents = home.house.registered.documents
        record = documents.find(id_)
        assert record is not None
        documents._records[id_] = replace(record, acl_version=COVERS_MAX + 1)
        answer = await home.operator().post(PURGE, {"document": id_, **WHY})
        assert [len(each.tags) for each in echo.purges] == [COVERS_MAX, 1]
        assert (answer.json()["blocks"], answer.json()["executors"]) == (4, 1)

    lived(tmp_path, story, echo=echo)


def test_a_public_template_is_purged_of_ones_own_tenant_and_by_operators_of_all(
    tmp_path: Path,
) -> None:
    echo = Keeping()

    async def story(home: Inhouse) -> None:
        made = await home.operator().post("/v1/admin/templates", {"text": "BRIEF"})
        id_ = made.json()["id"]
        mine = await home.operator("acme/admin").post(PURGE, {"template": id_, **WHY})
        assert (mine.json()["scope"], mine.json()["tenant"]) == (id_, "acme")
        all_ = await home.operator().post(PURGE, {"template": id_, **WHY})
        assert all_.json()["tenant"] is None
        assert [each.owner for each in echo.purges] == [home.house.pseudonym("acme"), None]
        assert echo.purges[0].tags == echo.purges[1].tags

    lived(tmp_path, story, echo=echo)


def test_another_tenants_text_and_none_look_alike(tmp_path: Path) -> None:
    echo = Keeping()

    async def story(home: Inhouse) -> None:
        theirs = await register(home.caller("globex/carol"))
        tmpl = (await home.caller("globex/admin").post(TMPLS, {"text": "BRIEF"})).json()["id"]
        admin = home.operator("acme/admin")
        for field, known in (("document", theirs), ("template", tmpl)):
            absent = known[:-4] + "0000"
            wrong_kind = tmpl if field == "document" else theirs
            answers = [
                problem(await admin.post(PURGE, {field: each, **WHY}), 404)
                for each in (known, absent, wrong_kind)
            ]
            assert answers[0] == answers[1] == answers[2]
        problem(await admin.post(PURGE, {"tenant": "globex", **WHY}), 403)
        problem(await admin.post(PURGE, {"all": True, **WHY}), 403)
        problem(await home.operator("acme/alice").post(PURGE, {"document": theirs, **WHY}), 403)
        assert echo.purges == []

    lived(tmp_path, story, echo=echo)


@pytest.mark.parametrize(
    "body",
    (
        {},
        {"tenant": "acme"},
        {"tenant": "acme", "reason": ""},
        {**WHY},
        {"tenant": "acme", "all": True, **WHY},
        {"tenant": "acme", "document": "doc_x", **WHY},
        {"document": "doc_x", "template": "tmpl_x", **WHY},
        {"user": "alice", **WHY},
        {"document": "doc_x", "user": "alice", **WHY},
        {"tenant": "acme", "issuer": "idp", **WHY},
        {"tenant": "acme", "all": "yes", **WHY},
        {"tenant": "acme", "owner": "x", **WHY},
        {"tenant": ["acme"], **WHY},
        b"{",
    ),
)
def test_what_names_nothing_or_two_things_purges_nothing(tmp_path: Path, body: object) -> None:
    echo = Keeping()

    async def story(home: Inhouse) -> None:
        problem(await home.operator().post(PURGE, body), 400)
        assert echo.purges == []

    lived(tmp_path, story, echo=echo)


def test_an_executor_that_does_not_acknowledge_is_no_success(tmp_path: Path) -> None:
    echo = Keeping()
    echo.lost = True

    async def story(home: Inhouse) -> None:
        told = problem(await home.operator().post(PURGE, {"tenant": "acme", **WHY}), 503)
        assert told["type"] == "urn:lockgate:purge_unacknowledged"
        first, last = [each for each in home.audited() if each["seq"]]
        assert (first["kind"], first["outcome"], first["unacknowledged"]) == (
            *("cache.purged", "incomplete"),
            1,
        )
        assert f"Record {first['seq']} " in str(told["detail"])
        assert last["reason"] == "purge_unacknowledged"
        echo.lost = False
        again = await home.operator().post(PURGE, {"tenant": "acme", **WHY})
        assert read(home, again).purged.is_complete

    lived(tmp_path, story, echo=echo)


def test_what_an_executor_said_before_it_fell_silent_is_counted(tmp_path: Path) -> None:
    echo = Keeping(entries=2)

    async def story(home: Inhouse) -> None:
        class Half(Keeping):
            async def purge(self, *args: Any, **more: Any) -> Purged:
                self.lost = bool(self.purges)
                return await super().purge(*args, **more)

        heard = await purge([echo, Half(entries=5)], Target("x", tags=(b"t",) * (COVERS_MAX + 1)))
        assert heard == Heard(2 + 2 + 5, 2 + 2 + 5, 3, executors=1, unacknowledged=1)

    lived(tmp_path, story, echo=echo)


def test_one_that_is_not_there_has_kept_nothing(tmp_path: Path) -> None:
    echo = Keeping()

    async def story(home: Inhouse) -> None:
        echo.lost = True
        echo.fail()
        answer = await home.operator().post(PURGE, {"tenant": "acme", **WHY})
        assert (answer.status, answer.json()["executors"], answer.json()["blocks"]) == (200, 0, 0)
        echo.recover()

    lived(tmp_path, story, echo=echo)


def test_what_does_not_read_back_as_zero_is_no_success(tmp_path: Path) -> None:
    echo = Keeping()
    echo.zeroed = False

    async def story(home: Inhouse) -> None:
        told = problem(await home.operator().post(PURGE, {"tenant": "acme", **WHY}), 503)
        assert told["type"] == "urn:lockgate:purge_not_zeroed"
        (record,) = purge_records(home)
        assert (record["outcome"], record["count"], record["blocks_read_zero"]) == (
            "incomplete",
            3,
            0,
        )

    lived(tmp_path, story, echo=echo)


def test_nothing_is_purged_that_cannot_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    echo = Keeping()

    async def story(home: Inhouse) -> None:
        def down(*_: object) -> None:
            raise AuditUnavailable

        async def later(*_: object) -> None:
            raise AuditUnavailable

        with monkeypatch.context() as patch:
            patch.setattr(type(home.house.audit), "require_healthy", down)
            told = problem(await home.operator().post(PURGE, {"tenant": "acme", **WHY}), 503)
            assert told["type"] == "urn:lockgate:audit_unavailable"
            assert echo.purges == []
        with monkeypatch.context() as patch:
            patch.setattr(type(home.house.audit), "append_proven", later)
            told = problem(await home.operator().post(PURGE, {"tenant": "acme", **WHY}), 503)
            assert "no record" in str(told["detail"])
            assert len(echo.purges) == 1

    lived(tmp_path, story, echo=echo)


def test_what_is_registered_is_computed_anew_after_a_purge_of_its_tenant(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        numbers = count(1)
        warming = Warming(lambda: f"req_warm{next(numbers)}")
        operator = home.operator()
        for name in ("acme/alice", "globex/carol"):
            await register(home.caller(name), "LEASE " * 20)
        assert await warming.round(home.house) == 2
        assert (await operator.post(PURGE, {"tenant": "acme", **WHY})).status == 200
        assert await warming.round(home.house) == 1
        assert (await operator.post(PURGE, {"all": True, **WHY})).status == 200
        assert await warming.round(home.house) == 2
        # A suspension wipes it too; when the tenant is served again, it is warm again.
        for act in ("suspend", "resume"):
            assert (await operator.post(f"/v1/admin/tenants/acme/{act}", {})).status == 200
        assert await warming.round(home.house) == 1
        assert await warming.round(home.house) == 0

    lived(tmp_path, story, echo=Keeping())
