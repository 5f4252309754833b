"""Every way for a connection to stand still ends by its deadline (gateway/README.md has the table), and cuts nothing else."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from gateway import listen
from gateway.connection import Bounds
from gateway.connections import Counts
from gateway.door import Door, TurnedAway
from gateway.guard import FrontBounds
from gateway.wire_guard import Fault
from tests.gateway.raw_http import Running, fronted, hypercorn, request, until
from tests.gateway.test_connections import STREAM, WAIT
from tests.gateway.test_listen import GET, Tiny, play

slow = pytest.mark.slow


@slow
@pytest.mark.parametrize(
    "sent",
    (
        b"",
        b"G",
        b"\x16",
        GET[:-1],
        GET,
        GET + GET[:5],
        request("GET /v1/x", "Connection: close"),
        request("POST /v1/echo", "Content-Length: 5") + b"x",
        request("POST /v1/echo", "Transfer-Encoding: chunked") + b"1",
        request("POST /v1/x", "Transfer-Encoding: chunked"),
        request("GET /v1/tail") * 40,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(64),
    ),
    ids=lambda sent: sent[:30].decode("latin-1").encode("unicode_escape").decode(),
)
@pytest.mark.parametrize("half", (False, True))
def test_whoever_stands_still_is_gone_at_a_deadline(sent: bytes, half: bool) -> None:
    """It reads nothing and closes nothing, or only its own side."""

    async def scene(running: Running, tiny: Tiny) -> None:
        before = len(asyncio.all_tasks())
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", running.port))
        with sock:
            sock.sendall(sent)
            if half:
                sock.shutdown(socket.SHUT_WR)
            assert (await running.ask(GET)).status == 200  # so the first has been let in
            await until(lambda: running.counts() == Counts())
            await until(lambda: len(asyncio.all_tasks()) <= before)

    play(
        scene,
        bounds=Bounds(
            keep_alive_s=0.2, head_s=0.2, write_s=0.3, close_s=0.2, send_buffer_bytes=4096
        ),
        front_bounds=FrontBounds(body_s=0.2, send_s=0.2, linger_s=0.1),
    )


@slow
def test_a_head_that_stops_behind_a_request_at_work_does_not_cut_it() -> None:
    async def scene(running: Running, tiny: Tiny) -> None:
        async with running.client() as client:
            await client.send(STREAM + GET[:9])
            await client.head()
            await asyncio.sleep(0.25)
            tiny.release.set()
            assert [await client.chunk() for _ in range(3)] == [b"begin", b"end", b""]
            answer = await client.answer()
            assert (answer.status, answer.code) == (408, Fault.HEAD_SLOW.value)
            assert await client.rest() == b""

    play(scene, bounds=Bounds(head_s=0.1))


@slow
def test_what_was_refused_behind_a_good_request_arrives_whatever_still_comes() -> None:
    async def scene(running: Running, tiny: Tiny) -> None:
        loop = asyncio.get_running_loop()
        with socket.create_connection(("127.0.0.1", running.port), timeout=5) as sock:
            sock.setblocking(False)
            await loop.sock_sendall(sock, WAIT + b"GET / HTTP/1.0\r\n\r\n")
            await tiny.entered.wait()
            tiny.release.set()
            said = b""
            while b"http_version_too_old" not in said:
                said += await loop.sock_recv(sock, 4096)
            await asyncio.sleep(0.02)
            await loop.sock_sendall(sock, bytes(100_000))
            while data := await loop.sock_recv(sock, 4096):
                said += data

    play(scene)


class Turning(Door):
    """Turns every POST away, and leaves it its connection."""

    def __call__(self, data: bytes, *, whole: bool) -> TurnedAway | None:
        answer = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"
        return TurnedAway(answer, stays=True) if data.startswith(b"POST") else None


def turning(scene: Callable[[Running], Awaitable[None]], *, bounds: Bounds | None = None) -> None:
    async def run() -> None:
        door = Turning()
        async with hypercorn(fronted(Tiny(), door=door), bounds=bounds, door=door) as running:
            await scene(running)

    with asyncio.Runner(loop_factory=listen.loop_factory()) as runner:
        runner.run(run())


@slow
def test_a_body_that_drips_behind_its_refusal_has_one_deadline() -> None:
    async def scene(running: Running) -> None:
        async with running.client() as client:
            await client.send(request("POST /v1/x", "Content-Length: 1000"))
            assert (await client.answer()).status == 503
            async with asyncio.timeout(2):
                while running.counts() != Counts():
                    await client.send(b"x")
                    await asyncio.sleep(0.02)

    turning(scene, bounds=Bounds(head_s=0.2))


@slow
def test_who_is_turned_away_while_draining_keeps_no_connection() -> None:
    async def scene(running: Running) -> None:
        async with running.client() as client, running.client() as other:
            for each in (client, other):
                await each.send(request("POST /v1/x", body=b"abc"))
                assert (await each.answer()).headers.get("connection") is None
            await other.send(b"POST")
            await until(lambda: running.counts() == Counts(opening=1, idle=1))
            running.draining.set()
            assert await client.rest() == b""
            await other.send(request("POST /v1/x", body=b"abc")[4:])
            answer = await other.answer()
            assert (answer.status, answer.headers["connection"]) == (503, "close")
            assert await other.rest() == b""

    turning(scene)
