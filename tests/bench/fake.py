"""A server of twenty tokens a request and a book of its own, for testing the bench itself.

It serves what the bench uses: streamed completions, /ready, status, usage, one budget.  `Flaws` are
the faults that the bench exists to find; with none it is a correct server.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from decimal import Decimal

import msgspec

from tests.bench.server import Site

NANO_PER_TOKEN = 100


@dataclass(frozen=True, slots=True)
class Flaws:
    refuses_arrays: bool = False
    overbills: int = 0  # tokens a request
    leaks_holds: bool = False
    admits_anything: bool = False
    stops_short: bool = False
    cuts_streams: bool = False
    closes_idle: bool = False


@dataclass(slots=True)
class Fake:
    """Counters are the book and the executor in one."""

    flaws: Flaws = Flaws()
    holds_until: int = 0  # requests that must have been decided before any gets a second token
    open_holds: int = 0
    live: int = 0
    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    generated: int = 0
    reserved_nano: int = 0
    budget_nano: int | None = None
    heads: list[bytes] = field(default_factory=list)
    _decided: int = 0
    _all_decided: asyncio.Event = field(default_factory=asyncio.Event)
    _open: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def spent_nano(self) -> int:
        return (self.input_tokens + self.output_tokens) * NANO_PER_TOKEN

    def _decide(self) -> None:
        self._decided += self.budget_nano is not None
        if self._decided >= self.holds_until:
            self._all_decided.set()

    async def closed(self) -> None:
        """Every client has closed: no connection is left behind for the next test."""
        if self._open:
            await asyncio.wait(self._open, timeout=5)

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                length = next(
                    (int(h[15:]) for h in head.split(b"\r\n") if h.startswith(b"Content-Length:")),
                    0,
                )
                body = await reader.readexactly(length)
                await self._answer(head.split(b" ", 2)[1].decode(), body, reader, writer)
                await writer.drain()
                if self.flaws.closes_idle:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            self._open.discard(task)
            writer.close()

    async def _answer(
        self, path: str, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if path == "/v1/completions":
            await self._complete(msgspec.json.decode(body), reader, writer)
        elif path == "/ready":
            _json(writer, 200, {"status": "ready"})
        elif path == "/v1/admin/status":
            gauges = {
                "running": self.live,
                "waiting": 0,
                "blocks_total": 100,
                "blocks_free": 100 - self.live,
            }
            executor = {"state": "ready", "pid": os.getpid(), "restarts": 0, "gauges": gauges}
            counts = {"live_requests": self.live, "leases": self.live, "tasks": 1}
            _json(
                writer,
                200,
                {
                    "executor": executor,
                    **counts,
                    "open_holds": self.open_holds,
                    "pid": os.getpid(),
                },
            )
        elif path == "/v1/admin/usage?by=tenant":
            row = {
                "tenant": "acme",
                "requests": self.requests,
                "input_tokens": self.input_tokens,
                "output_tokens": self.output_tokens,
                "nano_usd": self.spent_nano,
            }
            _json(writer, 200, {"rows": [row], "total": row})
        elif path == "/metrics":
            totals: dict[str, float] = {
                "prompt_tokens": self.input_tokens,
                "generation_tokens": self.generated,
                "engine_steps": self.generated,
                "device_seconds": self.generated * 1e-3,
            }
            text = "".join(
                f'lockgate_{name}_total{{model_name="fake"}} {float(count)}\n'
                for name, count in totals.items()
            )
            writer.write(f"HTTP/1.1 200 X\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
        elif path == "/v1/admin/budgets":
            self.budget_nano = int(Decimal(msgspec.json.decode(body)["usd"]) * 10**9)
            _json(writer, 200, {})
        else:
            _json(writer, 404, {"error": {"message": path, "code": "not_found"}})

    async def _complete(
        self,
        ask: dict[str, object],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        prompt, tokens = ask["prompt"], ask["max_tokens"]
        assert isinstance(tokens, int)
        if self.flaws.refuses_arrays and isinstance(prompt, list):
            error = {"message": "text, please", "type": "invalid_request_error", "code": None}
            _json(writer, 400, {"error": error})
            return
        size = len(prompt) if isinstance(prompt, list) else len(str(prompt).split())
        cost = (size + tokens) * NANO_PER_TOKEN
        full = (
            self.budget_nano is not None
            and self.spent_nano + self.reserved_nano + cost > self.budget_nano
        )
        self._decide()
        if full and not self.flaws.admits_anything:
            _json(writer, 429, {"error": {"message": "spent", "code": "insufficient_quota"}})
            return
        self.reserved_nano += cost
        self.open_holds += 1
        self.live += 1
        generated = 0
        try:
            _head(writer)
            for number in range(tokens - 1 if self.flaws.stops_short else tokens):
                if number and self.budget_nano is not None:
                    await self._all_decided.wait()
                await asyncio.sleep(0)
                if reader.at_eof():
                    return  # the client hung up
                generated += 1
                last = number == tokens - 1
                choice = {"index": 0, "text": f" {number}", "finish_reason": "length"}
                _event(
                    writer,
                    {"id": "cmpl-1", "choices": [choice if last else {"text": f" {number}"}]},
                )
                if self.flaws.cuts_streams and number == 1:
                    raise ConnectionResetError
            usage = {"prompt_tokens": size, "completion_tokens": generated}
            _event(writer, {"id": "cmpl-1", "choices": [], "usage": usage})
            writer.write(_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        finally:
            self.reserved_nano -= cost
            self.live -= 1
            self.open_holds -= 0 if self.flaws.leaks_holds else 1
            self.requests += 1
            self.input_tokens += size
            self.generated += generated
            self.output_tokens += generated + self.flaws.overbills


@asynccontextmanager
async def running(fake: Fake) -> AsyncIterator[Site]:
    server = await asyncio.start_server(fake.connection, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    try:
        yield Site(f"{url}/v1", url, {"acme/alice": "a", "operator": "o"}, model="fake")
    finally:
        server.close()
        await fake.closed()


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def _event(writer: asyncio.StreamWriter, document: object) -> None:
    writer.write(_chunk(b"data: " + msgspec.json.encode(document) + b"\n\n"))


def _head(writer: asyncio.StreamWriter) -> None:
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n" + _chunk(b": status queued 0\n\n")
    )


def _json(writer: asyncio.StreamWriter, status: int, document: object) -> None:
    body = msgspec.json.encode(document)
    writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
