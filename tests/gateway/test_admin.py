"""The admin listener: every route by every role, and that what administrators change is so at once,
is recorded, and is nowhere written in the clear."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import jwt
import pytest

from executor.echo import EchoExecutor
from gateway.openapi.pages import pages
from policies.facts import Budget
from security.audit_verify import verify
from security.keyring import Purpose, open_keyring
from tests.gateway.inhouse import CHAT, PLAN, Answered, Caller, Inhouse, chat_body, inhouse
from tests.gateway.test_line import Hold, lived

ROLES = (
    *("acme/alice", "globex/carol", "acme/admin", "globex/admin", "acme/finance"),
    *("operator", "operator/finance", "operator/security"),
)
ISSUER = "https://dev.lockgate.invalid/"
ADMIN, FINANCE = "acme/admin", "acme/finance"
REGISTERED = ("/v1/admin/documents", "/v1/admin/templates")
OPERATOR, MONEY, SECURITY = "operator", "operator/finance", "operator/security"


@dataclass(frozen=True)
class Door:
    """One route, and who may pass.  `{key}`: an acme key made for this call; `{request}`: alice's."""

    method: str
    path: str
    allowed: frozenset[str]
    body: dict[str, object] | None = None
    query: str = ""
    denied: int = 403
    passed: int = 200


def door(method: str, path: str, *allowed: str, **more: object) -> Door:
    return Door(method, path, frozenset(allowed), **more)  # type: ignore[arg-type]


DOORS = (
    door("GET", "/metrics", OPERATOR, MONEY),
    door("GET", "/load", OPERATOR),
    door("GET", "/v1/admin/status", OPERATOR),
    door("GET", "/v1/admin/tenants", OPERATOR),
    door("GET", "/v1/admin/keys", OPERATOR, ADMIN, query="tenant=acme"),
    door("GET", "/v1/admin/keys", OPERATOR, ADMIN, "globex/admin"),
    door("POST", "/v1/admin/keys", OPERATOR, ADMIN, body={"tenant": "acme", "user": "r"}),
    door("POST", "/v1/admin/keys/{key}/rotate", OPERATOR, ADMIN, denied=404),
    door("POST", "/v1/admin/keys/{key}/revoke", OPERATOR, ADMIN, denied=404),
    door(
        *("POST", "/v1/admin/tokens/revoke", OPERATOR, SECURITY, ADMIN),
        body={"tenant": "acme", "token_id": "nobody's"},
    ),
    door(
        *("POST", "/v1/admin/tokens/revoke", OPERATOR, SECURITY, ADMIN),
        body={"tenant": "acme", "issuer": ISSUER, "subject": "nobody"},
    ),
    door("POST", "/v1/admin/tenants/acme/suspend", OPERATOR, SECURITY, body={}),
    door("POST", "/v1/admin/tenants/acme/resume", OPERATOR, SECURITY, body={}),
    door("GET", "/v1/admin/budgets", OPERATOR, MONEY, ADMIN, FINANCE, query="tenant=acme"),
    door(
        *("POST", "/v1/admin/budgets", OPERATOR, MONEY),
        body={"tenant": "acme", "usd": "1000.00"},
    ),
    door(
        *("POST", "/v1/admin/budgets", OPERATOR, MONEY, ADMIN),
        body={"tenant": "acme", "usd": "5.5", "scope": "project", "id": "p"},
    ),
    door(
        *("POST", "/v1/admin/users/pseudonymise", OPERATOR, ADMIN),
        body={"tenant": "acme", "user": "nobody", "issuer": ISSUER, "reason": "r"},
    ),
    door(
        *("POST", "/v1/admin/budgets", OPERATOR, MONEY, ADMIN),
        body={"tenant": "acme", "usd": "5.5", "scope": "tag", "id": "team=search"},
    ),
    door(
        *("POST", "/v1/admin/budgets/top-up", OPERATOR, MONEY),
        body={"tenant": "acme", "usd": "1.5", "reason": "r"},
    ),
    door(
        *("POST", "/v1/admin/budgets/credit", OPERATOR, MONEY),
        body={"tenant": "acme", "usd": "0.000000001", "reason": "r"},
    ),
    door(
        *("POST", "/v1/admin/budgets/refund", OPERATOR, MONEY),
        body={"tenant": "acme", "usd": "0.000000001", "reason": "r", "request_id": "{request}"},
    ),
    door(
        *("GET", "/v1/admin/budgets/adjustments", OPERATOR, MONEY, ADMIN, FINANCE),
        query="tenant=acme",
    ),
    door("GET", "/v1/admin/usage", OPERATOR, MONEY, ADMIN, FINANCE, query="tenant=acme"),
    door(
        *("GET", "/v1/admin/usage", OPERATOR, MONEY, ADMIN, FINANCE),
        query="tenant=acme&by=tag:team&tag:env=prod",
    ),
    door("GET", "/v1/admin/usage", OPERATOR, MONEY, ADMIN, FINANCE, "globex/admin"),
    *(
        door("GET", path, OPERATOR, MONEY, ADMIN, FINANCE, *more, query="start_time=1" + query)
        for path in ("/v1/organization/costs", "/v1/organization/usage/completions")
        for query, more in (("&tenant=acme", ()), ("", ("globex/admin",)))
    ),
    *(
        door("GET", path, OPERATOR, MONEY, ADMIN, FINANCE, *more, query="period=2026-10" + query)
        for path in ("/v1/admin/usage/export", "/v1/admin/usage/export/manifest")
        for query, more in (("&tenant=acme", ()), ("", ("globex/admin",)))
    ),
    door("GET", "/v1/admin/usage/reconcile", OPERATOR, MONEY, query="from=2026-10-01"),
    door("GET", "/v1/admin/usage/device", OPERATOR, MONEY, query="by=model,day"),
    door("GET", "/v1/admin/periods", OPERATOR, MONEY, ADMIN, FINANCE, "globex/admin"),
    door("POST", "/v1/admin/periods/9998-12/close", OPERATOR, MONEY, body={}, passed=409),
    door("GET", "/v1/admin/periods/9998-12/verify", OPERATOR, MONEY, passed=404),
    door("GET", "/v1/admin/requests/{request}", OPERATOR, ADMIN, "acme/alice", denied=404),
    door("GET", "/v1/admin/check", OPERATOR, ADMIN, query="tenant=acme"),
    door("GET", "/v1/admin/queue", OPERATOR, ADMIN, "globex/admin"),
    door("GET", "/v1/admin/queue", OPERATOR, ADMIN, query="tenant=acme"),
    door("GET", "/v1/admin/promises", OPERATOR, ADMIN, "globex/admin"),
    door("GET", "/v1/admin/promises", OPERATOR, ADMIN, query="tenant=acme"),
    door("GET", "/v1/admin/cache", OPERATOR, SECURITY, ADMIN, query="tenant=acme"),
    door("GET", "/v1/admin/cache", OPERATOR, SECURITY, ADMIN, "globex/admin"),
    door(
        *("POST", "/v1/admin/cache/purge", OPERATOR, SECURITY, ADMIN),
        body={"tenant": "acme", "reason": "r"},
    ),
    door(
        *("POST", "/v1/admin/cache/purge", OPERATOR, SECURITY),
        body={"all": True, "reason": "r"},
    ),
    door("GET", "/v1/admin/tenants/acme/export", OPERATOR),
    door(
        *("POST", "/v1/admin/tenants/acme/delete", OPERATOR),
        body={"confirm": "acme", "reason": "r", "abandon": True},
        passed=409,
    ),
    door("GET", "/v1/admin/tenants/acme/secret", OPERATOR, SECURITY),
    door(
        *("POST", "/v1/admin/tenants/acme/secret/rotate", OPERATOR, SECURITY),
        body={"reason": "r"},
    ),
    door(
        *("POST", "/v1/admin/tenants/acme/secret/retire", OPERATOR, SECURITY),
        body={"version": 999, "reason": "r"},
        passed=404,
    ),
    door(
        *("POST", "/v1/admin/tenants/acme/shred", OPERATOR, SECURITY),
        body={"confirm": "acme", "reason": "r"},
    ),
    door("GET", "/v1/admin/root-key", OPERATOR, SECURITY),
    door("POST", "/v1/admin/root-key/rewrap", OPERATOR, SECURITY, body={"reason": "r"}),
    door(
        *("POST", "/v1/admin/root-key/release", OPERATOR, SECURITY),
        body={"root": "none", "reason": "r"},
        passed=404,
    ),
)


async def knock(caller: Caller, each: Door, *, key: str, request: str) -> Answered:
    path = each.path.format(key=key, request=request)
    body = each.body and each.body | ({"request_id": request} if "request_id" in each.body else {})
    return await caller.start(each.method, path, body, each.query).end()


def problem(answer: Answered, status: int) -> dict[str, object]:
    """RFC 9457, whoever answered."""
    assert answer.status == status, answer.body
    assert answer.headers["content-type"] == "application/problem+json"
    told: dict[str, object] = answer.json()
    assert set(told) - {"param"} == {"type", "title", "status", "detail"}
    assert told["status"] == status
    assert str(told["type"]).startswith("urn:lockgate:")
    assert answer.headers["x-request-id"].startswith("req_")
    return told


def test_every_route_by_every_role(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        operator, faults = home.operator(), []
        request = (await home.caller().chat()).headers["x-request-id"]

        async def fresh_key() -> str:
            made = await operator.post("/v1/admin/keys", {"tenant": "acme", "user": "robot"})
            return str(made.json()["id"])

        for each in DOORS:
            for role in (*ROLES, None):
                key = await fresh_key() if "{key}" in each.path else ""
                caller = Caller(home.admin, None if role is None else home.tokens[role])
                answer = await knock(caller, each, key=key, request=request)
                expected = each.passed if role in each.allowed else each.denied
                expected = 401 if role is None else expected
                if answer.status != expected:
                    faults.append(f"{role} at {each}: {answer.status}, expected {expected}")
                elif expected != 200:
                    problem(answer, expected)
                if each.path.endswith("suspend"):
                    resumed = await operator.post("/v1/admin/tenants/acme/resume", {})
                    assert resumed.status == 200
        assert faults == []

    lived(tmp_path, story)


def test_no_route_is_forgotten(tmp_path: Path) -> None:
    """A route that the table above lacks would be one that nobody thought about."""

    async def story(home: Inhouse) -> None:
        from gateway.app import admin_app

        app = admin_app(home.house)
        routes = app.app.router.routes  # type: ignore[attr-defined]
        paths = {route.path for route in routes} - {
            "/health",
            "/ready",
            *pages(),
        }  # which ask nobody who they are
        paths = {path for path in paths if not path.startswith(REGISTERED)}  # test_registered
        known = {re.sub(r"\{key\}|\{request\}|acme|9998-12", "{id}", each.path) for each in DOORS}
        assert paths == known

    lived(tmp_path, story)


def test_administration_is_not_on_the_public_listener(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        for each in DOORS:
            path = each.path.format(key="k", request="r")
            answer = await home.caller("operator").start(each.method, path, each.body).end()
            assert answer.status == 404
            assert "error" in answer.json()
        for path in (*pages(), "/metrics", "/v1/admin"):
            assert (await home.caller("operator").get(path)).status == 404
        for path in ("/v1/chat/completions", "/v1/models", "/v1/me"):
            problem(await home.operator().get(path), 404)

    lived(tmp_path, story)


WRONG: tuple[tuple[str, str, str, object, int], ...] = (
    ("GET", "/v1/admin/keys", "x=1", None, 400),
    ("GET", "/v1/admin/keys", "tenant=acme&tenant=globex", None, 400),
    ("GET", "/v1/admin/budgets", "scope=user", None, 400),
    ("GET", "/v1/admin/usage", "by=tenant&limit=0", None, 400),
    ("GET", "/v1/admin/usage", "by=tenant&limit=10001", None, 400),
    ("GET", "/v1/admin/usage", "by=tenant&limit=-1", None, 400),
    ("GET", "/v1/admin/usage", "by=tenant&page=x", None, 400),
    ("GET", "/v1/admin/usage", "by=tenant&page=WzFd", None, 400),
    ("GET", "/v1/admin/usage", "by=day&page=WyJ4Il0", None, 400),
    ("GET", "/v1/admin/usage", "by=day&page=Wy0xXQ", None, 400),
    ("GET", "/v1/admin/usage", "by=day,user&page=WzFd", None, 400),
    ("GET", "/v1/admin/usage", "by=day&page=W1tdXQ", None, 400),
    ("GET", "/v1/admin/periods", "x=1", None, 400),
    ("GET", "/v1/admin/usage/export", "", None, 400),
    ("GET", "/v1/admin/usage/export", "period=2026-13", None, 400),
    ("GET", "/v1/admin/usage/export", "period=2026-10&focus=1.3", None, 400),
    ("GET", "/v1/admin/usage/export", "period=2026-10&format=xlsx", None, 400),
    ("GET", "/v1/admin/usage/export", "period=2026-10&granularity=month", None, 400),
    ("GET", "/v1/admin/usage/export/manifest", "period=2026-10&as_of_ms=x", None, 400),
    ("GET", "/v1/admin/usage/export/manifest", "period=2026-10&operator=", None, 400),
    ("GET", "/v1/admin/usage/reconcile", "from=x", None, 400),
    ("GET", "/v1/admin/usage/reconcile", "tenant=acme", None, 400),
    ("GET", "/v1/admin/usage/device", "tenant=acme", None, 400),
    ("GET", "/v1/admin/usage/device", "by=tenant", None, 400),
    ("GET", "/v1/admin/usage/device", "by=day,day", None, 400),
    ("POST", "/v1/admin/periods/2026-13/close", "", {}, 400),
    ("POST", "/v1/admin/periods/2026-01/close", "", {"force": True}, 400),
    ("POST", "/v1/admin/periods/9998-12/close", "", {}, 409),
    ("GET", "/v1/admin/periods/2026/verify", "", None, 400),
    ("GET", "/v1/admin/periods/1999-01/verify", "", None, 404),
    ("GET", "/v1/admin/usage", "by=prompt", None, 400),
    ("GET", "/v1/admin/usage", "by=tenant,tenant", None, 400),
    ("GET", "/v1/admin/usage", "by=", None, 400),
    ("GET", "/v1/admin/usage", "from=yesterday", None, 400),
    ("GET", "/v1/admin/usage", "to=2026-13-01", None, 400),
    ("GET", "/v1/admin/usage", "by", None, 400),
    ("GET", "/v1/admin/usage", "by=tenant&tenant=%ff", None, 400),
    ("GET", "/v1/admin/usage", "by=tenant&tenant=ac%e2%80%aeme", None, 400),
    ("POST", "/v1/admin/tenants/acme/suspend", "", {"reason": "no\ufeff"}, 400),
    ("GET", "/v1/admin/check", "", None, 400),
    ("GET", "/v1/admin/check", "tenant=acme&role=operator", None, 400),
    ("GET", "/v1/admin/check", "tenant=nobody", None, 404),
    ("GET", "/v1/admin/nowhere", "", None, 404),
    ("DELETE", "/v1/admin/keys", "", None, 405),
    ("GET", "/v1/admin/requests/req_absent", "", None, 404),
    ("POST", "/v1/admin/keys", "", b"[]", 400),
    ("POST", "/v1/admin/keys", "", b"{", 400),
    ("POST", "/v1/admin/keys", "", {}, 400),
    ("POST", "/v1/admin/keys", "", {"tenant": "nobody", "user": "u"}, 404),
    ("POST", "/v1/admin/keys", "", {"tenant": "acme", "user": "u", "role": "x"}, 400),
    ("POST", "/v1/admin/keys", "", {"tenant": "acme", "user": "u", "roles": ["operator"]}, 400),
    ("POST", "/v1/admin/keys", "", {"tenant": "acme", "user": "u", "expires_at": -1}, 400),
    ("POST", "/v1/admin/keys", "", {"tenant": "acme", "user": ""}, 400),
    ("POST", "/v1/admin/keys", "", b"x" * 70_000, 413),
    ("POST", "/v1/admin/keys/absent/rotate", "", None, 404),
    ("POST", "/v1/admin/keys/absent/revoke", "", None, 404),
    ("POST", "/v1/admin/tokens/revoke", "", {}, 400),
    ("POST", "/v1/admin/tokens/revoke", "", {"subject": "x"}, 400),
    ("POST", "/v1/admin/tokens/revoke", "", {"token_id": "x", "subject": "y"}, 400),
    ("POST", "/v1/admin/tenants/nobody/suspend", "", {}, 404),
    ("POST", "/v1/admin/tenants/acme/suspend", "", {"why": "x"}, 400),
    ("POST", "/v1/admin/budgets", "", {"tenant": "acme", "usd": "-1"}, 400),
    ("POST", "/v1/admin/budgets", "", {"tenant": "acme", "usd": "1e3"}, 400),
    ("POST", "/v1/admin/budgets", "", {"tenant": "acme", "usd": 5}, 400),
    ("POST", "/v1/admin/budgets", "", {"tenant": "acme", "usd": "1", "window": "eon"}, 400),
    ("POST", "/v1/admin/budgets", "", {"tenant": "acme", "usd": "1", "zone": "../x"}, 400),
    ("POST", "/v1/admin/budgets", "", {"tenant": "acme", "usd": "1", "zone": "Mars"}, 400),
    ("POST", "/v1/admin/budgets", "", {"tenant": "acme", "usd": "1", "scope": "galaxy"}, 400),
    ("POST", "/v1/admin/budgets", "", {"tenant": "acme", "usd": "1", "scope": "user"}, 400),
    ("POST", "/v1/admin/budgets", "", {"tenant": "nobody", "usd": "1"}, 404),
)


def test_what_is_wrong_is_a_problem(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        for method, path, query, body, status in WRONG:
            before = len(home.audited())
            answer = await home.operator().start(method, path, body, query).end()
            assert answer.status == status, (method, path, query, body, answer.body)
            problem(answer, status)
            kinds = [each["kind"] for each in home.audited()[before:]]
            unrouted = status == 405 or "nowhere" in path
            assert unrouted or kinds in (["request.rejected"], ["authz.denied"]), (path, body)

    lived(tmp_path, story)


def test_no_route_ignores_what_it_does_not_know(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        for each in DOORS:
            asked = replace(each, query=f"{each.query}&nothing=1".removeprefix("&"))
            answer = await knock(home.operator(), asked, key="k", request="r")
            assert answer.status == 400, (each, answer.status)
            assert "'nothing'" in answer.json()["detail"], each

    lived(tmp_path, story)


def test_a_tenants_administrator_sees_that_tenant_alone(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        for name in ("acme/alice", "globex/carol", "globex/dave"):
            await home.caller(name).chat()
        for tenant in ("acme", "globex"):
            made = await home.operator().post("/v1/admin/keys", {"tenant": tenant, "user": "r"})
            assert made.status == 200
        mine = home.operator("acme/admin")
        usage = (await mine.get("/v1/admin/usage", "by=tenant,user")).json()
        assert {(row["tenant"], row["user"]) for row in usage["rows"]} == {("acme", "alice")}
        assert usage["total"]["requests"] == 1
        assert "device_ns" not in usage["total"]
        keys = (await mine.get("/v1/admin/keys")).json()["keys"]
        assert {key["tenant"] for key in keys} == {"acme"}
        budgets = (await mine.get("/v1/admin/budgets")).json()["budgets"]
        assert {budget["tenant"] for budget in budgets} == {"acme"}
        for path in ("usage", "keys", "budgets", "check"):
            for tenant in ("globex", "nobody"):  # which one exists is not told
                problem(await mine.get(f"/v1/admin/{path}", f"tenant={tenant}"), 403)
        everything = (await home.operator().get("/v1/admin/usage", "by=tenant")).json()
        assert {row["tenant"]: row["requests"] for row in everything["rows"]} == {
            "acme": 1,
            "globex": 2,
        }
        assert "device_ns" in everything["total"]

    lived(tmp_path, story)


def test_a_foreign_key_and_an_absent_one_are_one(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        made = await home.operator().post("/v1/admin/keys", {"tenant": "globex", "user": "r"})
        key = made.json()["id"]
        mine = home.operator("acme/admin")
        for act in ("rotate", "revoke"):
            foreign = await mine.post(f"/v1/admin/keys/{key}/{act}", {})
            absent = await mine.post(f"/v1/admin/keys/absent/{act}", {})
            assert (foreign.status, foreign.body) == (absent.status, absent.body)
        assert (await keyed(home, made.json()["secret"]).chat()).status == 200

    lived(tmp_path, story)


def keyed(home: Inhouse, secret: str) -> Caller:
    return replace(home.caller(None), credential=secret)


def test_a_keys_life(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        admin = home.operator("acme/admin")
        ask = {"tenant": "acme", "user": "robot", "project": "p1", "roles": ["finance"]}
        first = (await admin.post("/v1/admin/keys", ask)).json()
        assert (await keyed(home, first["secret"]).chat()).status == 200
        plain = home.caller(None).with_headers(x_api_key=first["secret"])
        assert (await plain.chat()).status == 200
        usage = await replace(plain, app=home.admin).get("/v1/admin/usage", "by=project,key")
        (row,) = usage.json()["rows"]
        assert (row["project"], row["key_id"], row["requests"]) == ("p1", first["id"], 2)

        second = (await admin.post(f"/v1/admin/keys/{first['id']}/rotate", {})).json()
        assert second["replaces"] == first["id"]
        assert (await keyed(home, first["secret"]).chat()).status == 401
        assert (await keyed(home, second["secret"]).chat()).status == 200
        problem(await admin.post(f"/v1/admin/keys/{first['id']}/rotate", {}), 400)

        revoked = await admin.post(f"/v1/admin/keys/{second['id']}/revoke", {"reason": "lost"})
        assert revoked.json() == {"id": second["id"], "revoked": True}
        absent = await keyed(home, "lg_aaaaaaaaaaaaaaaa_" + "b" * 52).chat()
        for caller in (keyed(home, second["secret"]), keyed(home, first["secret"])):
            gone = await caller.chat()
            assert (gone.status, gone.body) == (401, absent.body)
        listed = (await admin.get("/v1/admin/keys")).json()["keys"]
        assert {key["id"]: key["revoked"] for key in listed} == {
            first["id"]: False,
            second["id"]: True,
        }
        assert "secret" not in json.dumps(listed)
        assert "digest" not in json.dumps(listed)

        brief = (await admin.post("/v1/admin/keys", ask | {"expires_at": 2_000_000_000})).json()
        assert (await keyed(home, brief["secret"]).chat()).status == 200
        home.time.ahead_ms = 2_000_000_000_000 - home.time.wall_ms()
        assert (await keyed(home, brief["secret"]).chat()).status == 401
        home.time.ahead_ms = 0

        secrets = [each["secret"] for each in (first, second, brief)]
        assert len(set(secrets)) == 3
        kept = [path for path in home.folder.rglob("*") if path.is_file()]
        assert kept
        for path in kept:
            data = path.read_bytes()
            for secret in secrets:
                assert secret.encode() not in data, path
                assert secret.split("_", 2)[2].encode() not in data, path
        assert not any(secret in str(home.logged) for secret in secrets)

    lived(tmp_path, story)


def claims(token: str) -> dict[str, str]:
    found: dict[str, str] = jwt.decode(token, options={"verify_signature": False})
    return found


def by_token(home: Inhouse) -> dict[str, object]:
    return {"token_id": claims(home.tokens["acme/alice"])["jti"]}


def by_subject(home: Inhouse) -> dict[str, object]:
    return {"issuer": ISSUER, "subject": "alice"}


@pytest.mark.parametrize("by", (by_token, by_subject))
@pytest.mark.parametrize("role", ("acme/admin", "operator/security"))
def test_revoking_ends_access_at_once(
    tmp_path: Path, by: Callable[[Inhouse], dict[str, object]], role: str
) -> None:
    async def run() -> None:
        hold = Hold(1)
        async with inhouse(tmp_path, echo=EchoExecutor(gate=hold)) as home:
            running = home.caller().start("POST", CHAT, chat_body(stream=True))
            await running.until(lambda each: bool(each.parts))
            ask = {"tenant": "acme", "reason": "left", **by(home)}
            done = await home.operator(role).post("/v1/admin/tokens/revoke", ask)
            assert done.status == 200
            *_, fault, last = (await running.end()).events()
            assert fault["error"]["code"] == "authorization_revoked"
            assert last == "[DONE]"
            assert (await home.caller().chat()).status == 401
            hold.opened.set()
            assert (await home.caller("acme/bob").chat()).status == 200
            assert (await home.caller("globex/carol").chat()).status == 200
            await home.at_rest()

    asyncio.run(run())


def test_a_tenants_administrator_revokes_nobody_elses(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        carol = claims(home.tokens["globex/carol"])
        mine = home.operator("acme/admin")
        for ask in ({"token_id": carol["jti"]}, {"issuer": ISSUER, "subject": "carol"}):
            problem(await mine.post("/v1/admin/tokens/revoke", {"tenant": "globex", **ask}), 403)
            assert (await mine.post("/v1/admin/tokens/revoke", ask)).status == 200  # within acme
            assert (await home.caller("globex/carol").chat()).status == 200
        whoever = await home.operator().post("/v1/admin/tokens/revoke", {"token_id": carol["jti"]})
        assert whoever.status == 200
        assert (await home.caller("globex/carol").chat()).status == 401
        assert (await home.caller("globex/dave").chat()).status == 200

    lived(tmp_path, story)


def test_a_budget_takes_effect_at_once(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        assert (await home.caller().chat()).status == 200
        ask: dict[str, object] = {"tenant": "acme", "usd": "0", "reason": "closed"}
        assert (await home.operator().post("/v1/admin/budgets", ask)).status == 200
        refused = await home.caller().chat()
        assert (refused.status, refused.error["type"]) == (429, "insufficient_quota")
        assert refused.headers["x-should-retry"] == "false"
        assert (await home.caller("globex/carol").chat()).status == 200
        ask["usd"] = "0.05"
        assert (await home.operator().post("/v1/admin/budgets", ask)).status == 200
        assert (await home.caller().chat()).status == 200
        (tenant,) = (await home.caller().get("/v1/me")).json()["budgets"]
        assert (tenant["limit_usd"], tenant["held_usd"]) == ("0.050000000", "0.000000000")
        me: dict[str, object] = {"tenant": "acme", "usd": "0", "scope": "user", "id": "alice"}
        assert (await home.operator("acme/admin").post("/v1/admin/budgets", me)).status == 200
        assert (await home.caller().chat()).error["code"] == "insufficient_quota"
        assert (await home.caller("acme/bob").chat()).status == 200
        listed = (await home.operator("acme/finance").get("/v1/admin/budgets")).json()["budgets"]
        assert {(row["scope"], row["name"]) for row in listed} == {
            ("tenant", ""),
            ("user", "alice"),
        }

    lived(tmp_path, story, plan=replace(PLAN, budget=Budget(10**12)))


def test_every_change_is_recorded_with_its_actor(tmp_path: Path) -> None:
    async def run() -> None:
        async with inhouse(tmp_path) as home:
            operator = home.operator()
            key = (await operator.post("/v1/admin/keys", {"tenant": "acme", "user": "u"})).json()[
                "id"
            ]
            new = (await operator.post(f"/v1/admin/keys/{key}/rotate", {})).json()["id"]
            changes: tuple[tuple[str, dict[str, object]], ...] = (
                (f"/v1/admin/keys/{new}/revoke", {"reason": "SAID-BY-A-PERSON"}),
                ("/v1/admin/tokens/revoke", {"token_id": "t1", "tenant": "acme"}),
                ("/v1/admin/tokens/revoke", {"issuer": ISSUER, "subject": "eve", "tenant": "acme"}),
                ("/v1/admin/tenants/globex/suspend", {"reason": "SAID-BY-A-PERSON"}),
                ("/v1/admin/tenants/globex/resume", {}),
                ("/v1/admin/budgets", {"tenant": "acme", "usd": "7", "reason": "SAID-BY-A-PERSON"}),
            )
            for path, body in changes:
                assert (await operator.post(path, body)).status == 200
            records = home.audited()[1:]  # the chain's own first record
            assert [(each["kind"], each["tenant"], each["target"]) for each in records[:3]] == [
                ("key.created", "acme", key),
                ("key.rotated", "acme", key),
                ("key.revoked", "acme", new),
            ]
            assert [each["kind"] for each in records[3:]] == [
                *("token.revoked", "subject.revoked", "tenant.suspended"),
                *("revocation.confirmed", "tenant.resumed"),
                "budget.set",
            ]
            actor = {(each["subject"], each["credential_id"]) for each in records}
            assert len(actor) == 1
            assert claims(home.tokens["operator"])["jti"] in next(iter(actor))
            text = json.dumps(records)
            assert "SAID-BY-A-PERSON" not in text
            assert '"eve"' not in text
        mac_key = open_keyring(tmp_path / "root.key").derive(Purpose.AUDIT)
        verdict = verify(tmp_path / "audit", mac_key)
        assert verdict.ok
        assert verdict.macs_checked
        assert verdict.records == len(records) + 1
        segment = next((tmp_path / "audit").glob("*.jsonl"))
        forged = segment.read_bytes().replace(b"budget.set", b"budget.get")
        segment.write_bytes(forged)
        assert not verify(tmp_path / "audit", mac_key).ok

    asyncio.run(run())


def test_nothing_changes_unheard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the audit log cannot be written, a change is answered with an error."""

    async def run() -> None:
        from security.audit import AuditUnavailable

        async with inhouse(tmp_path) as home:

            async def down(event: object) -> int:
                raise AuditUnavailable

            monkeypatch.setattr(home.house.audit, "append", down)
            ask = {"tenant": "acme", "usd": "7"}
            problem(await home.operator().post("/v1/admin/budgets", ask), 503)
            problem(await home.operator("acme/alice").get("/v1/admin/status"), 503)

    asyncio.run(run())


def test_status_counts_what_runs(tmp_path: Path) -> None:
    async def run() -> None:
        hold = Hold(2)
        async with inhouse(tmp_path, echo=EchoExecutor(gate=hold)) as home:
            exchange = home.caller().start("POST", CHAT, chat_body(stream=True))
            await hold.waiting.wait()
            seen = (await home.operator().get("/v1/admin/status")).json()
            assert (seen["live_requests"], seen["open_holds"], seen["leases"]) == (1, 1, 1)
            gauges = seen["executor"]["gauges"]
            assert gauges["running"] == 1
            assert gauges["generated_tokens"] == 2
            assert gauges["blocks_free"] < gauges["blocks_total"]
            hold.opened.set()
            await exchange.end()
            seen = (await home.operator().get("/v1/admin/status")).json()
            assert (seen["live_requests"], seen["open_holds"], seen["leases"]) == (0, 0, 0)
            await home.at_rest()

    asyncio.run(run())


def test_usage_is_cut_by_time(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        await home.caller().chat()
        for query, requests in (
            ("from=2020-01-01", 1),
            ("from=2100-01-01", 0),
            ("to=2020-01-01", 0),
            ("to=1970-01-01", 0),
            ("to=2100-01-01T00:00:00Z", 1),
            ("from=2020-01-01T00:00:00%2B02:00&to=2100-01-01", 1),
            ("from=0001-01-01T00:00:00%2B14:00&to=9999-12-31T23:59:59-14:00", 1),
        ):
            answer = await home.operator().get("/v1/admin/usage", query)
            assert answer.json()["total"]["requests"] == requests, query

    lived(tmp_path, story)
