"""Tags from where they are written to where they bind: a key's, a token's claim's, and what a client says."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from gateway.assembly import directory_config
from gateway.cli.check import from_file
from gateway.errors import from_deny
from gateway.notifying import event_view
from gateway.settings import SettingsError, development, load
from policies.facts import Budget
from policies.verdict import Deny, Reason
from security.api_keys import PREFIX
from security.dev_issuer import open_dev_issuer
from tenants import schema
from tenants.scopes import tag_account
from tests.gateway.inhouse import PLAN, Answered, Caller, Inhouse, chat_body
from tests.gateway.test_admin import problem
from tests.gateway.test_line import lived
from tests.gateway.test_settings import EXAMPLE, changed

Body = dict[str, Any]
BUDGETS, KEYS, UP = "/v1/admin/budgets", "/v1/admin/keys", "/v1/admin/budgets/top-up"
OF_TEAM: Body = {"tenant": "acme", "scope": "tag", "id": "team=search"}


async def key(home: Inhouse, by: str = "acme/admin", **more: object) -> Caller:
    made = await home.operator(by).post(KEYS, {"tenant": "acme", "user": "robot", **more})
    assert made.status == 200, made.body
    return Caller(home.public, made.json()["secret"])


def token(home: Inhouse, **tags: str) -> Caller:
    issuer = open_dev_issuer(home.folder)
    now_s = int(time.time())
    return Caller(
        home.public,
        issuer.mint(tenant="acme", user="alice", now_s=now_s, ttl_s=60, jti="t1", tags=tags),
    )


async def tags_of(home: Inhouse, answered: Answered) -> dict[str, tuple[str, str]]:
    """As `explain` shows them."""
    assert answered.status == 200, answered.body
    found = await home.operator().get(f"/v1/admin/requests/{answered.headers['x-request-id']}")
    return {each["name"]: (each["value"], each["origin"]) for each in found.json()["tags"]}


def test_a_keys_tags_are_shown_stay_with_it_and_bind_whatever_its_client_says(
    tmp_path: Path,
) -> None:
    async def story(home: Inhouse) -> None:
        admin = home.operator("acme/admin")
        robot = await key(home, tags={"team": "search", "env": "prod"})
        (listed,) = (await admin.get(KEYS)).json()["keys"]
        assert listed["tags"] == {"env": "prod", "team": "search"}
        assert (await robot.get("/v1/me")).json()["tags"] == listed["tags"]
        said = {"team": "ads", "trace": "7\U0001f468\u200d\U0001f469"}
        assert await tags_of(home, await robot.chat(metadata=said)) == {
            "env": ("prod", "key"),
            "team": ("search", "key"),
            "trace": (said["trace"], "client"),
        }
        budget = {**OF_TEAM, "usd": "0", "mode": "hard"}
        assert (await admin.post(BUDGETS, budget)).status == 200
        refused = await robot.chat(metadata={"team": "ads"})
        assert refused.status == 429
        assert refused.error["code"] == "insufficient_quota"
        assert "The tag team=search budget does not cover" in refused.error["message"]
        (shown, _) = (await robot.get("/v1/me")).json()["budgets"]
        assert (shown["scope"], shown["id"]) == ("tag", '["acme","team","search"]')
        rotated = (await admin.post(f"{KEYS}/{listed['id']}/rotate", {})).json()
        assert (await Caller(home.public, rotated["secret"]).chat()).status == 429
        assert (await (await key(home, tags={"team": "ads"})).chat()).status == 200
        assert (await home.caller().chat(metadata={"team": "search"})).status == 200

    lived(tmp_path, story)


def test_a_claims_tags_bind_and_a_key_of_another_tenant_has_its_own(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        operator = home.operator("operator/finance")
        assert (await operator.post(BUDGETS, {**OF_TEAM, "usd": "0"})).status == 200
        assert (await token(home, team="search").chat()).status == 429
        told = await token(home, team="ads", env="prod").chat()
        assert await tags_of(home, told) == {"env": ("prod", "claim"), "team": ("ads", "claim")}
        made = await home.operator("globex/admin").post(
            KEYS, {"tenant": "globex", "user": "r", "tags": {"team": "search"}}
        )
        assert (await Caller(home.public, made.json()["secret"]).chat()).status == 200
        room = {"tenant": "acme", "scope": "tag", "name": "team=search", "usd": "1", "reason": "r"}
        assert (await operator.post(UP, room)).status == 200
        assert (await token(home, team="search").chat()).status == 200
        asked = {"tenant": "acme"}
        (row,) = [
            each
            for each in (await operator.get(BUDGETS, "tenant=acme")).json()["budgets"]
            if each["scope"] == "tag"
        ]
        assert (row["name"], row["topped_up_usd"]) == ("team=search", "1.000000000")
        assert float(row["spent_usd"]) > 0
        query = "tenant=acme&tag=team%3Dsearch&tag=env%3Dprod"
        seen = (await home.operator().get("/v1/admin/check", query)).json()
        assert seen["tags"] == {"env": "prod", "team": "search"}
        assert [each["scope"] for each in seen["budgets"]] == ["tag", "tenant"]
        assert asked["tenant"] == seen["tenant"]

    lived(tmp_path, story)


def test_several_tags_all_or_none_and_a_soft_one_lets_through(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        operator = home.operator()
        robot = await key(home, tags={"team": "search", "env": "prod"})
        for tag, usd, mode in (("env=prod", "5", "hard"), ("team=search", "0", "shadow")):
            budget = {"tenant": "acme", "scope": "tag", "id": tag, "usd": usd, "mode": mode}
            assert (await operator.post(BUDGETS, budget)).status == 200
        assert (await robot.chat()).status == 200
        would = [each for each in home.logged if each["event"] == "budget.would_refuse"]
        assert [each["scope"] for each in would] == ["tag"]
        assert (await operator.post(BUDGETS, {**OF_TEAM, "usd": "0"})).status == 200
        before = (await operator.get(BUDGETS, "tenant=acme")).json()
        assert (await robot.chat()).status == 429
        assert (await operator.get(BUDGETS, "tenant=acme")).json() == before

    lived(tmp_path, story)


def test_a_tags_threshold_is_told_with_its_name_and_value(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        robot = await key(home, tags={"team": "search"})
        budget = {**OF_TEAM, "usd": "0", "notify_at": [1.0]}
        assert (await home.operator().post(BUDGETS, budget)).status == 200
        assert (await robot.chat()).status == 429
        (told,) = await home.house.book.claim_told()
        data = event_view(home.house, told)["data"]
        assert isinstance(data, dict)
        whose = {name: data[name] for name in ("scope", "tenant", "tag", "value")}
        assert whose == {"scope": "tag", "tenant": "acme", "tag": "team", "value": "search"}

    lived(tmp_path, story)


@pytest.mark.parametrize("path", ("/v1/chat/completions", "/v1/completions"))
@pytest.mark.parametrize(
    "metadata",
    (
        *({"": "x"}, {"n" * 65: "x"}, {"n": "v" * 513}, {f"n{i}": "v" for i in range(17)}),
        *({"n": 7}, {"n": None}, {"n": ["v"]}, ["n"], "n=v", 7),
        *({"n": "a\nb"}, {"n": "a\0"}, {"a\tb": "c"}, {"n": "\x1b[2J"}, {"n": "a\u2028b"}),
        {"n": PREFIX + "a" * 16 + "_" + "b" * 52},
    ),
)
def test_what_no_client_may_say_is_said_and_nothing_runs(
    tmp_path: Path, path: str, metadata: object
) -> None:
    async def story(home: Inhouse) -> None:
        body = chat_body() if "chat" in path else {"model": "echo", "prompt": "hello"}
        told = await home.caller().post(path, {**body, "metadata": metadata})
        assert told.status == 400
        assert told.error["param"].startswith("metadata")
        rows = select(schema.reservation_tag)
        assert await home.store.read(lambda conn: conn.execute(rows).all()) == []

    lived(tmp_path, story)


def test_completions_are_filed_too_and_the_most_that_may_be_said_is_kept(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        said = {f"{i:02}" + "n" * 62: "ß" * 512 for i in range(16)}
        body = {"model": "echo", "prompt": "hello", "metadata": said}
        found = await tags_of(home, await home.caller().post("/v1/completions", body))
        assert found == {name: (value, "client") for name, value in said.items()}
        assert await tags_of(home, await home.caller().chat(metadata={})) == {}
        assert await tags_of(home, await home.caller().chat(metadata={"a": ""})) == {
            "a": ("", "client")
        }

    lived(tmp_path, story)


def test_what_clients_say_is_in_no_log_no_metric_and_no_audit(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        secret = "PATIENT-4711"
        assert (await home.caller().chat(metadata={"who": secret, secret: "x"})).status == 200
        assert secret not in str(home.logged)
        assert secret not in str(home.audited())
        assert secret not in (await home.operator().get("/metrics")).body.decode()
        theirs = await home.operator("globex/admin").get("/v1/admin/usage", "by=request")
        assert secret not in theirs.body.decode()

    lived(tmp_path, story)


@pytest.mark.parametrize(
    ("tags", "says"),
    (
        ({"": "a"}, "name"),
        ({"team": ""}, "value"),
        ({"a=b": "c"}, "without '='"),
        ({"a,b": "c"}, "without '='"),
        ({"a": "b\nc"}, "one line"),
        ({" a": "b"}, "space"),
        ({"n" * 65: "b"}, "64"),
        ({"n": "v" * 129}, "128"),
        ({f"n{i}": "v" for i in range(17)}, "16"),
        ({"n": 7}, "str"),
        (["a=b"], "object"),
    ),
)
def test_a_key_whose_tags_are_none_is_not_made(tmp_path: Path, tags: object, says: str) -> None:
    async def story(home: Inhouse) -> None:
        ask = {"tenant": "acme", "user": "robot", "tags": tags}
        told = problem(await home.operator().post(KEYS, ask), 400)
        assert says in str(told["detail"])
        assert "tags" in str(told["param"]) or "tags" in str(told["detail"])
        assert (await home.operator("acme/admin").get(KEYS)).json() == {"keys": []}

    lived(tmp_path, story)


@pytest.mark.parametrize(
    ("name", "says"),
    (
        *(
            ("team", "'='"),
            ("=x", "name"),
            ("team=", "value"),
            ("team= x", "space"),
            ("a,b=c", "','"),
        ),
        *((None, "names its project, user, key or tag"), ("n" * 65 + "=x", "64")),
    ),
)
def test_a_budget_of_no_tag_is_none(tmp_path: Path, name: str | None, says: str) -> None:
    async def story(home: Inhouse) -> None:
        ask = {"tenant": "acme", "scope": "tag", "id": name, "usd": "1"}
        told = problem(await home.operator().post(BUDGETS, ask), 400)
        assert says in str(told["detail"])
        assert problem(await home.operator().get("/v1/admin/check", "tenant=acme&tag=x"), 400)

    lived(tmp_path, story)


def test_a_tenants_budget_by_tag_is_configured_under_the_tenant() -> None:
    settings = load(EXAMPLE, {})
    acme = directory_config(settings).tenants["acme"]
    assert acme.tags == {
        "team=search": Budget(100_000_000_000, "calendar_month", "UTC", hard=False)
    }
    assert settings.issuers[0].claims.tags == "tags"
    shown = from_file(settings, "acme", None, ["team=search", "team=other"])["budgets"]
    assert shown.keys() == {"tenant", "tag team=search"}
    assert directory_config(development(Path("var"), env={})).tenants["acme"].tags == acme.tags


def test_a_configured_tag_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "lockgate.toml"
    path.write_text(changed('tags."team=search"]', 'tags."team"]'))
    with pytest.raises(SettingsError, match=r"(?s)tenants\.acme\.tags.*team=search"):
        load(path, {})


def test_an_operators_budget_stands_in_place_of_the_configured_one(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        directory = home.house.directory
        config = directory._config
        acme = replace(config.tenants["acme"], tags={"team=search": Budget(0)})
        directory.configure(replace(config, tenants={**config.tenants, "acme": acme}))
        robot = await key(home, tags={"team": "search"})
        assert (await robot.chat()).status == 429
        assert (await home.operator().post(BUDGETS, {**OF_TEAM, "usd": "1"})).status == 200
        assert (await robot.chat()).status == 200

    lived(tmp_path, story, plan=PLAN)


def test_a_refusal_names_the_tag_that_refuses_and_not_more_than_fits() -> None:
    long = tag_account("acme", "team", "x" * 128)
    told = from_deny(Deny(Reason.BUDGET_SPENT, scope="tag", account=long))
    assert "The tag team=xxx" in told.message
    assert len(told.message) < 300
    assert "The tenant budget" in from_deny(Deny(Reason.BUDGET_SPENT, scope="tenant")).message
