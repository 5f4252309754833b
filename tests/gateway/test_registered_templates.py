"""Templates over HTTP: whose they are, their versions, and who is told of reading."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenants.documents import TEMPLATE_VERSIONS_MAX
from tests.gateway.inhouse import Inhouse
from tests.gateway.registered_kit import TMPLS, ask, do, register, said
from tests.gateway.test_line import lived


@pytest.mark.slow
def test_a_template_is_its_tenants_and_the_operators_everybodys(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        admin, alice, carol = (home.caller(n) for n in ("acme/admin", "acme/alice", "globex/carol"))
        made = await admin.post(TMPLS, {"text": "Be brief.\nFor {{who}}: {{who}}!", "title": "T"})
        id_ = made.json()["id"]
        assert made.json()["variables"] == ["who"]
        assert (await alice.post(TMPLS, {"text": "x"})).status == 403
        assert (
            await home.operator("operator/finance").post("/v1/admin/templates", {"text": "x"})
        ).status == 403
        public = (await home.operator().post("/v1/admin/templates", {"text": "PUBLIC"})).json()[
            "id"
        ]
        assert {each["id"] for each in (await alice.get(TMPLS)).json()["data"]} == {id_, public}
        assert [each["id"] for each in (await carol.get(TMPLS)).json()["data"]] == [public]
        assert (await alice.get(f"{TMPLS}/{id_}/content")).status == 403
        assert (await admin.get(f"{TMPLS}/{id_}/content")).body.startswith(b"Be brief.")
        for who, what, status in (
            (alice, {"id": id_, "variables": {"who": "{{who}}"}}, 200),
            (alice, {"id": public}, 200),
            (carol, {"id": public}, 200),
            (carol, {"id": id_, "variables": {"who": "x"}}, 404),
            (alice, {"id": "tmpl_" + "0" * 32}, 404),
            (alice, {"id": id_, "version": 2, "variables": {"who": "x"}}, 404),
            (alice, {"id": id_}, 400),
            (alice, {"id": id_, "variables": {"who": "x", "what": "y"}}, 400),
            (alice, {"id": id_, "variables": {"who": 5}}, 400),
            (alice, {"id": public, "variables": {"a": "b"}}, 400),
            (alice, {"id": id_, "version": 0}, 400),
            (alice, {"id": ""}, 400),
            (alice, "tmpl", 400),
        ):
            answer = await ask(who, prompt=what)
            assert answer.status == status, (what, answer.body)
        text = said(await ask(alice, prompt={"id": id_, "variables": {"who": "{{who}}"}}))
        assert text.startswith("system\nBe brief.\nFor {{who}}: {{who}}!\nuser\nhi")
        document = await register(alice, "LEASE")
        text = said(await ask(alice, document, prompt={"id": id_, "variables": {"who": "me"}}))
        assert text.startswith("system\nBe brief.\n\n\nLEASE\n\nFor me: me!\nuser\nhi")

    lived(tmp_path, story)


@pytest.mark.slow
def test_a_template_keeps_its_versions_and_loses_all_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "gateway.api.registered.templates.PLACES_MAX", 64
    )  # more do not fit into this model

    async def story(home: Inhouse) -> None:
        admin, alice = home.caller("acme/admin"), home.caller()
        id_ = (await admin.post(TMPLS, {"text": "ONE", "title": "T"})).json()["id"]
        changed = (await do(admin, "PATCH", f"{TMPLS}/{id_}", {"text": "TWO {{x}}"})).json()
        assert [changed[name] for name in ("version", "versions", "title")] == [2, [1, 2], "T"]
        assert (await do(alice, "PATCH", f"{TMPLS}/{id_}", {"text": "x"})).status == 403
        assert (await do(home.caller("globex/admin"), "DELETE", f"{TMPLS}/{id_}")).status == 404
        assert "ONE" in said(await ask(alice, prompt={"id": id_, "version": 1}))
        assert "TWO z" in said(await ask(alice, prompt={"id": id_, "variables": {"x": "z"}}))
        for bad in ({"text": "{{x}}", "variables": []}, {"text": "x", "variables": ["x"]}):
            assert (await admin.post(TMPLS, bad)).error["param"] == "variables"
        places = "{{x}}" * 65
        assert "places" in (await admin.post(TMPLS, {"text": places})).error["message"]
        crowded = "".join(f"{{{{v{i}}}}}" for i in range(65))
        assert (await admin.post(TMPLS, {"text": crowded})).error["param"] == "text"
        assert (await do(admin, "DELETE", f"{TMPLS}/{id_}")).status == 200
        for version in (1, 2):
            assert (await ask(alice, prompt={"id": id_, "version": version})).status == 404

    lived(tmp_path, story)


@pytest.mark.slow
def test_versions_of_a_template_have_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert TEMPLATE_VERSIONS_MAX == 64
    monkeypatch.setattr("tenants.documents.TEMPLATE_VERSIONS_MAX", 2)

    async def story(home: Inhouse) -> None:
        admin = home.caller("acme/admin")
        id_ = (await admin.post(TMPLS, {"text": "1"})).json()["id"]
        statuses = [(await do(admin, "PATCH", f"{TMPLS}/{id_}", {"text": t})).status for t in "23"]
        assert statuses == [200, 403]

    lived(tmp_path, story)


@pytest.mark.slow
def test_who_reads_a_template_is_recorded_as_of_a_document(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        admin, alice = home.caller("acme/admin"), home.caller()
        id_ = (await admin.post(TMPLS, {"text": "{{x}}"})).json()["id"]
        public = (
            await home.operator().post("/v1/admin/templates", {"text": "PUBLIC {{x}} {{x}}"})
        ).json()["id"]
        for named in (id_, public):
            assert (await ask(alice, prompt={"id": named, "variables": {"x": ""}})).status == 200
        assert (await ask(home.caller("globex/carol"), prompt={"id": id_})).status == 404
        read = [each for each in home.audited() if each["kind"] == "template.read"]
        assert [each["target"] for each in read] == [
            home.house.names.document("acme", id_),
            public,
        ]
        assert {each["subject"] for each in read} == {
            home.house.names.person("acme", "https://dev.lockgate.invalid/", "alice")
        }
        assert all(each["request_id"] for each in read)

    lived(tmp_path, story)


@pytest.mark.slow
def test_a_template_that_fits_no_model_is_not_read_any_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look for variables in 4 MiB of them took the loop, and everybody, two seconds."""

    def never(text: str) -> None:
        raise AssertionError("looked for variables")

    async def story(home: Inhouse) -> None:
        monkeypatch.setattr("policies.registered.outline", never)
        long = await home.caller("acme/admin").post(TMPLS, {"text": "{{a}}" * 100_000})
        assert (long.status, long.error["code"]) == (400, "context_length_exceeded")

    lived(tmp_path, story)


@pytest.mark.slow
def test_a_value_counts_as_often_as_it_stands_in_the_template(tmp_path: Path) -> None:
    """2,000 places and 32,768 emoji were two hundred megabytes of text before it was too long."""

    async def story(home: Inhouse) -> None:
        made = await home.caller("acme/admin").post(TMPLS, {"text": "{{a}}" * 40})
        named = {"id": made.json()["id"], "variables": {"a": "\U0001f600" * 32_768}}
        refused = await ask(home.caller(), prompt=named)
        assert (refused.status, refused.error["param"]) == (400, "prompt.variables")
        assert "in all their places" in refused.error["message"]

    lived(tmp_path, story)
