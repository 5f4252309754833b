"""SIGTERM at a real server (API.md case 63): it says so first, streams end or are told, and nothing is left held."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass

import pytest

from gateway.app import GENERATING
from tests.bench.framing import Event
from tests.bench.server import Server
from tests.bench.wire import Client, Endpoint

pytestmark = pytest.mark.slow
STEPS, STEP_MS = 60, 50
"""An answer takes three seconds."""
DRAIN_S = 2
END_S_MAX = 25.0


@dataclass(frozen=True)
class Family:
    path: str
    body: dict[str, object]


SAYS = [{"role": "user", "content": "hello"}]
FAMILIES = (
    Family("/chat/completions", {"messages": SAYS, "max_tokens": STEPS}),
    Family("/completions", {"prompt": "hello", "max_tokens": STEPS}),
    Family("/responses", {"input": "hello", "max_output_tokens": STEPS, "store": False}),
    Family("/messages", {"messages": SAYS, "max_tokens": STEPS}),
)


def test_every_endpoint_that_streams_is_here() -> None:
    assert {f"/v1{each.path}" for each in FAMILIES} == {each.route for each in GENERATING}


@asynccontextmanager
async def served(
    *, steps: int = STEPS, step_ms: float = STEP_MS, drain_s: int = DRAIN_S
) -> AsyncIterator[Server]:
    server = Server.prepare()
    config = server.folder / "lockgate.toml"
    text = config.read_text()
    assert "drain_s = 10" in text
    config.write_text(text.replace("drain_s = 10", f"drain_s = {drain_s}"))
    command = (sys.executable, "-m", "tests.bench.modelless", "--config", str(config))
    server.command = (*command, "--steps", str(steps), "--step-ms", str(step_ms))
    try:
        await server.started()
        yield server
    finally:
        server.__exit__()
        while CLIENTS:
            CLIENTS.pop().close()
        await asyncio.sleep(0)  # until each connection has heard of it


async def ended(server: Server) -> int:
    """The exit status."""
    process = server._process
    assert process is not None
    async with asyncio.timeout(END_S_MAX):
        while process.poll() is None:
            await asyncio.sleep(0.02)
    return int(process.returncode)


def signalled(server: Server, number: int = signal.SIGTERM) -> None:
    assert server._process is not None
    server._process.send_signal(number)


def states(server: Server) -> Counter[str]:
    """Of every reservation, after the process has ended."""
    with closing(sqlite3.connect(server.folder / "state" / "lockgate.db")) as book:
        return Counter(state for (state,) in book.execute("SELECT state FROM reservation"))


Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]
CLIENTS: list[Client] = []


def client(server: Server, *, root: bool = False) -> Client:
    """Closed with the server.  `root`: of the listener, not of the API below /v1."""
    url = server.site.base_url
    found = Client(
        Endpoint.parse(url.removesuffix("/v1") if root else url), server.site.tokens["acme/alice"]
    )
    CLIENTS.append(found)
    return found


class Stream:
    """One that is being read; `begun` once something of it has come."""

    def __init__(self, server: Server, family: Family) -> None:
        self.events: list[Event] = []
        self.begun = asyncio.Event()
        self.whole = False
        body = {"model": server.site.model, "stream": True, **family.body}
        self.task = asyncio.create_task(self._read(client(server), family.path, body))

    async def _read(self, asker: Client, path: str, body: dict[str, object]) -> None:
        async with asker.request("POST", path, json.dumps(body).encode()) as reply:
            assert reply.status == 200
            async for event in reply.events():
                self.events.append(event)
                if event.data:
                    self.begun.set()
            self.whole = reply.body.done

    @property
    def text(self) -> str:
        return b"\n".join(event.data or b"" for event in self.events).decode()


def run(scene: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scene())  # type: ignore[arg-type]


def test_streams_end_or_are_told_and_newcomers_hear_why() -> None:
    async def scene() -> None:
        async with served() as server:
            early = [Stream(server, each) for each in FAMILIES]
            await asyncio.gather(*(each.begun.wait() for each in early))
            await asyncio.sleep(STEPS * STEP_MS / 2000)
            late = [Stream(server, each) for each in FAMILIES]
            kept = client(server)
            async with kept.request("GET", "/models") as reply:
                await reply.read()
            await asyncio.gather(*(each.begun.wait() for each in late))
            signalled(server)
            root = client(server, root=True)
            async with asyncio.timeout(1):
                while (await root.get("/ready"))[0] == 200:
                    await asyncio.sleep(0.01)
            status, said = await root.get("/ready")
            assert (status, said) == (503, {"status": "draining"})
            assert (await root.get("/health"))[0] == 200
            for asker in (kept, client(server)):
                for family in FAMILIES:
                    body = {"model": server.site.model, **family.body}
                    status, said = await asker.post(family.path, body)
                    assert (status, said["error"]["code"]) == (503, "draining")  # type: ignore[index]
            await asyncio.gather(*(each.task for each in (*early, *late)))
            assert await ended(server) == 0
            for each in early:
                assert each.whole
                assert '"draining"' not in each.text
            for each in late:
                assert each.whole
                assert '"draining"' in each.text
            assert states(server) == {"SETTLED": 2 * len(FAMILIES)}

    run(scene)


def test_who_waits_is_let_go_at_the_signal_on_both_listeners() -> None:
    """At once, and not when the drain is over: a stream goes on for all of this."""

    async def scene() -> None:
        async with served(drain_s=60) as server:
            public, admin = (
                Endpoint.parse(each) for each in (server.site.base_url, server.site.admin.url)
            )
            probe = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
            kept: list[Ends] = []
            half: list[Ends] = []
            for at in (public, admin):
                for conns, sent in ((kept, probe), (half, probe[:20])):
                    reader, writer = await asyncio.open_connection(at.host, at.port)
                    writer.write(sent)
                    conns.append((reader, writer))
            stream = Stream(server, FAMILIES[0])
            await stream.begun.wait()
            for reader, _ in kept:
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200 ")
                assert b"connection: close" not in head
            signalled(server)
            async with asyncio.timeout(2):
                for reader, _ in kept:
                    assert (
                        b"HTTP/" not in await reader.read()
                    )  # the rest of its answer, and the end
                for reader, writer in half:
                    writer.write(probe[20:])
                    answer = await reader.read()
                    assert answer.startswith(b"HTTP/1.1 200 ")
                    assert b"\r\nconnection: close\r\n" in answer
                answered = client(server, root=True)
                async with answered.request("GET", "/ready") as reply:
                    assert (reply.status, reply.headers["connection"]) == (503, "close")
                    await reply.read()
            assert not stream.task.done()
            await stream.task
            assert stream.whole
            assert await ended(server) == 0
            for _, writer in (*kept, *half):
                writer.close()

    run(scene)


@pytest.mark.parametrize("second", (signal.SIGTERM, signal.SIGINT))
def test_a_second_signal_tells_them_at_once(second: signal.Signals) -> None:
    async def scene() -> None:
        async with served(drain_s=60, step_ms=200) as server:
            streams = [Stream(server, each) for each in FAMILIES]
            await asyncio.gather(*(each.begun.wait() for each in streams))
            signalled(server)
            await asyncio.sleep(0.2)
            assert not any(each.task.done() for each in streams)
            begun_s = time.monotonic()
            signalled(server, second)
            await asyncio.gather(*(each.task for each in streams))
            assert await ended(server) == 0
            assert time.monotonic() - begun_s < 10  # of twelve that they would take
            assert all(each.whole and '"draining"' in each.text for each in streams)
            assert states(server) == {"SETTLED": len(FAMILIES)}

    run(scene)


def test_whoever_never_reads_and_whoever_never_ends_its_body_keep_nothing() -> None:
    """The one's answer fills every buffer, the other's request never comes."""

    async def scene() -> None:
        async with served(steps=4000, step_ms=1, drain_s=1) as server:
            at = Endpoint.parse(server.site.base_url)
            token = server.site.tokens["acme/alice"]
            host = f"HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
            body = {
                "model": server.site.model,
                "messages": SAYS,
                "max_tokens": 4000,
                "stream": True,
            }
            data = json.dumps(body)
            socks = []
            for sent in (
                f"POST /v1/chat/completions {host}Content-Length: {len(data)}\r\n\r\n{data}",
                *(f"POST /v1{each.path} {host}Content-Length: 99\r\n\r\n{{" for each in FAMILIES),
            ):
                sock = socket.socket()
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                sock.connect((at.host, at.port))
                sock.sendall(sent.encode())
                socks.append(sock)
            async with asyncio.timeout(10):
                while not (await server.site.admin.status()).live_requests:
                    await asyncio.sleep(0.02)
            await asyncio.sleep(1)
            signalled(server)
            assert await ended(server) == 0
            for sock in socks[1:]:
                sock.settimeout(5)
                answer = sock.recv(65536)
                assert answer.startswith(b"HTTP/1.1 503 ")
                assert answer.count(b"\r\nconnection: close\r\n") == 1
                assert b"\r\nx-request-id: " in answer
                assert b'"draining"' in answer
            for sock in socks:
                sock.close()
            assert states(server) == {"SETTLED": 1}

    run(scene)


def test_a_body_that_comes_after_the_drain_is_told_and_runs_nothing() -> None:
    async def scene() -> None:
        async with served(drain_s=1) as server:
            at = Endpoint.parse(server.site.base_url)
            body = json.dumps({"model": server.site.model, "messages": SAYS, "max_tokens": 4})
            reader, writer = await asyncio.open_connection(at.host, at.port)
            writer.write(
                f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                f"Authorization: Bearer {server.site.tokens['acme/alice']}\r\n"
                f"Content-Length: {len(body)}\r\n\r\n".encode()
            )
            stream = Stream(server, FAMILIES[0])
            await stream.begun.wait()
            signalled(server)
            await stream.task
            writer.write(body.encode())
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b'"draining"' in answer
            writer.close()
            assert await ended(server) == 0
            assert states(server)["SETTLED"] == 1
            assert set(states(server)) <= {"SETTLED", "VOIDED"}

    run(scene)
