"""SECURITY.md §4 at every public endpoint that takes a body, those that come later included: W11, W12, W14, W15,
A2, A11, A12 for what all of them have in common.  What each endpoint refuses of its own stands in its own test.

The table of every W and A case and its tests: security/THREATS.md.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route

from gateway.app import admin_app, public_app
from tests.gateway.inhouse import Inhouse, inhouse

pytestmark = pytest.mark.slow
REFUSED = frozenset({400, 404, 413, 415})  # 413 where an endpoint takes a few kilobytes only
NOT_JSON = (
    b"",
    b"{",
    b"[" * 10_000 + b"]" * 10_000,
    b'{"a":' * 10_000,
    b"\xef\xbb\xbf{}",
    b"{} x",
    b'{"model":"echo","model":"echo"}',
    b'{"model":"\\ud800"}',
    b'{"model":"\xff"}',
    b'{"model":NaN}',
    b'{"model":-Infinity}',
    b'{"model":' + b"9" * 400 + b"}",
    b'{"model":1e400}',
    b'{"model":"echo"}\x00',
    "{}".encode("utf-16"),
    "{}".encode("utf-32"),
)
NO_REQUEST: tuple[object, ...] = (
    [], 42, None, True, "x", {"model": None}, {"model": 7}, {"model": True}, {"model": ["echo"]},
    {"model": {"a": 1}}, {"model": ""}, {"model": "../echo"}, {"model": "echo\x00"},
    {"model": "x" * 100_000}, {"model": "echo", "stream": "yes"}, {"model": "echo", "stream": 1},
)  # fmt: skip


def every(app: Any) -> list[Route]:
    """The routes behind a listener's front, which stands in `rooms`."""
    while not hasattr(app, "router"):
        app = app.app
    return [each for each in app.router.routes if isinstance(each, Route)]


def posts(home: Inhouse) -> list[str]:
    """Of what is asked of a path alone; an object's id is whatever a caller likes."""
    routes = every(public_app(home.house, lambda: 1))
    found = [
        each.path.replace("{id}", "x").replace("{id:path}", "x")
        for each in routes
        if each.methods and "POST" in each.methods
    ]
    assert "/v1/chat/completions" in found
    return found


def play(folder: Path, story: Callable[[Inhouse], Awaitable[None]]) -> None:
    async def run() -> None:
        async with inhouse(folder) as home:
            before = len(asyncio.all_tasks())
            async with asyncio.timeout(120):
                await story(home)
            await home.at_rest()
            assert len(asyncio.all_tasks()) == before
            assert [entry for entry in home.logged if entry["event"] == "failed"] == []
            assert home.echo.gauges.prompt_tokens == 0

    asyncio.run(run())


async def refused(home: Inhouse, path: str, body: bytes, statuses: Collection[int]) -> None:
    answer = await home.caller().post(path, body)
    assert answer.status in statuses, (path, body[:60], answer.body)
    error = answer.json()["error"]
    assert isinstance(error["message"], str)
    assert len(answer.body) < 4096


def test_w14_what_is_no_json_is_a_400_everywhere(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        for path in posts(home):
            for body in NOT_JSON:
                # What names an absent object, or takes no body, has said so before it reads.
                await refused(home, path, body, REFUSED)

    play(tmp_path, story)


def test_a2_a11_what_is_no_request_is_refused_everywhere(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        for path in posts(home):
            for body in NO_REQUEST:
                await refused(home, path, json.dumps(body).encode(), REFUSED)

    play(tmp_path, story)


def test_w11_w12_compressed_and_oversize_bodies_are_refused_everywhere(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        for path in posts(home):
            for coding in ("gzip", "br", "deflate", "x-gzip", "identity, gzip"):
                answer = await home.caller().with_headers(content_encoding=coding).post(path, b"{}")
                assert answer.status == 415, (path, coding)
            big = b'{"model":"' + b"x" * (4 * 1024 * 1024) + b'"}'
            answer = await home.caller().post(path, big)
            assert answer.status == 413, path
            answer = await home.caller().with_headers(content_length="99999999").post(path, b"{}")
            assert answer.status == 413, path

    play(tmp_path, story)


def test_nobody_unknown_is_read_from_anywhere(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        for path in posts(home):
            for body in (b"{}", b"{", b"x" * 100_000):
                answer = await home.caller(None).post(path, body)
                assert answer.status in {400, 401}, (path, answer.status)
                assert b"credential" in answer.body

    play(tmp_path, story)


def test_w15_what_administrators_have_is_not_there_for_customers(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        theirs = {each.path for each in every(admin_app(home.house))}
        ours = {each.path for each in every(public_app(home.house, lambda: 1))}
        names = {
            *(theirs - ours),
            "/docs",
            "/redoc",
            "/debug",
            "/pause",
            "/invocations",
            "/v1/admin",
        }
        assert {"/metrics", "/v1/admin/keys", "/v1/admin/cache/purge"} <= names
        absent = await home.caller().get("/v1/nothing")
        for name in sorted(names):
            path = name.replace("{id}", "x")
            for method in ("GET", "POST"):
                for who in ("acme/admin", "operator", None):
                    answer = await home.caller(who).start(method, path, b"{}").end()
                    assert answer.status == 404, (method, path, answer.body)
                    assert answer.body == absent.body

    play(tmp_path, story)
