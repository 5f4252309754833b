"""A client that says exactly the bytes it is told, and servers to say them to.

For attackers' tests: no library of ours or of others stands between the test and the socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import uvicorn

from gateway import listen
from gateway.connection import Bounds
from gateway.connections import Counts
from gateway.door import Door
from gateway.guard import FrontBounds, front
from gateway.middleware.wire import ASGIApp
from gateway.wire_guard import Fault

PATIENCE_S = 10.0
HOST = b"Host: localhost\r\n"


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str | None:
        """The `code` of an error in the OpenAI shape, whose four keys must be there."""
        error = msgspec.json.decode(self.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        code: str | None = error["code"]
        return code


class RawHttp:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        """Errors are swallowed: a server that has hung up answers, or does not, all the same."""
        with contextlib.suppress(OSError):
            self._writer.write(data)
            async with asyncio.timeout(PATIENCE_S):
                await self._writer.drain()

    async def head(self) -> Answer:
        async with asyncio.timeout(PATIENCE_S):
            start = await self._reader.readuntil(b"\r\n\r\n")
        first, *lines = start.decode("latin-1").rstrip().split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        return Answer(int(first.split(" ")[1]), headers, b"")

    async def answer(self) -> Answer:
        """One whole answer, by its length, its chunks, or the end of the connection."""
        head = await self.head()
        async with asyncio.timeout(PATIENCE_S):
            if "content-length" in head.headers:
                body = await self._reader.readexactly(int(head.headers["content-length"]))
            elif head.headers.get("transfer-encoding") == "chunked":
                body = b""
                while chunk := await self.chunk():
                    body += chunk
            else:
                body = b"" if head.status in {100, 204} else await self._reader.read()
        return Answer(head.status, head.headers, body)

    async def chunk(self) -> bytes:
        """One chunk of a chunked answer; b"" is its proper end."""
        async with asyncio.timeout(PATIENCE_S):
            size = int(await self._reader.readuntil(b"\r\n"), 16)
            return (await self._reader.readexactly(size + 2))[:-2]

    async def rest(self) -> bytes:
        """All that comes until the server closes; a reset counts as closed."""
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(ConnectionError):
                return await self._reader.read()
        return b""

    def half_close(self) -> None:
        self._writer.write_eof()

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


@dataclass(slots=True)
class Running:
    port: int
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    shutdown: asyncio.Event = field(default_factory=asyncio.Event)
    counts: Callable[[], Counts] = Counts
    refused: list[Fault] = field(default_factory=list)
    failed: list[BaseException] = field(default_factory=list)
    served: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def client(self, *, receive_buffer: int | None = None) -> AsyncIterator[RawHttp]:
        sock = socket.socket()
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        except OSError:
            sock.close()
            raise
        client = RawHttp(*await asyncio.open_connection(sock=sock, limit=1024))
        try:
            yield client
        finally:
            await client.close()

    async def ask(self, data: bytes) -> Answer:
        async with self.client() as client:
            await client.send(data)
            return await client.answer()


def request(line: str, *headers: str, body: bytes | None = None, host: str = "localhost") -> bytes:
    lines = [f"{line} HTTP/1.1", f"Host: {host}", *headers]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


@dataclass(slots=True)
class Told:
    """What the front reported."""

    errors: list[Exception] = field(default_factory=list)
    stalled: list[str] = field(default_factory=list)


def fronted(
    app: ASGIApp,
    told: Told | None = None,
    *,
    bounds: FrontBounds | None = None,
    origins: Sequence[str] = (),
    door: Door | None = None,
) -> ASGIApp:
    told = told or Told()
    number = iter(range(1, 1_000_000))
    return front(
        app,
        hosts=["localhost", "127.0.0.1", "[::1]"],
        origins=origins,
        mint=lambda: f"req_{next(number)}",
        report=lambda _, fault: told.errors.append(fault),
        stalled=told.stalled.append,
        bounds=bounds,
        door=door,
    )


@contextlib.asynccontextmanager
async def hypercorn(
    app: ASGIApp,
    *,
    bounds: Bounds | None = None,
    drain_s: float = 5.0,
    door: Door | None = None,
) -> AsyncIterator[Running]:
    """`app` as the product serves it."""
    running = Running(0)
    ready: asyncio.Future[Sequence[listen.Bound]] = asyncio.get_running_loop().create_future()
    running.served = asyncio.create_task(
        listen.serve(
            [listen.Listener("public", app, "127.0.0.1:0", door)],
            draining=running.draining,
            shutdown=running.shutdown,
            drain_s=drain_s,
            on_ready=ready.set_result,
            mint=lambda: "req_wire",
            reports=listen.Reports(running.refused.append, running.failed.append),
            bounds=bounds,
        )
    )
    (bound,) = await ready
    running.port, running.counts = bound.port, bound.connections
    try:
        yield running
    finally:
        running.shutdown.set()
        await running.served
    assert running.failed == []


@contextlib.asynccontextmanager
async def uvicorn_server(app: ASGIApp) -> AsyncIterator[Running]:
    """`app` on the other server, to show that it needs nothing of the first."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    config = uvicorn.Config(
        app, http="h11", ws="none", lifespan="off", log_config=None, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    served = asyncio.create_task(server.serve(sockets=[sock]))
    await until(lambda: server.started)
    try:
        yield Running(sock.getsockname()[1])
    finally:
        server.should_exit = True
        await served
        sock.close()


async def until(true: Callable[[], bool]) -> None:
    """Wait for what no event tells."""
    async with asyncio.timeout(PATIENCE_S):
        while not true():
            await asyncio.sleep(0.005)
