"""Bound how many handlers are at work, before anybody is authenticated.

A server limits what it must; only we know what we can (SECURITY.md §0: 522 handlers live at once
despite a limit of 100).  Health probes are waved through: a full house is busy, not dead.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from gateway.errors import unavailable
from gateway.middleware.wire import ASGIApp, Receive, Scope, Send

PROBES = frozenset({b"/health", b"/ready"})


@dataclass(slots=True)
class Places:
    """Of a listener: how many are taken, of how many there are."""

    most: int = 1024
    live: int = 0


class Live:
    def __init__(self, app: ASGIApp, places: Places, exempt: Collection[bytes] = PROBES) -> None:
        self.app = app
        self.places = places
        self._exempt = exempt

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope.get("raw_path") in self._exempt:
            await self.app(scope, receive, send)
            return
        places = self.places
        if places.live >= places.most:
            raise unavailable("Too many requests are being served; try again shortly.")
        places.live += 1
        try:
            await self.app(scope, receive, send)
        finally:
            places.live -= 1
