"""Connections that wait: who leaves when the server drains and who makes room where no place is left, without a request
cut that had begun to come."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack
from typing import Any

import pytest

from gateway import listen
from gateway.connection import Bounds, GuardedConnection
from gateway.connections import Counts
from gateway.listen import Bound
from gateway.middleware.wire import Receive, Scope, Send, respond
from gateway.wire_guard import Fault
from tests.gateway.raw_http import RawHttp, Running, fronted, hypercorn, request, until
from tests.gateway.test_listen import GET, Tiny, play

slow = pytest.mark.slow
WAIT = request("GET /v1/wait")
STREAM = request("GET /v1/stream")


async def kept(client: RawHttp) -> RawHttp:
    """It has had an answer and waits for its next question."""
    await client.send(GET)
    answer = await client.answer()
    assert (answer.status, answer.headers.get("connection")) == (200, None)
    return client


async def last(client: RawHttp, body: bytes = b"/v1/x") -> None:
    """An answer that says that it is the last, and is."""
    answer = await client.answer()
    assert (answer.status, answer.body) == (200, body)
    assert answer.headers["connection"] == "close"
    assert await client.rest() == b""


# Draining


@slow
def test_draining_lets_go_who_waits_and_serves_whose_request_is_on_its_way() -> None:
    async def scene(running: Running, tiny: Tiny) -> None:
        async with (
            running.client() as idle,
            running.client() as half,
            running.client() as silent,
            running.client() as busy,
        ):
            await kept(idle)
            await half.send(GET[:10])
            await busy.send(STREAM)
            await busy.head()
            await until(lambda: running.counts() == Counts(opening=2, idle=1, busy=1))
            running.draining.set()
            assert await idle.rest() == b""
            async with running.client() as late:
                await late.send(GET)
                await last(late)
            for client, rest in ((half, GET[10:]), (silent, GET)):
                await client.send(rest)
                await last(client)
            tiny.release.set()
            assert [await busy.chunk() for _ in range(3)] == [b"begin", b"end", b""]
            assert await busy.rest() == b""
            await until(lambda: running.counts() == Counts())

    play(scene, bounds=Bounds(keep_alive_s=60, head_s=60))


@slow
def test_what_stands_behind_an_answer_that_draining_found_at_work_is_answered_too() -> None:
    """Its head had promised that the connection stays."""

    async def scene(running: Running, tiny: Tiny) -> None:
        async with running.client() as client:
            await client.send(STREAM + GET + GET)
            await client.head()
            running.draining.set()
            tiny.release.set()
            assert [await client.chunk() for _ in range(3)] == [b"begin", b"end", b""]
            await last(client)

    play(scene)


@slow
def test_what_stands_behind_an_answer_that_says_close_is_not_begun() -> None:
    async def scene(running: Running, tiny: Tiny) -> None:
        async with running.client() as client, running.client() as idle:
            await kept(idle)
            tiny.entered.clear()
            await client.send(WAIT + GET + GET[:20])
            await tiny.entered.wait()
            running.draining.set()
            assert await idle.rest() == b""
            tiny.release.set()
            await last(client, b"released")

    play(scene)


@slow
@pytest.mark.parametrize("bounds", (Bounds(), Bounds(keep_alive_s=0.05)))
def test_a_request_that_comes_as_its_connection_is_closed_is_answered_or_not_begun(
    bounds: Bounds,
) -> None:
    """At every turn of the loop between the kernel and the handler."""
    begun = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal begun
        begun += 1
        await respond(send, 200, [], b"here")

    async def scene(turns: int) -> bytes:
        nonlocal begun
        async with hypercorn(fronted(app), bounds=bounds) as running:
            with socket.create_connection(("127.0.0.1", running.port), timeout=5) as sock:
                loop = asyncio.get_running_loop()
                sock.setblocking(False)
                await loop.sock_sendall(sock, GET)
                assert b"here" in await loop.sock_recv(sock, 4096)
                begun = 0
                if (
                    bounds.keep_alive_s < 1
                ):  # the timer is due in the turn in which the bytes are read
                    end_s = loop.time() + bounds.keep_alive_s + turns / 2000 - 0.004
                    while loop.time() < end_s:
                        await asyncio.sleep(0)
                    sock.send(GET)
                else:
                    sock.send(GET)
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    running.draining.set()
                said = b""
                while data := await loop.sock_recv(sock, 4096):
                    said += data
                return said

    for turns in range(16):
        with asyncio.Runner(loop_factory=listen.loop_factory()) as runner:
            said = runner.run(scene(turns))
        assert said.count(b"HTTP/1.1 200") == said.count(b"here") == begun, (turns, said)


@slow
@pytest.mark.parametrize("read", (GET, GET[:9]))
def test_what_was_read_as_its_connection_was_to_leave_is_answered(
    read: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lies in the reader, and nobody has looked at it yet."""
    made: list[GuardedConnection] = []

    def watched(*args: Any, **kwargs: Any) -> GuardedConnection:
        made.append(GuardedConnection(*args, **kwargs))
        return made[-1]

    async def scene(running: Running, tiny: Tiny) -> None:
        async with running.client() as client:
            await kept(client)
            lines = made[0]._connections
            made[0].reader.feed_data(read)
            assert not lines.has_room()
            lines.drain()
            await client.send(GET.removeprefix(read))
            assert (await client.answer()).body == b"/v1/x"
            assert await client.rest() == b""
        made.clear()

    monkeypatch.setattr(listen, "GuardedConnection", watched)
    play(scene, bounds=Bounds(connections_max=1))


@slow
def test_at_the_end_whoever_has_sent_no_whole_head_is_told() -> None:
    async def scene(running: Running, tiny: Tiny) -> None:
        async with running.client() as half, running.client() as silent, running.client() as idle:
            await kept(idle)
            await half.send(GET[:-1])
            await until(lambda: running.counts() == Counts(opening=2, idle=1))
            running.shutdown.set()
            for client in (half, silent):
                answer = await client.answer()
                assert (answer.status, answer.code) == (503, "draining")
                assert answer.headers["connection"] == "close"
                assert await client.rest() == b""
            assert await idle.rest() == b""
            assert running.served is not None
            await asyncio.wait_for(asyncio.shield(running.served), 5)
            assert running.refused == [Fault.DRAINING] * 2

    play(scene)


# Making room


@slow
def test_whoever_is_kept_longest_makes_room_for_who_comes() -> None:
    async def scene(running: Running, tiny: Tiny) -> None:
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(running.client()) for _ in range(8)]
            for client in clients:
                await kept(client)
            await kept(clients[0])  # now the youngest
            assert (await running.ask(GET)).body == b"/v1/x"
            assert await clients[1].rest() == b""
            for client in (*clients[2:], clients[0]):
                await kept(client)
            assert running.counts().made_room == 1
            assert running.refused == []

    play(scene, bounds=Bounds(connections_max=8, keep_alive_s=60))


@slow
def test_who_makes_room_and_asks_just_then_sees_a_close_and_no_reset() -> None:
    async def scene(running: Running, tiny: Tiny) -> None:
        loop = asyncio.get_running_loop()
        with socket.create_connection(("127.0.0.1", running.port), timeout=5) as sock:
            sock.setblocking(False)
            await loop.sock_sendall(sock, GET)
            assert b"/v1/x" in await loop.sock_recv(sock, 4096)
            assert (await running.ask(GET)).status == 200
            await loop.sock_sendall(sock, request("POST /v1/echo", body=b"x" * 100_000))
            assert await loop.sock_recv(sock, 4096) == b""
        await until(lambda: running.counts() == Counts(made_room=1))

    play(scene, bounds=Bounds(connections_max=1, keep_alive_s=60))


@slow
@pytest.mark.parametrize(
    "sent", (WAIT, request("POST /v1/echo", "Content-Length: 9") + b"x", WAIT + GET + GET[:9])
)
def test_whoever_is_served_or_sends_its_body_makes_no_room_and_who_comes_is_told(
    sent: bytes,
) -> None:
    async def scene(running: Running, tiny: Tiny) -> None:
        loop = asyncio.get_running_loop()
        async with running.client() as busy:
            await busy.send(sent)
            await tiny.entered.wait()
            with socket.create_connection(("127.0.0.1", running.port), timeout=5) as sock:
                sock.sendall(request("POST /v1/echo", body=b"x" * 20_000))  # before it is let in
                sock.setblocking(False)
                said = b""
                while data := await loop.sock_recv(sock, 4096):  # and no reset at its end
                    said += data
                assert said.startswith(b"HTTP/1.1 503 ")
                assert b'"too_many_connections"' in said
            assert running.counts().busy == 1
            assert running.refused == [Fault.CONNECTIONS]

    play(scene, bounds=Bounds(connections_max=1))


@slow
def test_a_head_that_takes_long_makes_room_first_and_is_told() -> None:
    async def scene(running: Running, tiny: Tiny) -> None:
        async with running.client() as idle, running.client() as drips, running.client() as begins:
            await kept(idle)
            await drips.send(b"GET")
            await until(lambda: running.counts() == Counts(opening=2, idle=1))
            await asyncio.sleep(0.2)
            await kept(begins)
            await begins.send(
                b"GET"
            )  # at once a good one's first packet, and older as a connection
            await until(lambda: running.counts() == Counts(opening=2, idle=1))
            assert (await running.ask(GET)).status == 200
            answer = await drips.answer()
            assert (answer.status, answer.code) == (503, "too_many_connections")
            assert await drips.rest() == b""
            await begins.send(GET[3:])
            assert (await begins.answer()).status == 200
            await kept(idle)
            assert running.refused == [Fault.CONNECTIONS]

    play(scene, bounds=Bounds(connections_max=3, head_grace_s=0.1))


@slow
def test_whoever_takes_all_places_of_one_listener_has_none_of_the_other() -> None:
    async def run() -> None:
        tiny = Tiny()
        shutdown = asyncio.Event()
        ready: asyncio.Future[list[Bound]] = asyncio.get_running_loop().create_future()
        served = asyncio.create_task(
            listen.serve(
                [
                    listen.Listener(name, fronted(tiny), "127.0.0.1:0")
                    for name in ("public", "admin")
                ],
                shutdown=shutdown,
                drain_s=1,
                on_ready=lambda bound: ready.set_result(list(bound)),
                mint=lambda: "req",
                reports=listen.Reports(lambda _: None, lambda _: None),
                bounds=Bounds(connections_max=1),
            )
        )
        public, admin = await ready
        async with Running(public.port).client() as busy:
            await busy.send(WAIT)
            await tiny.entered.wait()
            assert (await Running(public.port).ask(GET)).status == 503
            assert (await Running(admin.port).ask(GET)).status == 200
            assert (public.connections().busy, admin.connections().busy) == (1, 0)
            tiny.release.set()
        shutdown.set()
        await served

    asyncio.run(run())
