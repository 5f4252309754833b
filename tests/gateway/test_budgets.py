"""Top-ups, credits and refunds as an operator gives them and a tenant's finance team reads them."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from policies.facts import Budget
from security.authenticate import KEY_ISSUER
from tests.gateway.inhouse import PLAN, Caller, Inhouse
from tests.gateway.test_admin import ISSUER, problem
from tests.gateway.test_line import lived

UP, CREDIT, REFUND = (f"/v1/admin/budgets/{what}" for what in ("top-up", "credit", "refund"))
GIVEN = "/v1/admin/budgets/adjustments"
Body = dict[str, object]


def test_what_is_given_shows_where_it_belongs(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        operator, finance = home.operator("operator/finance"), home.operator("acme/finance")
        told = await home.caller().chat()
        request = told.headers["x-request-id"]
        spent = (await finance.get("/v1/admin/usage")).json()["total"]["nano_usd"]
        assert spent > 3
        common: Body = {"tenant": "acme", "usd": "0.000000003", "reason": "late", "id": "own-1"}
        refunded = await operator.post(REFUND, {**common, "request_id": request})
        assert refunded.status == 200
        assert refunded.json() | {"at": ""} == {
            "id": "own-1", "kind": "refund", "tenant": "acme", "scope": None, "account": None,
            "request_id": request, "usd": "0.000000003", "actor": f"{ISSUER}:operator-finance",
            "reason": "late", "at": "", "repeat": False,
        }  # fmt: skip
        again = await operator.post(REFUND, {**common, "request_id": request})
        assert again.json() == refunded.json() | {"repeat": True}
        taken = problem(await operator.post(CREDIT, common), 409)
        assert taken["param"] == "id"
        credited = await operator.post(CREDIT, {**common, "id": "own-2"})
        topped = await operator.post(UP, {**common, "id": "own-3", "usd": "2"})
        assert (credited.status, topped.status) == (200, 200)
        total = (await finance.get("/v1/admin/usage")).json()["total"]
        assert (total["nano_usd"], total["adjustment_usd"]) == (spent - 6, "-0.000000006")
        (tenant,) = (await home.caller().get("/v1/me")).json()["budgets"]
        assert (tenant["limit_usd"], tenant["topped_up_usd"]) == ("3.000000000", "2.000000000")
        assert tenant["spent_usd"] == f"{(spent - 3) / 1e9:.9f}"
        seen = (await operator.get(f"/v1/admin/requests/{request}")).json()
        mine = (await home.caller().get(f"/v1/requests/{request}")).json()
        assert "0.000000003" in {seen.get("refunded_usd"), mine.get("refunded_usd")}
        listed = (await finance.get(GIVEN)).json()["adjustments"]
        assert {each["id"] for each in listed} == {"own-1", "own-2", "own-3"}
        (one,) = (await operator.get(GIVEN, f"request_id={request}")).json()["adjustments"]
        assert one["id"] == "own-1"
        theirs = await home.operator("globex/admin").get(GIVEN)
        assert theirs.json() == {"adjustments": []}
        problem(await home.operator("globex/admin").get(GIVEN, "tenant=acme"), 403)
        kinds = [each["kind"] for each in home.audited() if each["kind"].startswith("budget.")]
        assert kinds == ["budget.refund", "budget.refund", "budget.credit", "budget.top_up"]

    lived(tmp_path, story, plan=replace(PLAN, budget=Budget(10**9)))


@pytest.mark.parametrize(
    ("path", "more", "status", "says"),
    (
        (UP, {"usd": "0"}, 400, "more than 0"),
        (UP, {"usd": "-1"}, 400, "usd"),
        (UP, {"usd": "1e3"}, 400, "usd"),
        (UP, {"usd": "9999999999"}, 400, "less than"),
        (UP, {"usd": "0.0000000001"}, 400, "usd"),
        (UP, {"reason": ""}, 400, "reason"),
        (UP, {"reason": None}, 400, "reason"),
        (UP, {"id": "with/slash"}, 400, "id"),
        (UP, {"id": "x" * 129}, 400, "id"),
        (UP, {"scope": "galaxy", "name": "x"}, 400, "no budget"),
        (UP, {"scope": "project", "name": "none"}, 400, "no budget"),
        (UP, {"scope": "user", "name": "alice"}, 400, "issuer"),
        (UP, {"tenant": "nobody"}, 404, "tenant"),
        (CREDIT, {"usd": "4611686018.427387904"}, 400, "less than"),
        (CREDIT, {"tenant": "nobody"}, 404, "tenant"),
        (CREDIT, {"request_id": "r"}, 400, "request_id"),
        (REFUND, {}, 400, "request_id"),
        (REFUND, {"request_id": "req_none"}, 404, "no request"),
        (REFUND, {"request_id": "{theirs}"}, 404, "no request"),
        (REFUND, {"request_id": "{mine}", "usd": "1"}, 400, "at most"),
    ),
)
def test_what_cannot_be_given_is_said(
    tmp_path: Path, path: str, more: Body, status: int, says: str
) -> None:
    async def story(home: Inhouse) -> None:
        ids = {
            name: (await home.caller(who).chat()).headers["x-request-id"]
            for name, who in (("{mine}", "acme/alice"), ("{theirs}", "globex/carol"))
        }
        user: Body = {"tenant": "acme", "usd": "1", "scope": "user", "id": "alice"}
        assert (await home.operator().post("/v1/admin/budgets", user)).status == 200
        more["request_id"] = ids.get(str(more.get("request_id")), more.get("request_id"))
        body = {"tenant": "acme", "usd": "1", "reason": "r"} | more
        given = {name: value for name, value in body.items() if value is not None}
        told = problem(await home.operator().post(path, given), status)
        assert says in str(told["detail"])
        assert (await home.operator().get(GIVEN)).json() == {"adjustments": []}

    lived(tmp_path, story)


def test_a_users_budget_at_every_issuer_is_topped_up_for_one_person(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        user: Body = {"tenant": "acme", "usd": "0", "scope": "user", "id": "alice"}
        assert (await home.operator().post("/v1/admin/budgets", user)).status == 200
        assert (await home.caller().chat()).status == 429
        more: Body = {"tenant": "acme", "usd": "1", "reason": "r", "scope": "user", "name": "alice"}
        for issuer, status in (("https://else/", 429), (ISSUER, 200)):
            assert (await home.operator().post(UP, {**more, "issuer": issuer})).status == 200
            assert (await home.caller().chat()).status == status

    lived(tmp_path, story)


def test_a_users_budget_shows_each_account_that_it_is(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        operator, finance = home.operator(), home.operator("acme/finance")

        async def shown(by: Caller) -> dict[object, dict[str, object]]:
            rows = (await by.get("/v1/admin/budgets", "tenant=acme")).json()["budgets"]
            return {row["issuer"]: row for row in rows if row["scope"] == "user"}

        user: Body = {"tenant": "acme", "usd": "1", "scope": "user", "id": "alice"}
        assert (await operator.post("/v1/admin/budgets", user)).status == 200
        assert (await shown(operator)).keys() == {ISSUER}
        ((none, row),) = (await shown(finance)).items()
        assert none is None
        assert "at none has a user of this name spent" in str(row["note"])
        key = (await operator.post("/v1/admin/keys", {"tenant": "acme", "user": "alice"})).json()
        assert (await home.caller().chat()).status == 200
        assert (await Caller(home.public, key["secret"]).chat()).status == 200
        for by in (operator, finance):
            found = await shown(by)
            assert found.keys() == {ISSUER, KEY_ISSUER}
            for row in found.values():
                assert row["limit_usd"] == "1.000000000"
                assert row["held_usd"] == "0.000000000"
                assert (
                    0 < Fraction(str(row["spent_usd"])) == 1 - Fraction(str(row["remaining_usd"]))
                )
        more: Body = {"tenant": "acme", "usd": "1", "reason": "r", "scope": "user", "name": "alice"}
        told = problem(await operator.post(UP, more), 400)
        assert told["param"] == "issuer"
        assert f"--issuer): users of one name at two issuers are two people. There are: {ISSUER}, {KEY_ISSUER}." in str(told["detail"])  # fmt: skip
        set_ = await operator.post("/v1/admin/budgets", {**user, "usd": "2", "issuer": ISSUER})
        assert set_.json()["issuer"] == ISSUER
        limits = {issuer: row["limit_usd"] for issuer, row in (await shown(operator)).items()}
        assert limits == {ISSUER: "2.000000000", KEY_ISSUER: "1.000000000"}
        wrong: Body = {"tenant": "acme", "usd": "1", "issuer": ISSUER}
        assert "issuer" in problem(await operator.post("/v1/admin/budgets", wrong), 400)["detail"]  # type: ignore[operator]

    lived(tmp_path, story)
