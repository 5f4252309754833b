"""Put a deadline on every `send`: a caller that takes nothing for so long is gone.

The handler is then cancelled, plainly and once, so that it unwinds as for any other end (abort, free
the turn, settle, audit); what it still tries to send goes nowhere.
Source: SECURITY.md §0 (30 of 30 handlers never ended), API.md §3 (stall timeout).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from gateway.middleware.wire import ASGIApp, ClientGone, Message, Receive, Scope, Send

CANCEL_S = 1.0
"""A task of the handler's own that sends is given this long to be cancelled with its handler."""


@dataclass(frozen=True, slots=True)
class SendDeadline:
    """`stalled(request_id)` is told of each handler that was cancelled."""

    app: ASGIApp
    send_s: float
    stalled: Callable[[str], None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        loop = asyncio.get_running_loop()
        over = False

        async def timed(message: Message) -> None:
            nonlocal over
            if over:
                raise ClientGone
            try:
                async with asyncio.timeout(self.send_s) as clock:
                    await send(message)
            except TimeoutError:
                if not clock.expired():
                    raise
                over = True
                handler.reschedule(loop.time())
                await asyncio.sleep(CANCEL_S)
                raise ClientGone from None

        try:
            async with asyncio.timeout(None) as handler:
                await self.app(scope, receive, timed)
        except TimeoutError:
            if not handler.expired():
                raise
        if over:
            self.stalled(str(scope.get("state", {}).get("request_id", "")))
