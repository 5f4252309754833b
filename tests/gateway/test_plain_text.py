"""Every text that administrators send is one line without control characters, on every route of theirs.

PostgreSQL keeps no NUL and SQLite does, so that what was accepted here failed there.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import pytest
from starlette.routing import Route

from gateway.app import admin_app
from tests.gateway.inhouse import Inhouse, inhouse
from tests.gateway.test_admin import DOORS, knock, problem
from tests.gateway.test_exports import NOW
from tests.gateway.test_line import lived
from tests.servers_postgres import database, needs_postgres

BAD = ("\0", "a\0b", "a\nb", "a\r", "\t", "\x1b[2J", "\x7f", "\x85", "\u2028", "\u2029")
REASONS = ("Überzahlt, Fall №7 „eilig“", "退款", "🧑‍💼 asked", " two  words ")
OPERATOR = "operator"
FOUND_FROM_THE_DATABASE = (
    ("/v1/admin/usage", "by=tenant&tenant={}"),
    ("/v1/admin/usage", "by=tenant&user={}"),
    ("/v1/admin/usage/export", f"period={NOW}&tenant={{}}"),
    ("/v1/admin/usage/export/manifest", f"period={NOW}&tenant={{}}"),
    ("/v1/organization/costs", "start_time=1&tenant={}"),
    ("/v1/admin/budgets/adjustments", "request_id={}"),
)


async def queries(home: Inhouse) -> AsyncIterator[tuple[str, str]]:
    """Each route that reads, with each name that its query may have, as it says itself."""
    rooms = admin_app(home.house).app  # type: ignore[attr-defined]
    for route in rooms.router.routes:
        assert isinstance(route, Route)
        if "GET" not in (route.methods or ()):
            continue
        path = route.path.replace("{id}", "acme")
        told = await home.operator().get(path, "none_such=1")
        if told.status == 400 and "Expected: " in (says := told.json()["detail"]):
            for name in says.split("Expected: ")[1].rstrip(".").split(", "):
                if name != "none":
                    yield path, name


def page_of(*values: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")


async def none_passes(home: Inhouse, bad: tuple[str, ...]) -> None:
    for path, query in FOUND_FROM_THE_DATABASE:
        for text in bad:
            escaped = quote(text)
            told = await home.operator().get(path, query.format(escaped))
            assert told.status == 400, (path, query, text, told.body)
    for path in ("/v1/admin/usage", "/v1/organization/costs"):
        told = await home.operator().get(path, f"start_time=1&page={page_of('a' + bad[0])}")
        assert told.status == 400
    asked = f"by=tenant&page={page_of('a' + bad[0])}"
    assert (await home.operator().get("/v1/admin/usage", asked)).status == 400


def test_no_query_of_any_route_holds_a_control_character(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        seen = [each async for each in queries(home)]
        assert len(seen) > 40
        assert {"/v1/admin/usage", "/v1/admin/check", "/v1/organization/costs"} <= dict(seen).keys()
        for number, (path, name) in enumerate(seen):
            for text in ("a\0", BAD[number % len(BAD)]):
                told = problem(await home.operator().get(path, f"{name}={quote(text)}"), 400)
                assert told["param"] == name
        await none_passes(home, BAD)

    lived(tmp_path, story)


def test_no_body_of_any_route_holds_a_control_character(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        request = (await home.caller().chat()).headers["x-request-id"]
        fields: set[tuple[str, str]] = set()
        for each in DOORS:
            if each.method != "POST" or OPERATOR not in each.allowed:
                continue
            path = each.path.format(key="k", request=request)
            for name in {"reason", *(each.body or {})}:
                if not isinstance((each.body or {}).get(name, ""), str):
                    continue
                for text in ("a\0", BAD[len(fields) % len(BAD)]):
                    body = {**(each.body or {}), name: text}
                    told = await home.operator().start("POST", path, body).end()
                    if each.body is None:
                        assert told.status in {400, 404}, (path, body)
                        continue
                    assert told.status == 400, (path, body, told.body)
                    fields.add((path, name))
        assert len(fields) > 25

    lived(tmp_path, story)


def test_a_reason_is_whatever_people_write_on_one_line(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        (credit,) = (each for each in DOORS if each.path.endswith("/credit"))
        for reason in REASONS:
            body = {**(credit.body or {}), "reason": reason}
            told = await home.operator().start("POST", credit.path, body).end()
            assert told.status == 200, told.body
            assert told.json()["reason"] == reason
        await knock(home.operator(), credit, key="", request="")

    lived(tmp_path, story)


@pytest.mark.slow
@needs_postgres
def test_postgresql_is_asked_for_no_nul(tmp_path: Path) -> None:
    """Where nothing is refused at the edge, these are 500."""

    async def run(url: str) -> None:
        async with inhouse(tmp_path, database_url=url) as home:
            assert (await home.caller().chat()).status == 200
            await none_passes(home, ("\0",))
            body = {"tenant": "acme", "usd": "1", "reason": "a\0b"}
            told = await home.operator().post("/v1/admin/budgets/credit", body)
            assert told.status == 400
            for who, path in (
                (home.caller(), "/v1/requests"),
                (home.operator(), "/v1/admin/requests"),
            ):
                assert (await who.get(f"{path}/%00")).status == 404  # no path has any
            assert [entry for entry in home.logged if entry["event"] == "failed"] == []

    with database() as url:
        asyncio.run(run(url))
