"""Answer early without leaking: read away the body that nobody wanted, and close behind the answer.

Hypercorn hands a body to the handler through a bounded queue.  A handler that answers without
reading leaves its connection waiting on that queue for ever (API.md §0, 1a).  So where an answer
begins before the body's end was seen, what already lies there is read first, and if that was not all,
the answer says `connection: close`, the rest is discarded while it is sent, and its last part waits a
little: closing on a client that is still sending would destroy the answer on its way.
A handler may go on calling `receive` then; it learns of the disconnect, which the reading away sees.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from gateway.middleware.wire import (
    ASGIApp,
    Message,
    Receive,
    Scope,
    Send,
    values,
    with_headers,
)

AT_HAND_S = 0.05
"""What is read within this time counts as lying there already: the connection is then kept."""
AT_HAND_BYTES = 64 * 1024
DISCARD_BYTES_MAX = 8 * 1024 * 1024
"""Beyond this the last part waits no longer."""
AFTER_S = 10.0
"""How long reading away may outlive the handler, while its connection is being closed."""


@dataclass(frozen=True, slots=True)
class Linger:
    app: ASGIApp
    linger_s: float
    _discarding: set[asyncio.Task[None]] = field(default_factory=set)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = _Exchange(receive, send, self.linger_s, has_body=_has_body(scope))
        try:
            await self.app(scope, exchange.receive, exchange.send)
        finally:
            if (task := exchange.discarding) is not None and not task.done():
                # The server still has to close, and reads the queue until it has.
                self._discarding.add(task)
                task.add_done_callback(self._discarding.discard)
                asyncio.get_running_loop().call_later(AFTER_S, task.cancel)


def _has_body(scope: Scope) -> bool:
    lengths = values(scope["headers"], b"content-length")
    return any(length != b"0" for length in lengths) or bool(
        values(scope["headers"], b"transfer-encoding")
    )


class _Exchange:
    """One request and its answer.  `discarding`, once there, is the only reader of the server."""

    def __init__(self, receive: Receive, send: Send, linger_s: float, *, has_body: bool) -> None:
        self.discarding: asyncio.Task[None] | None = None
        self._receive = receive
        self._send = send
        self._linger_s = linger_s
        self._unread = has_body
        self._enough = asyncio.Event()  # discarded all, or as much as we wait for

    async def receive(self) -> Message:
        if self.discarding is not None:
            await asyncio.wait({self.discarding})
            return {"type": "http.disconnect"}
        message = await self._receive()
        self._note(message)
        return message

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.start" and self._unread:
            await self._read_at_hand()
            if self._unread:
                message = with_headers(message, [(b"connection", b"close")])
                self.discarding = asyncio.create_task(self._discard())
        last = kind == "http.response.body" and not message.get("more_body", False)
        if last and self.discarding is not None:
            await self._send({**message, "more_body": True})
            try:
                async with asyncio.timeout(self._linger_s):
                    await self._enough.wait()
            except TimeoutError:
                pass
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send(message)

    def _note(self, message: Message) -> int:
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            self._unread = False
        return len(message.get("body", b""))

    async def _read_at_hand(self) -> None:
        count = 0
        try:
            async with asyncio.timeout(AT_HAND_S):
                while self._unread and count < AT_HAND_BYTES:
                    count += self._note(await self._receive())
        except TimeoutError:
            pass

    async def _discard(self) -> None:
        """Until the body's end and then the disconnect, or the disconnect alone."""
        count = 0
        try:
            while True:
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    return
                count += self._note(message)
                if not self._unread or count > DISCARD_BYTES_MAX:
                    self._enough.set()
        finally:
            self._enough.set()
