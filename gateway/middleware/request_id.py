"""Stamp each request with an id that we minted; an inbound one is never trusted.

The caller's own stays an attribute, bounded and printable, for their support and our log; nothing is
ever looked up by it (SECURITY.md §5: `X-Request-Id` as cache key, CVE-2026-105755).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from gateway.middleware.wire import ASGIApp, Message, Receive, Scope, Send, values, with_headers

_CLIENT_ID = re.compile(rb"[A-Za-z0-9_.:/+=-]{1,128}")


@dataclass(frozen=True, slots=True)
class RequestId:
    app: ASGIApp
    mint: Callable[[], str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = self.mint()
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        state["client_request_id"] = _client_request_id(scope)
        stamp = (b"x-request-id", request_id.encode("ascii"))

        async def stamped(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = with_headers(message, [stamp])
            await send(message)

        await self.app(scope, receive, stamped)


def _client_request_id(scope: Scope) -> str | None:
    """None where it is absent, repeated, too long or not plain: no part of it is kept then."""
    found = values(scope["headers"], b"x-request-id")
    if len(found) == 1 and _CLIENT_ID.fullmatch(found[0]):
        return found[0].decode("ascii")
    return None
