"""People are pseudonymised by who may, over HTTP and by the command line; what is purged says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sqlalchemy import select

from security.authenticate import KEY_ISSUER
from tenants import schema
from tenants.retention import Periods
from tests.gateway.inhouse import Caller, Inhouse
from tests.gateway.test_admin import ISSUER, problem
from tests.gateway.test_exports import command, wired
from tests.gateway.test_line import lived

ASK = "/v1/admin/users/pseudonymise"
DAY_MS = 86_400_000


def test_a_person_is_pseudonymised_and_reports_come_to_the_same(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        request = (await home.caller().chat()).headers["x-request-id"]
        for name in ("acme/bob", "globex/carol"):
            assert (await home.caller(name).chat()).status == 200
        operator, finance = home.operator(), home.operator("acme/finance")
        before = (await finance.get("/v1/admin/usage", "by=user")).json()
        body: dict[str, object] = {"tenant": "acme", "user": "alice", "issuer": ISSUER}
        told = await home.operator("acme/admin").post(ASK, {**body, "reason": "left the firm"})
        assert told.status == 200, told.body
        done = told.json()
        assert (done["renamed"], done["waiting"], done["issuer"]) == (1, 0, "pseudonym")
        after = (await finance.get("/v1/admin/usage", "by=user")).json()
        assert after["total"] == before["total"]
        assert {row["user"] for row in after["rows"]} == {done["pseudonym"], "bob"}
        assert (
            await home.caller().get(f"/v1/requests/{request}")
        ).status == 404  # nobody is taken for them
        seen = (await operator.get(f"/v1/admin/requests/{request}")).json()
        assert seen["user"] == done["pseudonym"]
        assert (await home.caller().chat()).status == 200  # who is let in, is let in
        kinds = [e for e in home.audited() if e["kind"].startswith("user.")]
        assert [each["kind"] for each in kinds] == ["user.pseudonymising", "user.pseudonymised"]
        assert "alice" not in json.dumps(kinds)
        problem(await home.operator("globex/admin").post(ASK, {**body, "reason": "r"}), 403)
        problem(await operator.post(ASK, {**body, "tenant": "nobody", "reason": "r"}), 404)
        problem(await operator.post(ASK, {**body, "reason": ""}), 400)
        problem(await operator.post(ASK, {**body, "issuer": "pseudonym", "reason": "r"}), 400)
        problem(await operator.post(ASK, {**body, "reason": "r", "more": 1}), 400)
        by_key = operator.with_headers(idempotency_key="k-1")
        first, again = [await by_key.post(ASK, {**body, "reason": "r"}) for _ in range(2)]
        assert first.json() == again.json()

    lived(tmp_path, story)


def test_what_is_in_force_is_counted_and_ended_keys_lose_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story(home: Inhouse) -> None:
        operator = home.operator()
        made = (await operator.post("/v1/admin/keys", {"tenant": "acme", "user": "robot"})).json()
        assert (await Caller(home.public, made["secret"]).chat()).status == 200
        budget = {
            "tenant": "acme",
            "usd": "5",
            "scope": "user",
            "id": "robot",
            "issuer": KEY_ISSUER,
        }
        assert (await operator.post("/v1/admin/budgets", budget)).status == 200
        to = wired(home, monkeypatch)
        words = ("user", "pseudonymise", "robot", "--tenant", "acme", "--issuer", KEY_ISSUER)
        assert await command(*words, "--reason", "r", *to) == 0
        out = capsys.readouterr()
        assert "1 until a budget counts them no more" in out.out
        assert "1 keys, 1 budgets" in out.err
        await operator.post(f"/v1/admin/keys/{made['id']}/revoke", {"reason": "r"})
        assert await command(*words, "--reason", "r", "--with-budgets", "--json", *to) == 0
        done = json.loads(capsys.readouterr().out)
        assert (done["waiting"], done["in_force"]["keys"], done["in_force"]["budgets"]) == (0, 0, 0)
        (key,) = (await operator.get("/v1/admin/keys", "tenant=acme")).json()["keys"]
        assert (key["user"], key["revoked"]) == (done["pseudonym"], True)
        budgets = (await operator.get("/v1/admin/budgets", "tenant=acme")).json()["budgets"]
        assert [each["scope"] for each in budgets] == ["tenant"]
        assert await command(*words, *to) == 2  # no reason

    lived(tmp_path, story)


def test_a_request_whose_course_is_forgotten_says_so(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        request = (await home.caller().chat()).headers["x-request-id"]
        home.house.retention.periods = Periods(request_days=1)
        home.time.ahead_ms = 3 * DAY_MS
        before = (await home.operator().get("/v1/admin/usage", "by=request,day")).json()
        assert (await home.house.retention.sweep()).purged == 1
        assert (await home.operator().get("/v1/admin/usage", "by=request,day")).json() == before
        told = problem(await home.operator().get(f"/v1/admin/requests/{request}"), 410)
        assert told["type"] == "urn:lockgate:request_purged"
        assert "usage report --by request" in str(told["detail"])
        problem(await home.operator("globex/admin").get(f"/v1/admin/requests/{request}"), 404)

    lived(tmp_path, story)


def test_a_tenant_does_not_erase_who_did_what_to_it(tmp_path: Path) -> None:
    """Its administrator asks in an operator's name, and in names that are no person's."""

    async def story(home: Inhouse) -> None:
        operator, admin = home.operator(), home.operator("acme/admin")
        assert (await home.caller().chat()).status == 200
        made = (await operator.post("/v1/admin/keys", {"tenant": "acme", "user": "bob"})).json()
        credit = {"tenant": "acme", "usd": "1", "reason": "sorry"}
        assert (await operator.post("/v1/admin/budgets/credit", credit)).status == 200
        for path in ("suspend", "resume"):
            body = {"reason": "unpaid"}
            assert (await operator.post(f"/v1/admin/tenants/acme/{path}", body)).status == 200
        before = await acts(home)
        assert {actor for _, actor, _ in before} == {f"{ISSUER}:operator"}
        for user in ("operator", "acme", made["id"], "tenant:acme"):
            body = {"tenant": "acme", "user": user, "reason": "r"}
            assert (await admin.post(ASK, body)).status == 200
        assert [each for each in await acts(home) if each[0] != "user_pseudonymised"] == before

    lived(tmp_path, story)


async def acts(home: Inhouse) -> list[tuple[str, str, str]]:
    change = schema.change.c
    query = select(change.kind, change.actor, change.subject).order_by(change.id)
    found = await home.store.read(lambda conn: conn.execute(query).all())
    return [(row.kind, row.actor, row.subject) for row in found]
