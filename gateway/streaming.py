"""How an answer leaves by HTTP: whole, or as server-sent events.

One task works, one watches for the caller's leaving; leaving cancels the work, once, and the line
unwinds by itself.  The status line is held back until the first text (so that a fault before it is
an HTTP error) or until the first keep-alive is due; every fault after it is an explicit event.
Settlement and audit are over before the last words are sent.  Source: API.md §0, §3.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field
from typing import Protocol

from starlette.types import Receive, Send

from executor.contract import Prefilling, Waiting
from gateway.answer import Answer, cut_short
from gateway.case import Case
from gateway.errors import ApiError
from gateway.middleware import wire
from gateway.telling import Delta, Telling, Told

HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)


class Shape(Protocol):
    """How one endpoint family words a stream, for one answer.  Bytes of whole events."""

    def opening(self) -> bytes:
        """Before whatever comes first."""
        ...

    def delta(self, delta: Delta) -> bytes: ...

    def status(self, told: Waiting | Prefilling) -> bytes: ...

    def keep_alive(self) -> bytes:
        """Nothing was said for a while."""
        ...

    def closing(self) -> bytes:
        """The last words of an answer that ended by itself."""
        ...

    def error(self, why: ApiError) -> bytes:
        """The last words of one that did not."""
        ...


async def until_disconnect(receive: Receive, work: Coroutine[None, None, None]) -> None:
    """Run `work`; when the caller leaves first, cancel it once and let it unwind.
    The whole body must have been read, or this would swallow it."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        watcher.cancel()
        left = not task.done()
        if left:
            task.cancel()
        try:
            await _unwound(task)
        except asyncio.CancelledError:
            if not left:
                raise


async def _unwound(task: asyncio.Task[None]) -> None:
    """Wait for `task` whatever else is cancelled meanwhile; it bounds its own unwinding."""
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(asyncio.wait({task}))
    task.result()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@dataclass(slots=True)
class Events:
    """An SSE response that starts itself with the first bytes."""

    send: Send
    headers: Callable[[], tuple[tuple[bytes, bytes], ...]]
    started: bool = field(default=False, init=False)

    async def write(self, data: bytes) -> None:
        if not self.started:
            self.started = True
            await self.send(
                {
                    "type": "http.response.start",
                    "status": 200,
                    "headers": [*HEADERS, *self.headers()],
                }
            )
        await self.send({"type": "http.response.body", "body": data, "more_body": True})

    async def close(self, data: bytes) -> None:
        await self.write(data)
        await self.send({"type": "http.response.body", "body": b"", "more_body": False})


async def stream(
    events: Events,
    line: AbstractAsyncContextManager[Answer],
    tell: TellingOf,
    shape: Shape,
    case: Case,
    *,
    keepalive_ms: int,
    status_at_once: bool,
) -> None:
    """Send a whole stream.  Raises ApiError only while nothing was sent yet."""
    try:
        async with line as answer, aclosing(paced(tell(answer), keepalive_ms)) as pieces:
            async for told in pieces:
                await _say(events, shape, told, case, status_at_once=status_at_once)
    except ApiError as why:
        if not events.started:
            raise
        await events.close(shape.error(cut_short(why) if case.delivered_tokens else why))
        return
    await events.close(shape.closing() if events.started else shape.opening() + shape.closing())


async def _say(
    events: Events, shape: Shape, told: Told | None, case: Case, *, status_at_once: bool
) -> None:
    if isinstance(told, Waiting | Prefilling) and not (events.started or status_at_once):
        return
    opening = b"" if events.started else shape.opening()
    if isinstance(told, Delta):
        await events.write(opening + shape.delta(told))
        case.delivered_tokens += told.tokens
    elif told is None:
        await events.write(opening + shape.keep_alive())
    else:
        await events.write(opening + shape.status(told))


class TellingOf(Protocol):
    def __call__(self, answer: Answer) -> Telling: ...


async def paced(telling: Telling, keepalive_ms: int) -> AsyncGenerator[Told | None]:
    """The pieces as they come, and None whenever nothing came for `keepalive_ms`."""
    reading: asyncio.Task[Told | None] | None = None
    try:
        while True:
            reading = reading or asyncio.ensure_future(telling.next())
            done, _ = await asyncio.wait({reading}, timeout=keepalive_ms / 1000)
            if not done:
                yield None
                continue
            told, reading = reading.result(), None
            if told is None:
                return
            yield told
    finally:
        if reading is not None:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


async def respond(
    send: Send, status: int, body: bytes, headers: Mapping[str, str] | None = None
) -> None:
    """A whole response; JSON unless `headers` say otherwise."""
    named = {"content-type": "application/json", **(headers or {})}
    pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in named.items()]
    await wire.respond(send, status, pairs, body)
