"""Bound how many handlers are at work, before anybody is authenticated.

A server limits what it must; only we know what we can (SECURITY.md §0: 522 handlers live at once
despite a limit of 100).  Health probes are waved through: a full house is busy, not dead.
"""

from __future__ import annotations

from collections.abc import Collection

from gateway.errors import unavailable
from gateway.middleware.wire import ASGIApp, Receive, Scope, Send

PROBES = frozenset({b"/health", b"/ready"})


class Live:
    def __init__(self, app: ASGIApp, live_max: int, exempt: Collection[bytes] = PROBES) -> None:
        self.app = app
        self.live = 0
        self._live_max = live_max
        self._exempt = exempt

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope.get("raw_path") in self._exempt:
            await self.app(scope, receive, send)
            return
        if self.live >= self._live_max:
            raise unavailable("Too many requests are being served; try again shortly.")
        self.live += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.live -= 1
