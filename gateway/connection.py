"""One connection of the pinned Hypercorn, with `wire_guard` between the socket and h11.

Adds to Hypercorn's `TCPServer`: the byte guard; a deadline for a head to arrive and for every write;
a bounded, lingering close; leaving between two requests, never on top of one; and pipelined requests held
back until the one before is answered, so that a client that goes away is seen at once (Hypercorn stops reading
while a request is held in h11).
And makes cheaper what every request pays: an answer's head goes out with what follows it, in one write,
and who waits for a next request stands in a line (`connections`) instead of being a task of its own.
Refuses to know: ASGI, routes, tenants, when a connection is to leave.
Source: DESIGN.md settled question 12, SECURITY.md §0, API.md §0 (1, 2); Hypercorn 0.18.0, whose
methods are overridden by name: `check_hypercorn` refuses to start on any other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Protocol

import h11
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.protocol.http_stream import ASGIHTTPState, HTTPStream
from hypercorn.typing import AppWrapper

from gateway.connections import Connections
from gateway.door import TurnedAway
from gateway.middleware.wire import ClientGone
from gateway.wire_guard import Fault, Limits, Pass, Refusal, WireGuard

HYPERCORN = "0.18.0"
READ_BYTES = 32 * 1024
HELD_BYTES_MAX = 64 * 1024
"""Pipelined bytes held back for one connection.  A client that sends more is cut off: nobody needs
it, and beyond it we could not see it leave."""
LINGER_BYTES_MAX = 1024 * 1024
BARE_CLOSE_S = 0.25
"""How long a peer has to close its side where nothing was said: a request that it has just sent is then read away, so
that it sees a close and no reset.  Most peers notice a close only when they have something to ask."""
_CLOSE = b"\r\nconnection: close"
UNSENT_BYTES = 64 * 1024
"""Up to here a transport takes what is written without making anybody wait (asyncio's own high-water mark)."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one connection, and how many there may be.  Each way to stand still ends by one of these."""

    keep_alive_s: float = 75.0
    head_s: float = 10.0
    """For a whole head, from the connection's beginning or the head's first byte."""
    head_grace_s: float = 2.0
    """A head that takes longer is the first to make room where no place is left."""
    write_s: float = 35.0
    """Longer than the guard's send deadline, so that the handler is cancelled before its socket dies."""
    close_s: float = 2.0
    """How long a peer has to close its side after our last word."""
    connections_max: int = 2048
    """Of a listener."""
    send_buffer_bytes: int = 128 * 1024
    """Of the kernel: what it takes counts as sent, though nobody may have read it."""
    limits: Limits = field(default_factory=Limits)


class TurnAway(Protocol):
    def __call__(self, data: bytes, *, whole: bool) -> TurnedAway | None:
        """`data` begins with a request's head; `whole`: and is all of it.  None: it may come in."""


def check_hypercorn(found: str | None = None) -> None:
    """RuntimeError unless Hypercorn is the version whose inside this module knows."""
    found = version("hypercorn") if found is None else found
    if found != HYPERCORN:
        raise RuntimeError(
            f"Hypercorn {found} is installed; the byte guard is made for {HYPERCORN} and would not "
            f"see its traffic. Install hypercorn=={HYPERCORN} (deploy/locks) or adapt "
            "gateway/connection.py."
        )


class _NoTimer:
    """Instead of Hypercorn's for each connection: `Connections` keeps the time of all."""

    async def restart(self, *_: object) -> None:
        pass

    async def stop(self) -> None:
        pass


_NO_TIMER = _NoTimer()


class GuardedConnection(TCPServer):
    def __init__(
        self,
        app: AppWrapper,
        loop: asyncio.AbstractEventLoop,
        config: Config,
        context: WorkerContext,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        bounds: Bounds,
        mint: Callable[[], str],
        refused: Callable[[Fault], None],
        connections: Connections,
        door: TurnAway | None = None,
    ) -> None:
        super().__init__(app, loop, config, context, {}, reader, writer)
        self._bounds = bounds
        self._mint = mint
        self._refused = refused
        self._connections = connections
        self._door = door
        self._guard = WireGuard(bounds.limits)
        self._held: deque[Pass | Refusal] = deque()
        self._answered = asyncio.Event()  # no request is under way
        self._answered.set()
        self._reading: asyncio.Task[bytes] | None = None
        self._patience: asyncio.TimerHandle | None = None
        self.leaving = False
        self._muted = False
        self._over = False
        self._cut = False
        self._task: asyncio.Task[None] | None = None
        self._head = b""  # of an answer, until the end of this turn of the loop
        self.idle_task: _NoTimer = _NO_TIMER  # type: ignore[assignment]

    def part(self, why: Fault | None) -> bool:
        """Leave, if nothing of a request is here that nobody has looked at: what was read is answered or told.
        `Connections` asks only while no request is under way."""
        unseen: bytearray = self.reader._buffer  # type: ignore[attr-defined]  # noqa: SLF001 (nothing public tells)
        if unseen or self._held or (self._reading is not None and self._reading.done()):
            return False
        self.turn_away(why)
        return True

    def turn_away(self, why: Fault | None) -> None:
        if why is None:
            self._last_word(wait_s=BARE_CLOSE_S)
            return
        self._refused(why)
        self._last_word(Refusal(why, starts=True).response(self._mint()))

    def _last_word(self, answer: bytes = b"", *, wait_s: float | None = None) -> None:
        """Then our side is closed.  What the peer still sends is read away until it closes its own (RFC 9112 §9.6):
        closing with bytes unread would reset the connection and take the answer on its way with it."""
        if self.leaving:
            return
        self._connections.parts(self)
        self.leaving = self._muted = True
        if not self.writer.transport.is_closing():
            with suppress(OSError, RuntimeError):
                if answer:
                    self.writer.write(answer)
                self.writer.write_eof()
        wait_s = self._bounds.close_s if wait_s is None else wait_s
        self._patience = self.loop.call_later(wait_s, self.abort)

    async def run(self) -> None:
        self._task = asyncio.current_task()
        try:
            await super().run()
        except BaseExceptionGroup as faults:
            # Once cut off, h11 and the handler disagree about what was sent; nobody is harmed.
            own = (ClientGone, h11.LocalProtocolError) if self._cut else ()
            rest = faults.split(own)[1] if own else faults
            if rest is not None:
                raise rest from None
        finally:
            self._let_go()

    def _let_go(self) -> None:
        """Of Hypercorn's side, which holds us by our own methods: with it gone, all is freed now and
        not at the collector's next full round, which a heap at rest of this size puts off for long."""
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        if hasattr(self, "protocol"):
            del self.protocol

    async def _read_data(self) -> None:
        try:
            last = await self._pump()
            if isinstance(last, Refusal):
                await self._refuse(last)
            elif last is not None:
                self._last_word(last)
            if self.leaving:
                await self._read_away()
        finally:
            if self._reading is not None:
                self._reading.cancel()
        self._over = True
        self._connections.works(self)  # it waits for nothing any more
        await self.protocol.handle(Closed())

    async def _pump(self) -> Refusal | bytes | None:
        """Feed h11 until the peer is gone or refused, or this is leaving.  Bytes: the last answer on this connection."""
        guard, held = self._guard, self._held
        head_by: float | None = self.loop.time() + self._bounds.head_s
        turned = False  # away: the rest of its body is nobody's
        while not self.leaving:
            while held and (self._answered.is_set() or not held[0].starts):
                verdict = held.popleft()
                if isinstance(verdict, Refusal):
                    return verdict
                if verdict.starts:
                    self._connections.works(self)
                    head_by = None
                if verdict.starts and self._door is not None:
                    found = self._door(verdict.data, whole=verdict.ends)
                    if found is not None and (self._connections.draining or not found.stays):
                        return _closing(found.answer) if found.stays else found.answer
                    if found is not None:
                        turned = True
                        await self._write(found.answer)
                        head_by = self.loop.time() + self._bounds.head_s
                if turned:
                    if verdict.ends:
                        turned, head_by = False, None
                        self._wait()
                    continue
                if verdict.starts:
                    self._answered.clear()
                await self.protocol.handle(RawData(verdict.data))
            if sum(len(item.data) for item in held if isinstance(item, Pass)) > HELD_BYTES_MAX:
                return None
            if guard.in_head and head_by is None:
                head_by = self.loop.time() + self._bounds.head_s
            try:
                data = await self._read(head_by, or_answered=bool(held))
            except TimeoutError:
                if self._answered.is_set() and not self.leaving:
                    return Refusal(Fault.HEAD_SLOW, starts=True) if guard.in_head else None
                head_by = None  # what is under way is not cut for the sake of what follows it
                continue
            except OSError:
                return None
            if data is None:
                continue
            if not data:
                return None
            if self.leaving or (held and isinstance(held[-1], Refusal)):
                continue  # what follows a refused byte is not looked at
            held.extend(guard.feed(data))
            if guard.in_head and self._answered.is_set() and not held:
                self._connections.opens(self)
        return None

    async def _read(self, until: float | None, *, or_answered: bool) -> bytes | None:
        """Bytes; b"" at the end of the input; None: the request under way was answered first.
        TimeoutError at `until`, which does not count while an answer is awaited."""
        if self._reading is None and not or_answered:
            if until is None:
                return await self.reader.read(READ_BYTES)
            async with asyncio.timeout_at(until):
                return await self.reader.read(READ_BYTES)
        if self._reading is None:
            self._reading = self.loop.create_task(self.reader.read(READ_BYTES))
        if or_answered:
            answered = self.loop.create_task(self._answered.wait())
            try:
                await asyncio.wait({self._reading, answered}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                answered.cancel()
            if not self._reading.done():
                return None
        try:
            async with asyncio.timeout_at(until if not or_answered else None):
                return await self._reading
        finally:
            self._reading.cancel()
            self._reading = None

    async def _refuse(self, refusal: Refusal) -> None:
        """Answer if nothing was answered yet, then let the answer arrive before closing."""
        self._refused(refusal.fault)
        connection = getattr(self._h11(), "connection", None)
        may_answer = connection is not None and connection.our_state in {
            h11.IDLE,
            h11.SEND_RESPONSE,
        }
        if may_answer:
            self._last_word(refusal.response(self._mint()))
        else:
            self._muted = True  # a handler still at work must not write behind what was sent
            self.abort()
        await self.protocol.handle(Closed())

    async def _read_away(self) -> None:
        """What comes behind our last word, until the peer closes too or its time is over."""
        self._held.clear()
        unread = LINGER_BYTES_MAX
        with suppress(OSError):
            while unread > 0 and (data := await self._read(None, or_answered=False)):
                unread -= len(data)

    def _wait(self) -> None:
        """For a next request, or the rest of its head."""
        if self._guard.in_head and not self._held:
            self._connections.opens(self)
        else:
            self._connections.keeps(self)

    def _h11(self) -> H11Protocol:
        protocol = self.protocol.protocol
        assert isinstance(protocol, H11Protocol)  # the guard passes nothing that leads to HTTP/2
        return protocol

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, RawData):
            if not self._head and _is_head(event.data) and not self.writer.transport.is_closing():
                self._head = self._closing_once(event.data)
                self.loop.call_soon(self._send_head)  # where nothing follows it in this turn
                return
            head, self._head = self._head, b""
            await self._write(head + event.data)
            return
        self._send_head()
        if isinstance(event, Closed):
            self._last_word()
        elif isinstance(event, Updated) and event.idle:
            self._answered.set()
            if self._over:  # the peer closed its side: nothing more can be asked
                self._last_word()
            else:
                self._wait()

    def _closing_once(self, data: bytes) -> bytes:
        """While draining Hypercorn says `connection: close` in each head, also in one whose layers say so themselves."""
        if not self._connections.draining or (more := data.count(_CLOSE) - 1) < 1:
            return data
        stream = self._h11().stream
        is_head = isinstance(stream, HTTPStream) and stream.state is ASGIHTTPState.REQUEST
        return data.replace(_CLOSE, b"", more) if is_head else data

    def _send_head(self) -> None:
        head, self._head = self._head, b""
        if head and not self._muted and not self.writer.transport.is_closing():
            self.writer.write(head)

    async def _write(self, data: bytes) -> None:
        """Hypercorn swallows every fault of a write, so that a handler could send for ever to nobody.
        Ours ends such a handler; in the connection's own task there is nobody to end."""
        if not data:
            return
        transport = self.writer.transport
        if not self._muted and not transport.is_closing():
            if transport.get_write_buffer_size() + len(data) <= UNSENT_BYTES:
                self.writer.write(data)  # nobody would have to wait: no lock, no deadline
                return
            async with self.send_lock:
                try:
                    async with asyncio.timeout(self._bounds.write_s):
                        self.writer.write(data)
                        await self.writer.drain()
                    return
                except (OSError, RuntimeError):  # TimeoutError is an OSError
                    self.abort()
                    await self.protocol.handle(Closed())
                except asyncio.CancelledError:
                    self.abort()  # cut in mid-write: nothing sent after it would make sense
                    raise
        if asyncio.current_task() is not self._task:
            raise ClientGone

    async def _close(self) -> None:
        """Hypercorn waits for the peer to take all that was written; a stalled one never does."""
        async with asyncio.timeout(self._bounds.close_s) as patience:
            with suppress(OSError):  # the peer is gone before our side could be closed
                await super()._close()
        if patience.expired():
            self.abort()

    def abort(self) -> None:
        self._cut = True
        self.writer.transport.abort()


def _closing(answer: bytes) -> bytes:
    """An answer that would leave its connection open, as its last."""
    return answer.replace(b"\r\n\r\n", _CLOSE + b"\r\n\r\n", 1)


def _is_head(data: bytes) -> bool:
    """Of a final answer.  A body may begin so too: it is then sent a moment later, and in order."""
    return data.startswith(b"HTTP/1.1 ") and data[9:10] != b"1"
