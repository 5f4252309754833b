"""A very small HTTP/1.1 client over asyncio streams, for loopback only.

A load generator shares its machine with what it measures, so it must cost little: one read a
packet, no task a request, idle connections kept.  `python -m tests.bench serve` prints its share.
A kept connection that its server closed meanwhile without a word is replaced and the request sent
again, once: nothing of an answer had come (some close whenever they please, llama.cpp's does).
Refuses to know: what a completion is, any other retry, redirects, TLS, any address that is not loopback.
Source: RFC 9112 §6–7.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import msgspec

from tests.bench.framing import Chunked, Event, Events, Sized, WireError

READ_BYTES = 64 * 1024
HEAD_BYTES_MAX = 64 * 1024
BODY_BYTES_MAX = 64 * 1024 * 1024
CONNECT_S = 10.0
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A loopback address; `prefix` stands before every path."""

    host: str
    port: int
    prefix: str = ""

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname not in LOOPBACK or parts.port is None:
            raise ValueError(
                f"expected http://127.0.0.1:PORT[/path], got {url!r}; the bench sends load to "
                "this machine only"
            )
        return cls(parts.hostname, parts.port, parts.path.rstrip("/"))


@dataclass(slots=True)
class Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def close(self) -> None:
        self.writer.close()


@dataclass(slots=True)
class Reply:
    """An answer being read.  Leaving its `async with` before the end closes the connection."""

    status: int
    headers: Mapping[str, str]
    connection: Connection
    body: Chunked | Sized

    async def pieces(self) -> AsyncIterator[bytes]:
        while not self.body.done:
            data = await self.connection.reader.read(READ_BYTES)
            if not data:
                self.body.close()
                return
            if piece := self.body.feed(data):
                yield piece

    async def events(self) -> AsyncGenerator[Event, None]:
        parser = Events()
        async for piece in self.pieces():
            for event in parser.feed(piece):
                yield event

    async def read(self) -> bytes:
        body = bytearray()
        async for piece in self.pieces():
            body += piece
            if len(body) > BODY_BYTES_MAX:
                raise WireError(f"expected an answer of at most {BODY_BYTES_MAX} bytes")
        return bytes(body)

    async def json(self) -> object:
        return msgspec.json.decode(await self.read())


@dataclass(slots=True)
class Client:
    """Requests to one endpoint under one bearer token.  Idle connections are used again."""

    endpoint: Endpoint
    token: str | None = None
    _idle: list[Connection] = field(default_factory=list)

    @asynccontextmanager
    async def request(
        self, method: str, path: str, body: bytes | None = None
    ) -> AsyncIterator[Reply]:
        """Raises OSError where nobody listens and WireError where the answer is cut or no HTTP."""
        message = self._head(method, path, body) + (body or b"")
        connection, reply = await self._sent(message)
        kept = False
        try:
            yield reply
            kept = reply.body.done and reply.headers.get("connection", "").lower() != "close"
        finally:
            if kept:
                self._idle.append(connection)
            else:
                connection.close()

    async def _sent(self, message: bytes) -> tuple[Connection, Reply]:
        connection = self._kept()
        if connection is not None:
            try:
                return connection, await _exchanged(connection, message)
            except _Stale:
                pass
        connection = await self._connect()
        return connection, await _exchanged(connection, message)

    async def get(self, path: str) -> tuple[int, object]:
        async with self.request("GET", path) as reply:
            return reply.status, await reply.json()

    async def post(self, path: str, document: object) -> tuple[int, object]:
        async with self.request("POST", path, msgspec.json.encode(document)) as reply:
            return reply.status, await reply.json()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _kept(self) -> Connection | None:
        """An idle connection that the server has not closed meanwhile (most do, after seconds)."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.reader.at_eof():
                return connection
            connection.close()
        return None

    async def _connect(self) -> Connection:
        opening = asyncio.open_connection(
            self.endpoint.host, self.endpoint.port, limit=HEAD_BYTES_MAX
        )
        return Connection(*await asyncio.wait_for(opening, CONNECT_S))

    def _head(self, method: str, path: str, body: bytes | None) -> bytes:
        lines = [
            f"{method} {self.endpoint.prefix}{path} HTTP/1.1",
            f"Host: {self.endpoint.host}:{self.endpoint.port}",
            "Accept: */*",
        ]
        if self.token is not None:
            lines.append(f"Authorization: Bearer {self.token}")
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


class _Stale(WireError):
    """Closed before a byte of an answer."""


async def _exchanged(connection: Connection, message: bytes) -> Reply:
    """Send, and read the head of what comes back.  Closes the connection where it fails."""
    try:
        connection.writer.write(message)
        await connection.writer.drain()
        return await _head_of(connection)
    except ConnectionError as error:
        connection.close()
        raise _Stale(f"the connection was lost ({type(error).__name__})") from error
    except BaseException:
        connection.close()
        raise


async def _head_of(connection: Connection) -> Reply:
    try:
        head = await connection.reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        if isinstance(error, asyncio.IncompleteReadError) and not error.partial:
            raise _Stale("the connection closed before a complete response head") from error
        raise WireError("the connection closed before a complete response head") from error
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
        raise WireError(f"expected an HTTP/1.1 status line, got {first[:60]!r}")
    headers = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines if line)
    }
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return Reply(int(rest[:3]), headers, connection, Chunked())
    length = headers.get("content-length")
    return Reply(int(rest[:3]), headers, connection, Sized(None if length is None else int(length)))
