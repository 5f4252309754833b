"""The served front against raw sockets: what the byte level and the connection must withstand."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from gateway import listen
from gateway.connection import Bounds, check_hypercorn
from gateway.guard import FrontBounds, read_body
from gateway.middleware.wire import ASGIApp, Receive, Scope, Send, respond
from gateway.wire_guard import Fault
from tests.gateway.raw_http import (
    Answer,
    Running,
    Told,
    fronted,
    hypercorn,
    request,
    until,
)

slow = pytest.mark.slow
GET = request("GET /v1/x")
BIG = b"x" * 65536


class Tiny:
    """A few behaviours by path."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.gone = asyncio.Event()
        self.cancelled = 0
        self.release = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.entered.set()
        match scope["path"]:
            case "/v1/echo":
                body = await read_body(receive, limit=1 << 22)
                await respond(send, 200, [], str(len(body)).encode())
            case "/v1/wait":
                await read_body(receive, limit=1 << 22)
                await self._wait(receive, send)
            case "/v1/stream":
                await self._start(send)
                await self.release.wait()
                await send({"type": "http.response.body", "body": b"end"})
            case "/v1/head":
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await self.release.wait()
                await send({"type": "http.response.body", "body": b"HTTP/1.1 200 body"})
            case "/v1/cut":
                await send({"type": "http.response.start", "status": 200, "headers": []})
            case "/v1/nothing":
                await respond(send, 200, [], b"")
            case "/v1/late":
                await self._start(send)
                await asyncio.sleep(0.05)  # the unread body fills the server's queue meanwhile
                await send({"type": "http.response.body", "body": b"end"})
            case "/v1/stubborn":
                while (await receive())["type"] != "http.disconnect":
                    pass
                await respond(send, 200, [], b"all the same")
            case "/v1/tail":
                await respond(send, 200, [], b"x" * 60_000)
            case "/v1/flood":
                await self._start(send)
                try:
                    while True:
                        await send({"type": "http.response.body", "body": BIG, "more_body": True})
                except asyncio.CancelledError:
                    self.cancelled += 1
                    raise
            case _:
                await respond(send, 200, [], scope["path"].encode())

    async def _wait(self, receive: Receive, send: Send) -> None:
        message = asyncio.ensure_future(receive())
        release = asyncio.ensure_future(self.release.wait())
        await asyncio.wait({message, release}, return_when=asyncio.FIRST_COMPLETED)
        release.cancel()
        if message.done():
            assert message.result()["type"] == "http.disconnect"
            self.gone.set()
            return
        message.cancel()
        await respond(send, 200, [], b"released")

    async def _start(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begin", "more_body": True})


def play(
    scene: Callable[[Running, Tiny], Awaitable[None]],
    *,
    bounds: Bounds | None = None,
    front_bounds: FrontBounds | None = None,
    drain_s: float = 5.0,
    told: Told | None = None,
) -> None:
    async def run() -> None:
        tiny = Tiny()
        async with hypercorn(
            fronted(tiny, told, bounds=front_bounds), bounds=bounds, drain_s=drain_s
        ) as running:
            await scene(running, tiny)

    with asyncio.Runner(loop_factory=listen.loop_factory()) as runner:
        runner.run(run())


ATTACKS: list[tuple[bytes, int, Fault]] = [
    # W1
    (
        (
            b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        ),
        400,
        Fault.AMBIGUOUS_LENGTH,
    ),
    (
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        400,
        Fault.CONTENT_LENGTH,
    ),
    (
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        501,
        Fault.TRANSFER_ENCODING,
    ),
    (
        (
            b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"3\r\nabcXX0\r\n\r\n"
        ),
        400,
        Fault.CHUNK,
    ),
    # W2
    (b"GET / HTTP/1.1\nHost: localhost\n\n", 400, Fault.BARE_NEWLINE),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n", 400, Fault.HEADER),
    (
        (
            b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"3;x=y\r\nabc\r\n0\r\n\r\n"
        ),
        400,
        Fault.CHUNK_EXTENSION,
    ),
    (b"GET / HTTP/1.0\r\n\r\n", 400, Fault.VERSION_OLD),
    # W4, on the wire
    (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n", 400, Fault.HOST),
    (b"GET http://evil/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, Fault.TARGET),
    # W10
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00" * 4096, 505, Fault.VERSION),
    (
        (
            b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\n"
            b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
        ),
        400,
        Fault.UPGRADE,
    ),
    (
        (
            b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        ),
        400,
        Fault.UPGRADE,
    ),
    # sizes
    (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n", 414, Fault.REQUEST_LINE_LONG),
    (request("GET /", "X: " + "a" * 20_000), 431, Fault.HEADERS_LARGE),
    (request("GET /", *(f"X{i}: 1" for i in range(300))), 431, Fault.HEADERS_MANY),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500, 400, Fault.REQUEST_LINE),
]


@slow
@pytest.mark.parametrize(("data", "status", "fault"), ATTACKS)
def test_attacks_on_the_wire_get_an_answer_and_the_door(
    data: bytes, status: int, fault: Fault
) -> None:
    async def scene(running: Running, tiny: Tiny) -> None:
        async with running.client() as client:
            await client.send(data)
            answer = await client.answer()
            assert (answer.status, answer.code) == (status, fault.value)
            assert answer.headers["connection"] == "close"
            assert answer.headers["x-request-id"] == "req_wire"
            assert await client.rest() == b""
        assert running.refused == [fault]

    play(scene)


@slow
def test_a_refused_request_behind_a_good_one_waits_for_the_good_answer() -> None:
    async def scene(running: Running, tiny: Tiny) -> None:
        async with running.client() as client:
            await client.send(request("GET /v1/wait") + b"GET / HTTP/1.0\r\n\r\n" + GET)
            await tiny.entered.wait()
            tiny.release.set()
            assert (await client.answer()).body == b"released"
            assert (await client.answer()).code == Fault.VERSION_OLD.value
            assert await client.rest() == b""

    play(scene)


@slow
def test_pipelined_requests_are_answered_in_order() -> None:
    async def scene(running: Running, tiny: Tiny) -> None:
        async with running.client() as client:
            post = request("POST /v1/echo", body=b"abc")
            await client.send(GET + post + request("GET /v1/y") + post[:-1])
            bodies = [(await client.answer()).body for _ in range(3)]
            await client.send(b"c")
            assert [*bodies, (await client.answer()).body] == [b"/v1/x", b"3", b"/v1/y", b"3"]

    play(scene)


@slow
@pytest.mark.parametrize("behind", (b"", GET, GET[:10], GET * 4000))
def test_a_client_that_leaves_is_seen_even_behind_pipelined_bytes(behind: bytes) -> None:
    async def scene(running: Running, tiny: Tiny) -> None:
        async with running.client() as client:
            await client.send(request("POST /v1/wait", body=b"{}") + behind)
            await tiny.entered.wait()
        await asyncio.wait_for(tiny.gone.wait(), 5)

    play(scene)


@slow
def test_a_half_closed_connection_is_answered_and_ends() -> None:
    async def scene(running: Running, tiny: Tiny) -> None:
        before = len(asyncio.all_tasks())
        async with running.client() as client:
            await client.send(GET)
            client.half_close()
            assert (await client.answer()).status == 200
            assert await client.rest() == b""
            await until(lambda: len(asyncio.all_tasks()) == before)

    play(scene)


@slow
def test_the_answer_to_a_broken_body_is_ours_alone() -> None:
    async def scene(running: Running, tiny: Tiny) -> None:
        async with running.client() as client:
            await client.send(request("POST /v1/echo", "Transfer-Encoding: chunked") + b"3\r\nab")
            await tiny.entered.wait()
            await client.send(b"cX\n")
            assert (await client.answer()).code == Fault.CHUNK.value
            assert await client.rest() == b""

    play(scene)


@slow
def test_a_handler_cannot_write_behind_the_answer_to_a_broken_body() -> None:
    async def scene(running: Running, tiny: Tiny) -> None:
        async with running.client() as client:
            await client.send(request("POST /v1/stubborn", "Transfer-Encoding: chunked"))
            await tiny.entered.wait()
            await client.send(b"zz\r\n")
            assert (await client.answer()).code == Fault.CHUNK.value
            assert await client.rest() == b""

    play(scene)


@slow
def test_endless_pipelining_is_cut_off() -> None:
    async def scene(running: Running, tiny: Tiny) -> None:
        async with running.client() as client:
            await client.send(request("POST /v1/wait", body=b"{}") + GET * 4000)
            await asyncio.wait_for(tiny.gone.wait(), 5)

    play(scene)


@slow
def test_an_answer_nobody_reads_does_not_keep_its_connection() -> None:
    async def scene(running: Running, tiny: Tiny) -> None:
        before = len(asyncio.all_tasks())
        async with running.client(receive_buffer=4096) as client:
            await client.send(request("GET /v1/tail", "Connection: close"))
            await tiny.entered.wait()
            await until(lambda: len(asyncio.all_tasks()) == before)

    play(scene, bounds=Bounds(send_buffer_bytes=4096, close_s=0.2))


@slow
def test_a_head_that_drips_is_cut_at_its_deadline() -> None:
    async def scene(running: Running, tiny: Tiny) -> None:
        async with running.client() as client:
            await client.send(GET)
            await client.answer()
            await client.send(b"GET / HT")
            answer = await client.answer()
            assert (answer.status, answer.code) == (408, Fault.HEAD_SLOW.value)
        async with running.client() as client:  # and one that never says a word
            assert await client.rest() == b""

    play(scene, bounds=Bounds(head_s=0.2))


@slow
def test_an_idle_connection_is_closed() -> None:
    async def scene(running: Running, tiny: Tiny) -> None:
        async with running.client() as client:
            await client.send(GET)
            assert (await client.answer()).status == 200
            assert await client.rest() == b""

    play(scene, bounds=Bounds(keep_alive_s=0.2))


@slow
def test_connections_beyond_the_bound_are_told_so() -> None:
    async def scene(running: Running, tiny: Tiny) -> None:
        before = len(asyncio.all_tasks())
        async with running.client() as first:
            await first.send(request("GET /v1/wait"))
            await tiny.entered.wait()
            async with running.client() as second:
                answer = await second.answer()
                assert (answer.status, answer.code) == (503, Fault.CONNECTIONS.value)
                assert answer.headers["retry-after"] == "1"
        await until(lambda: len(asyncio.all_tasks()) == before)
        assert (await running.ask(GET)).status == 200

    play(scene, bounds=Bounds(connections_max=1))


@slow
def test_rejected_uploads_leak_nothing() -> None:
    """API.md §0, 1a: unguarded, each left two tasks and a connection behind for good."""

    async def scene(running: Running, tiny: Tiny) -> None:
        before = len(asyncio.all_tasks())
        for _ in range(10):
            async with running.client() as client:
                await client.send(request("POST /v1/late", f"Content-Length: {1 << 20}"))
                await client.send(b"x" * (1 << 20))
                answer = await client.answer()
                assert answer.status == 200
                assert answer.headers["connection"] == "close"
                assert await client.rest() == b""
        await until(lambda: len(asyncio.all_tasks()) == before)

    play(scene)


@slow
def test_an_upload_that_never_ends_is_left_behind_its_answer() -> None:
    async def scene(running: Running, tiny: Tiny) -> None:
        before = len(asyncio.all_tasks())
        async with running.client() as client:
            await client.send(request("POST /v1/x", "Transfer-Encoding: chunked"))
            answer = await client.answer()
            assert (answer.status, answer.headers["connection"]) == (200, "close")
            await until(lambda: len(asyncio.all_tasks()) == before)

    play(scene, front_bounds=FrontBounds(linger_s=0.1))


@slow
def test_a_small_unread_body_does_not_cost_the_connection() -> None:
    async def scene(running: Running, tiny: Tiny) -> None:
        async with running.client() as client:
            for _ in range(2):
                await client.send(request("POST /v1/x", body=b"x" * 1000))
                answer = await client.answer()
                assert "connection" not in answer.headers

    play(scene)


@slow
def test_a_reader_that_stalls_ends_its_handler_at_the_send_deadline() -> None:
    told = Told()

    async def scene(running: Running, tiny: Tiny) -> None:
        before = len(asyncio.all_tasks())
        async with running.client(receive_buffer=4096) as client:
            await client.send(request("GET /v1/flood"))
            await until(lambda: tiny.cancelled == 1)
            await until(lambda: len(asyncio.all_tasks()) == before)
            assert told.stalled == ["req_1"]

    play(
        scene,
        bounds=Bounds(send_buffer_bytes=8192),
        front_bounds=FrontBounds(send_s=0.3),
        told=told,
    )


@slow
def test_answers_piling_up_unread_end_in_a_quiet_cut() -> None:
    told = Told()

    async def scene(running: Running, tiny: Tiny) -> None:
        before = len(asyncio.all_tasks())
        async with running.client(receive_buffer=4096) as client:
            await client.send(GET * 1000)  # short answers: most of their bytes are heads
            await until(lambda: told.stalled != [])
            await until(lambda: len(asyncio.all_tasks()) == before)

    play(
        scene,
        bounds=Bounds(send_buffer_bytes=4096),
        front_bounds=FrontBounds(send_s=0.2),
        told=told,
    )


@slow
def test_writes_have_a_deadline_of_their_own() -> None:
    """Without the guard too: a stalled reader's connection is dropped and its handler ended."""

    async def run() -> None:
        tiny = Tiny()
        bounds = Bounds(send_buffer_bytes=8192, write_s=0.2, close_s=0.2)
        async with hypercorn(tiny, bounds=bounds) as running:
            before = len(asyncio.all_tasks())
            async with running.client(receive_buffer=4096) as client:
                await client.send(request("GET /v1/flood"))
                await tiny.entered.wait()
                await until(lambda: len(asyncio.all_tasks()) == before)

    asyncio.run(run())


@slow
def test_shutdown_lets_a_stream_finish_and_refuses_newcomers() -> None:
    async def scene(running: Running, tiny: Tiny) -> None:
        async with running.client() as client, running.client() as idle:
            await idle.send(GET)
            await idle.answer()
            await client.send(request("GET /v1/stream"))
            await client.head()
            assert await client.chunk() == b"begin"
            running.shutdown.set()
            assert await idle.rest() == b""
            with pytest.raises(ConnectionRefusedError):
                async with running.client():
                    pass
            tiny.release.set()
            assert await client.chunk() == b"end"
            assert await client.chunk() == b""
            assert await client.rest() == b""
        assert running.served is not None
        await asyncio.wait_for(asyncio.shield(running.served), 5)

    play(scene)


@slow
def test_shutdown_cuts_what_outlives_the_drain() -> None:
    async def scene(running: Running, tiny: Tiny) -> None:
        async with running.client() as client:
            await client.send(request("GET /v1/stream"))
            await client.head()
            assert await client.chunk() == b"begin"
            running.shutdown.set()
            assert await client.rest() == b""  # no final chunk: the answer is seen to be cut
        assert running.served is not None
        await running.served
        assert len(asyncio.all_tasks()) == 1

    play(scene, drain_s=0.2)


@slow
def test_two_listeners_serve_their_own_apps() -> None:
    async def run() -> None:
        shutdown = asyncio.Event()
        ready: asyncio.Future[tuple[listen.Bound, ...]] = asyncio.get_running_loop().create_future()

        def says(text: bytes) -> ASGIApp:
            async def app(scope: Scope, receive: Receive, send: Send) -> None:
                await respond(send, 200, [], text)

            return app

        served = asyncio.create_task(
            listen.serve(
                [
                    listen.Listener("public", says(b"public"), "127.0.0.1:0"),
                    listen.Listener("admin", says(b"admin"), "127.0.0.1:0"),
                ],
                shutdown=shutdown,
                drain_s=1,
                on_ready=lambda bound: ready.set_result(tuple(bound)),
                mint=lambda: "req",
                reports=listen.Reports(lambda _: None, lambda _: None),
            )
        )
        bound = await ready
        assert [one.name for one in bound] == ["public", "admin"]
        assert bound[0].url == f"http://127.0.0.1:{bound[0].port}"
        answers: list[Answer] = [await Running(one.port).ask(GET) for one in bound]
        assert [answer.body for answer in answers] == [b"public", b"admin"]
        assert "server" not in answers[0].headers
        shutdown.set()
        await served

    asyncio.run(run())


def bind_error(*binds: str) -> str:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError

    async def run() -> None:
        await listen.serve(
            [listen.Listener("public", app, bind) for bind in binds],
            shutdown=asyncio.Event(),
            drain_s=0,
            on_ready=lambda _: pytest.fail("nothing should be served"),
            mint=lambda: "req",
            reports=listen.Reports(lambda _: None, lambda _: None),
        )

    with pytest.raises(listen.BindError) as caught:
        asyncio.run(run())
    return str(caught.value)


def test_a_busy_port_is_explained_and_nothing_stays_bound() -> None:
    with socket.socket() as taken, socket.socket() as probe:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
        probe.close()
        message = bind_error(f"127.0.0.1:{free}", f"127.0.0.1:{taken.getsockname()[1]}")
        assert "public listener" in message
        assert f"127.0.0.1:{taken.getsockname()[1]}" in message
        assert "--port" in message
        with socket.socket() as again:
            again.bind(("127.0.0.1", free))


@pytest.mark.parametrize("bind", ("8080", "127.0.0.1:", ":8080", "127.0.0.1:x", "127.0.0.1:70000"))
def test_a_malformed_address_is_explained(bind: str) -> None:
    assert "host:port" in bind_error(bind)


def test_an_address_of_another_machine_is_explained() -> None:
    assert "no interface" in bind_error("192.0.2.1:0")


@pytest.mark.parametrize("files", (64, 256, 1024, 4096, 20_000))
def test_there_are_no_more_places_than_descriptors(files: int) -> None:
    most = listen.places(2048, files, 2)
    assert 1 <= most <= 2048
    assert most == 1 or 2 * (most + most // 8) + listen.FILES_KEPT <= files
    assert most == 2048 or listen.places(2048, files + 3, 2) >= most


def test_another_hypercorn_is_refused_at_start() -> None:
    check_hypercorn()
    with pytest.raises(RuntimeError, match=r"Hypercorn 0\.19\.0 is installed"):
        check_hypercorn("0.19.0")
