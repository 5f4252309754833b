"""The application-level cases on Hypercorn, which the product runs on, and on uvicorn: the front is
plain ASGI and owes nothing to either."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import pytest

from gateway import strict_json
from gateway.errors import unauthenticated
from gateway.guard import FrontBounds, read_body
from gateway.middleware.wire import ASGIApp, Receive, Scope, Send, respond
from tests.gateway.raw_http import (
    Running,
    Told,
    fronted,
    hypercorn,
    request,
    until,
    uvicorn_server,
)

pytestmark = pytest.mark.slow
Server = Callable[[ASGIApp], AbstractAsyncContextManager[Running]]
SERVERS = pytest.mark.parametrize("server", (hypercorn, uvicorn_server))
BOUNDS = FrontBounds(body_bytes_max=1000, body_s=0.3, send_s=0.3, linger_s=0.2, live_max=2)


class App:
    def __init__(self) -> None:
        self.entered = 0
        self.ended = 0
        self.gone = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.entered += 1
        try:
            await self._answer(scope, receive, send)
        finally:
            self.ended += 1

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["path"]:
            case "/v1/json":
                strict_json.loads(await read_body(receive, limit=1000))
                await respond(send, 200, [], b"{}")
            case "/v1/denied":
                raise unauthenticated()
            case "/v1/boom":
                raise RuntimeError("secret")
            case "/v1/boom-late":
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b"begin", "more_body": True})
                raise RuntimeError("secret")
            case "/v1/wait":
                await read_body(receive, limit=1000)
                assert (await receive())["type"] == "http.disconnect"
                self.gone.set()
            case "/v1/flood":
                await send({"type": "http.response.start", "status": 200, "headers": []})
                while True:
                    await send(
                        {"type": "http.response.body", "body": b"x" * 65536, "more_body": True}
                    )
            case _:
                await respond(send, 200, [], scope["path"].encode())


def play(
    server: Server,
    scene: Callable[[Running, App, Told], Awaitable[None]],
    bounds: FrontBounds = BOUNDS,
) -> None:
    async def run() -> None:
        app, told = App(), Told()
        async with server(fronted(app, told, bounds=bounds)) as running:
            before = len(asyncio.all_tasks())
            await scene(running, app, told)
            await until(lambda: app.entered == app.ended)
            await until(lambda: len(asyncio.all_tasks()) <= before)

    asyncio.run(run())


@SERVERS
@pytest.mark.parametrize(
    ("data", "status", "code"),
    (
        # W4
        (request("GET /v1/x", host="evil.com"), 421, "misdirected_request"),
        (request("GET /v1/x", host="localhost/health?"), 400, "invalid_host"),
        (request("GET /v1/x", host="a@localhost"), 400, "invalid_host"),
        # W5, W15
        (request("GET /v1%2fx"), 404, "not_found"),
        (request("GET /v1/../admin"), 404, "not_found"),
        (request("GET /v1//x"), 404, "not_found"),
        (request("GET //localhost/v1/x"), 404, "not_found"),
        (request("GET /v1/x;y"), 404, "not_found"),
        (request("GET /v1/x%00"), 404, "not_found"),
        (request("GET /v1/x/"), 404, "not_found"),
        # J19
        (request("GET /v1/x", "Authorization: a", "authorization: b"), 400, "duplicate_header"),
        (request("GET /v1/x?access_token=a"), 400, "credential_in_query"),
        # W11
        (request("POST /v1/json", "Content-Encoding: gzip", body=b"{}"), 415, None),
        (request("POST /v1/json", "Content-Encoding: br", body=b"x" * 900), 415, None),
        (request("POST /v1/json", "Expect: magic", body=b"{}"), 417, "expectation_failed"),
        # W12
        (request("POST /v1/json", "Content-Length: 1001"), 413, "request_too_large"),
        (request("POST /v1/json", "Content-Length: 99999999999"), 413, "request_too_large"),
        (
            request("POST /v1/json", "Transfer-Encoding: chunked")
            + b"1f4\r\n%b\r\n" % (b" " * 500)
            + b"1f5\r\n%b\r\n" % (b" " * 501),
            413,
            "request_too_large",
        ),
        # W14
        (request("POST /v1/json", body=b"[" * 999), 400, "invalid_json"),
        (request("POST /v1/json", body=b'{"a":1,"a":2}'), 400, "invalid_json"),
        (request("POST /v1/json", body=b'{"a":NaN}'), 400, "invalid_json"),
        (request("POST /v1/json", body=b"1" * 400), 400, "invalid_json"),
        (request("POST /v1/json", body=b"\xef\xbb\xbf{}"), 400, "invalid_json"),
        (request("POST /v1/json", body=b"{} x"), 400, "invalid_json"),
        (request("POST /v1/json", body=b'"\\ud800"'), 400, "invalid_json"),
        # ours
        (request("GET /v1/denied"), 401, "invalid_api_key"),
        (request("GET /v1/boom"), 500, "internal_error"),
    ),
)
def test_each_refusal_has_its_status_and_its_shape(
    server: Server, data: bytes, status: int, code: str | None
) -> None:
    async def scene(running: Running, app: App, told: Told) -> None:
        answer = await running.ask(data)
        assert answer.status == status
        assert code is None or answer.code == code
        assert answer.headers["x-request-id"] == "req_1"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-type"] == "application/json"
        assert b"secret" not in answer.body
        assert len(told.errors) == (status == 500)
        assert (await running.ask(request("GET /v1/x"))).status == 200  # and the house stands

    play(server, scene)


@SERVERS
def test_a_body_of_one_byte_a_while_is_cut_at_the_total_deadline(server: Server) -> None:
    async def scene(running: Running, app: App, told: Told) -> None:
        async with running.client() as client:
            await client.send(request("POST /v1/json", "Content-Length: 900"))

            async def drip() -> None:
                while True:
                    await client.send(b" ")
                    await asyncio.sleep(0.02)

            dripping = asyncio.create_task(drip())
            answer = await client.answer()
            assert (answer.status, answer.code) == (408, "body_too_slow")
            assert answer.headers["connection"] == "close"
            await client.rest()
            dripping.cancel()
            await asyncio.wait({dripping})

    play(server, scene)


@SERVERS
def test_ten_rejected_uploads_of_a_mebibyte_leave_nothing_behind(server: Server) -> None:
    async def scene(running: Running, app: App, told: Told) -> None:
        for path in ["/v1/denied", "/v1/x"] * 5:
            async with running.client() as client:
                await client.send(request(f"POST {path}", f"Content-Length: {1 << 20}"))
                await client.send(b"x" * (1 << 20))
                assert (await client.answer()).status in {200, 401}

    play(server, scene, FrontBounds())


@SERVERS
def test_an_expecting_client_is_told_to_continue_or_not(server: Server) -> None:
    async def scene(running: Running, app: App, told: Told) -> None:
        async with running.client() as client:
            await client.send(request("POST /v1/json", "Expect: 100-continue", "Content-Length: 2"))
            assert (await client.head()).status == 100
            await client.send(b"{}")
            assert (await client.answer()).status == 200

    play(server, scene)


@SERVERS
def test_a_caller_that_leaves_mid_body_or_after_it_is_noticed(server: Server) -> None:
    async def scene(running: Running, app: App, told: Told) -> None:
        async with running.client() as client:
            await client.send(request("POST /v1/json", "Content-Length: 10") + b"{")
            await until(lambda: app.entered == 1)
        async with running.client() as client:
            await client.send(request("POST /v1/wait", body=b"{}"))
            await until(lambda: app.entered == 2)
        await asyncio.wait_for(app.gone.wait(), 5)
        assert told.errors == []

    play(server, scene, FrontBounds())


@SERVERS
def test_a_stalled_reader_ends_its_handler(server: Server) -> None:
    async def scene(running: Running, app: App, told: Told) -> None:
        async with running.client(receive_buffer=4096) as client:
            await client.send(request("GET /v1/flood"))
            await until(lambda: app.ended == 1)
            assert told.stalled == ["req_1"]

    play(server, scene)


@SERVERS
def test_a_failure_after_the_answer_began_is_seen_as_a_cut(server: Server) -> None:
    async def scene(running: Running, app: App, told: Told) -> None:
        async with running.client() as client:
            await client.send(request("GET /v1/boom-late"))
            assert (await client.head()).status == 200
            assert await client.chunk() == b"begin"
            assert await client.rest() == b""  # closed without the final chunk
        assert len(told.errors) == 1

    play(server, scene)


@SERVERS
def test_more_handlers_than_the_bound_are_sent_away(server: Server) -> None:
    async def scene(running: Running, app: App, told: Told) -> None:
        async with running.client() as one, running.client() as two:
            for client in (one, two):
                await client.send(request("POST /v1/wait", body=b"{}"))
            await until(lambda: app.entered == 2)
            answer = await running.ask(request("POST /v1/json", body=b"{}"))
            assert (answer.status, answer.code) == (503, "overloaded")
            assert answer.headers["retry-after"] == "1"
            assert (await running.ask(request("GET /health"))).status == 200
        await until(lambda: app.ended == app.entered)
        assert (await running.ask(request("POST /v1/json", body=b"{}"))).status == 200

    play(server, scene)


@SERVERS
def test_head_answers_have_no_body(server: Server) -> None:
    async def scene(running: Running, app: App, told: Told) -> None:
        async with running.client() as client:
            await client.send(request("HEAD /v1%2fx") + request("GET /v1/x"))
            assert (await client.head()).status == 404
            assert (await client.answer()).body == b"/v1/x"

    play(server, scene)
