"""One connection of the pinned Hypercorn, with `wire_guard` between the socket and h11.

Adds to Hypercorn's `TCPServer`: the byte guard; a deadline for a head to arrive and for every write;
a bounded, lingering close; and pipelined requests held back until the one before is answered, so that
a client that goes away is seen at once (Hypercorn stops reading while a request is held in h11).
And makes cheaper what every request pays: an answer's head goes out with what follows it, in one write,
and waiting for the next request is a timer instead of two tasks that each request cancels.
Refuses to know: ASGI, routes, tenants.
Source: DESIGN.md settled question 12, SECURITY.md §0, API.md §0 (1, 2); Hypercorn 0.18.0, whose
methods are overridden by name: `check_hypercorn` refuses to start on any other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Protocol

import h11
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.typing import AppWrapper

from gateway.door import TurnedAway
from gateway.idle_timer import IdleTimer
from gateway.middleware.wire import ClientGone
from gateway.wire_guard import Fault, Limits, Pass, Refusal, WireGuard

HYPERCORN = "0.18.0"
READ_BYTES = 32 * 1024
HELD_BYTES_MAX = 64 * 1024
"""Pipelined bytes held back for one connection.  A client that sends more is cut off: nobody needs
it, and beyond it we could not see it leave."""
LINGER_BYTES_MAX = 1024 * 1024
UNSENT_BYTES = 64 * 1024
"""Up to here a transport takes what is written without making anybody wait (asyncio's own high-water mark)."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one connection, and how many there may be."""

    keep_alive_s: float = 75.0
    head_s: float = 10.0
    write_s: float = 35.0
    """Longer than the guard's send deadline, so that the handler is cancelled before its socket dies."""
    close_s: float = 2.0
    connections_max: int = 2048
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
        door: TurnAway | None = None,
    ) -> None:
        super().__init__(app, loop, config, context, {}, reader, writer)
        self._bounds = bounds
        self._mint = mint
        self._refused = refused
        self._door = door
        self._answered = asyncio.Event()  # no request is under way
        self._answered.set()
        self._reading: asyncio.Task[bytes] | None = None
        self._muted = False
        self._over = False
        self._cut = False
        self._task: asyncio.Task[None] | None = None
        self._head = b""  # of an answer, until the end of this turn of the loop
        self.idle_task: IdleTimer = IdleTimer(  # type: ignore[assignment]
            bounds.keep_alive_s, context.terminated.is_set
        )

    def hang_up(self) -> None:
        """Close now if no request is under way; who serves has set the context's `terminated`."""
        self.idle_task.end()

    async def _idle_timeout(self) -> None:
        await self._initiate_server_close()

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
        if hasattr(self, "protocol"):
            del self.protocol

    async def _read_data(self) -> None:
        try:
            refusal = await self._pump()
            if isinstance(refusal, Refusal):
                await self._refuse(refusal)
            elif refusal is not None:
                await self.protocol.handle(Closed())
                await self._farewell(refusal)
        finally:
            if self._reading is not None:
                self._reading.cancel()
        self._over = True
        await self.protocol.handle(Closed())
        await self.idle_task.stop()  # or the connection would live on for as long as it may be idle

    async def _pump(self) -> Refusal | bytes | None:
        """Feed h11 until the peer is gone or refused.  Bytes: the last answer on this connection."""
        guard = WireGuard(self._bounds.limits)
        held: deque[Pass | Refusal] = deque()
        head_by: float | None = self.loop.time() + self._bounds.head_s
        turned = False  # away: the rest of its body is nobody's
        while True:
            while held and (self._answered.is_set() or not held[0].starts):
                verdict = held.popleft()
                if isinstance(verdict, Refusal):
                    return verdict
                if verdict.starts and self._door is not None:
                    found = self._door(verdict.data, whole=verdict.ends)
                    if found is not None and not found.stays:
                        return found.answer
                    if found is not None:
                        turned = True
                        await self._write(found.answer)
                        await self.idle_task.restart(self._task_group, self._idle_timeout)
                if turned:
                    turned = not verdict.ends
                    head_by = self.loop.time() + self._bounds.head_s if turned else None
                    continue
                if verdict.starts:
                    self._answered.clear()
                await self.protocol.handle(RawData(verdict.data))
            if sum(len(item.data) for item in held if isinstance(item, Pass)) > HELD_BYTES_MAX:
                return None
            try:
                data = await self._read(head_by, or_answered=bool(held))
            except TimeoutError:
                return Refusal(Fault.HEAD_SLOW, starts=True) if guard.in_head else None
            except OSError:
                return None
            if data is None:
                continue
            if not data:
                return None
            if held and isinstance(held[-1], Refusal):
                continue  # what follows a refused byte is not looked at
            held.extend(guard.feed(data))
            if not guard.in_head:
                head_by = head_by if turned else None
            elif head_by is None:
                head_by = self.loop.time() + self._bounds.head_s

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
        reading, self._reading = self._reading, None
        try:
            async with asyncio.timeout_at(until if not or_answered else None):
                return await reading
        finally:
            reading.cancel()

    async def _refuse(self, refusal: Refusal) -> None:
        """Answer if nothing was answered yet, then let the answer arrive before closing."""
        self._refused(refusal.fault)
        connection = getattr(self._h11(), "connection", None)
        may_answer = connection is not None and connection.our_state in {
            h11.IDLE,
            h11.SEND_RESPONSE,
        }
        self._muted = True  # a handler still at work must not write into our answer
        await self.protocol.handle(Closed())
        if may_answer:
            await self._farewell(refusal.response(self._mint()))
        else:
            self._abort()

    async def _farewell(self, answer: bytes) -> None:
        """The last answer, whole, whatever the peer is still sending."""
        self._muted = True
        try:
            async with asyncio.timeout(self._bounds.close_s):
                self.writer.write(answer)
                await self.writer.drain()
                self.writer.write_eof()
                # Closing with bytes unread would reset the connection and take our answer with it.
                unread = LINGER_BYTES_MAX
                while unread > 0 and (data := await self.reader.read(READ_BYTES)):
                    unread -= len(data)
        except (OSError, RuntimeError):  # TimeoutError is an OSError
            self._abort()

    def _h11(self) -> H11Protocol:
        protocol = self.protocol.protocol
        assert isinstance(protocol, H11Protocol)  # the guard passes nothing that leads to HTTP/2
        return protocol

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, RawData):
            if _is_head(event.data) and not self.writer.transport.is_closing():
                self._head = event.data
                self.loop.call_soon(self._send_head)  # where nothing follows it in this turn
                return
            head, self._head = self._head, b""
            await self._write(head + event.data)
            return
        self._send_head()
        if isinstance(event, Updated) and event.idle:
            self._answered.set()
            if self._over:  # the peer closed its side: nothing more can be asked
                event = Closed()
        await super().protocol_send(event)

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
                    self._abort()
                    await self.protocol.handle(Closed())
                except asyncio.CancelledError:
                    self._abort()  # cut in mid-write: nothing sent after it would make sense
                    raise
        if asyncio.current_task() is not self._task:
            raise ClientGone

    async def _close(self) -> None:
        """Hypercorn waits for the peer to take all that was written; a stalled one never does."""
        async with asyncio.timeout(self._bounds.close_s) as patience:
            await super()._close()
        if patience.expired():
            self._abort()

    def _abort(self) -> None:
        self._cut = True
        self.writer.transport.abort()


def _is_head(data: bytes) -> bool:
    """Of a final answer.  A body may begin so too: it is then sent a moment later, and in order."""
    return data.startswith(b"HTTP/1.1 ") and data[9:10] != b"1"
