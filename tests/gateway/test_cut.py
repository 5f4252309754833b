"""What is cut at the end of a drain, and what the callers hear of it."""

from __future__ import annotations

import asyncio
import json

import pytest

from gateway import listen
from gateway.guard import FrontBounds, read_body
from gateway.middleware.wire import Receive, Scope, Send, respond
from tests.gateway.raw_http import RawHttp, Running, fronted, hypercorn, request

pytestmark = pytest.mark.slow
DRAIN_S = 0.1
BOUNDS = FrontBounds(linger_s=0.1)


class App:
    """`entered` once for each request that is then read whole and worked at for ever; a text is answered at once."""

    def __init__(self) -> None:
        self.entered = asyncio.Semaphore(0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].endswith("/text"):
            lines = b"HTTP/1.1 200\r\nconnection: close\r\nconnection: close\r\n\r\n"
            await respond(send, 200, [(b"connection", b"close")], lines)
            return
        self.entered.release()
        await read_body(receive, limit=1000)
        await asyncio.Event().wait()


async def raw_answer(client: RawHttp) -> tuple[list[str], bytes]:
    head, _, body = (await client.rest()).partition(b"\r\n\r\n")
    return head.decode().lower().split("\r\n"), body


@pytest.mark.parametrize("path", ("/v1/chat/completions", "/v1/responses", "/v1/messages"))
@pytest.mark.parametrize("left", (0, 1))
@pytest.mark.parametrize("how", ("drained", "cancelled"))
def test_what_is_cut_before_its_answer_began_is_told(path: str, left: int, how: str) -> None:
    """Its body never ended, or its work."""
    asked = request(f"POST {path}", body=b"0123456789")

    async def run() -> None:
        app = App()
        async with hypercorn(fronted(app, bounds=BOUNDS), drain_s=DRAIN_S) as running:
            async with running.client() as client:
                await client.send(asked[: len(asked) - left])
                await app.entered.acquire()
                running.draining.set()
                assert running.served is not None
                if how == "drained":
                    running.shutdown.set()
                else:
                    running.served.cancel()
                    await asyncio.wait({running.served})
                    running.served = asyncio.create_task(asyncio.sleep(0))
                head, body = await raw_answer(client)
            await running.served
        assert head[0].startswith("http/1.1 503 ")
        assert head.count("connection: close") == 1
        assert "x-request-id: req_1" in head
        assert f"content-length: {len(body)}" in head
        said = json.loads(body)
        assert said["error"]["code"] == "draining"
        anthropic = path == "/v1/messages"
        assert (said.get("type"), said.get("request_id")) == (
            ("error", "req_1") if anthropic else (None, None)
        )

    with asyncio.Runner(loop_factory=listen.loop_factory()) as runner:
        runner.run(run())


def test_while_draining_an_answer_says_once_that_it_closes_and_its_text_stays() -> None:
    async def run() -> None:
        async with hypercorn(fronted(App(), bounds=BOUNDS)) as running:
            running.draining.set()
            await asyncio.sleep(0)
            await _said_once(running)

    with asyncio.Runner(loop_factory=listen.loop_factory()) as runner:
        runner.run(run())


async def _said_once(running: Running) -> None:
    async with running.client() as client:
        await client.send(request("GET /v1/text"))
        head, body = await raw_answer(client)
    assert head.count("connection: close") == 1
    assert body.count(b"connection: close") == 2
