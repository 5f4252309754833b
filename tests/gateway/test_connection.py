"""What a connection leaves behind, and in how many writes an answer leaves.

A connection that is over leaves nothing to the cyclic collector.  What only the collector frees stays
until a full collection, and a server with a large heap at rest makes few of those: it would look like a
leak for a quarter of an hour."""

from __future__ import annotations

import asyncio
import gc
import socket
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from gateway import listen
from gateway.connection import GuardedConnection
from gateway.middleware.wire import Receive, Scope, Send, respond
from tests.gateway.raw_http import RawHttp, Running, fronted, hypercorn, request, until
from tests.gateway.test_listen import Tiny, play


async def answered(client: RawHttp) -> None:
    await client.send(request("GET /v1/x"))
    assert (await client.answer()).status == 200


async def left_while_it_waits(client: RawHttp) -> None:
    await client.send(request("POST /v1/wait", body=b"x"))


async def refused(client: RawHttp) -> None:
    await client.send(b"GET / HTTP/1.1\nHost: localhost\n\n")
    await client.rest()


async def silent(_: RawHttp) -> None:
    await asyncio.sleep(0)


@pytest.mark.parametrize("what", (answered, left_while_it_waits, refused, silent))
def test_a_connection_that_is_over_is_freed_at_once(
    what: Callable[[RawHttp], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[GuardedConnection]] = []

    def watched(*args: Any, **kwargs: Any) -> GuardedConnection:
        connection = GuardedConnection(*args, **kwargs)
        made.append(weakref.ref(connection))
        return connection

    async def scene(running: Running, tiny: Tiny) -> None:
        for _ in range(3):
            async with running.client() as client:
                await what(client)
        await until(lambda: len(made) == 3 and all(each() is None for each in made))

    monkeypatch.setattr(listen, "GuardedConnection", watched)
    gc.disable()
    try:
        play(scene)
    finally:
        gc.enable()


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What the connections of this test have written, one a call."""
    seen: list[bytes] = []

    def watched(*args: Any, **kwargs: Any) -> GuardedConnection:
        connection = GuardedConnection(*args, **kwargs)
        write = connection.writer.write

        def noted(data: bytes) -> None:
            seen.append(bytes(data))
            write(data)

        connection.writer.write = noted  # type: ignore[assignment,method-assign]
        return connection

    monkeypatch.setattr(listen, "GuardedConnection", watched)
    return seen


@pytest.mark.parametrize("path", ("/v1/x", "/v1/nothing", "/v1/tail"))
def test_an_answer_is_one_write(path: str, writes: list[bytes]) -> None:
    async def scene(running: Running, tiny: Tiny) -> None:
        async with running.client() as client:
            for _ in range(3):  # on one connection
                await client.send(request(f"GET {path}"))
                assert (await client.answer()).status == 200
        async with running.client() as client:
            await client.send(request(f"GET {path}", "Connection: close"))
            assert (await client.rest()).startswith(b"HTTP/1.1 200")

    play(scene)
    assert len(writes) == 4
    assert all(each.startswith(b"HTTP/1.1 200") for each in writes)


def test_a_head_goes_out_though_its_body_is_late(writes: list[bytes]) -> None:
    async def scene(running: Running, tiny: Tiny) -> None:
        async with running.client() as client:
            await client.send(request("GET /v1/head"))
            assert (await client.head()).status == 200
            assert len(writes) == 1
            tiny.release.set()
            assert await client.chunk() == b"HTTP/1.1 200 body"

    play(scene)


def test_a_text_that_looks_like_a_head_comes_behind_its_own(writes: list[bytes]) -> None:
    text = b"HTTP/1.1 200 \r\nlocation: elsewhere\r\n\r\n"

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, 201, [], text)

    async def run() -> None:
        async with hypercorn(fronted(app)) as running, running.client() as client:
            for _ in range(2):
                await client.send(request("GET /v1/x"))
                answer = await client.answer()
                assert (answer.status, answer.body) == (201, text)
        assert len(writes) == 2

    with asyncio.Runner(loop_factory=listen.loop_factory()) as runner:
        runner.run(run())


def test_a_head_goes_out_though_its_answer_is_cut() -> None:
    async def scene(running: Running, tiny: Tiny) -> None:
        async with running.client() as client:
            await client.send(request("GET /v1/cut"))
            assert (await client.rest()).startswith(b"HTTP/1.1 200")

    play(scene)


def test_a_first_piece_takes_its_head_along(writes: list[bytes]) -> None:
    async def scene(running: Running, tiny: Tiny) -> None:
        async with running.client() as client:
            await client.send(request("GET /v1/stream"))
            assert (await client.head()).status == 200
            assert await client.chunk() == b"begin"
            assert len(writes) == 1
            tiny.release.set()
            assert await client.chunk() == b"end"

    play(scene)


def test_waiting_for_the_next_request_makes_no_task() -> None:
    async def scene(running: Running, tiny: Tiny) -> None:
        async with running.client() as client:
            await answered(client)
            at_rest = len(asyncio.all_tasks())
            await answered(client)
            assert len(asyncio.all_tasks()) == at_rest
            names = {each.get_coro().__qualname__ for each in asyncio.all_tasks()}  # type: ignore[union-attr]
            assert not any("idle" in name for name in names)

    play(scene)


def test_under_load_newcomers_are_heard_within_a_few_turns_of_the_loop() -> None:
    """libuv accepts one connection by each listening handle in a turn, and under load a turn is long."""
    newcomers = 4 * listen.ACCEPTS
    heard, turns = 0, 0

    async def run() -> None:
        loop = asyncio.get_running_loop()
        all_heard: asyncio.Future[None] = loop.create_future()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            nonlocal heard
            heard += 1
            if heard == newcomers:
                all_heard.set_result(None)
            await respond(send, 200, [], b"")

        def turned() -> None:
            nonlocal turns
            turns += 1
            if not all_heard.done():
                loop.call_soon(turned)

        async with hypercorn(fronted(app)) as running, asyncio.timeout(10):
            socks = []
            for _ in range(newcomers):  # the kernel takes them in, while the loop stands still
                sock = socket.create_connection(("127.0.0.1", running.port), timeout=5)
                sock.sendall(request("GET /v1/x"))
                socks.append(sock)
            turned()
            await all_heard
            for sock in socks:
                sock.close()

    with asyncio.Runner(loop_factory=listen.loop_factory()) as runner:
        runner.run(run())
    assert turns < newcomers / 2
