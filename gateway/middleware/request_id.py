"""Stamp each request with an id that we minted; an inbound one is never trusted.

The caller's own stays an attribute, bounded and printable, for their support and our log; nothing is
ever looked up by it (SECURITY.md §5: `X-Request-Id` as cache key, CVE-2026-105755).  The id of the caller's trace is
in our log, so that their tracing leads to it; whether they sample it changes nothing (W3C Trace Context §3.2).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from gateway.middleware.wire import ASGIApp, Message, Receive, Scope, Send, values, with_headers
from gateway.worded import speaks_anthropic

_CLIENT_ID = re.compile(rb"[A-Za-z0-9_.:/+=-]{1,128}")
_TRACE = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_LATER_VERSION = re.compile(_TRACE.pattern + rb"-[\x21-\x7e]{0,256}")


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
        state["trace_id"] = _trace_id(scope)
        stamps = [(b"x-request-id", request_id.encode("ascii"))]
        if speaks_anthropic(scope):
            stamps.append((b"request-id", request_id.encode("ascii")))

        async def stamped(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = with_headers(message, stamps)
            await send(message)

        await self.app(scope, receive, stamped)


def _client_request_id(scope: Scope) -> str | None:
    """None where it is absent, repeated, too long or not plain: no part of it is kept then."""
    found = values(scope["headers"], b"x-request-id")
    if len(found) == 1 and _CLIENT_ID.fullmatch(found[0]):
        return found[0].decode("ascii")
    return None


def _trace_id(scope: Scope) -> str | None:
    """None where there is no `traceparent`, or none that can be read.  A later version may say more at its end."""
    found = values(scope["headers"], b"traceparent")
    if len(found) != 1:
        return None
    read = _TRACE.fullmatch(found[0])
    if read is None and not found[0].startswith(b"00"):
        read = _LATER_VERSION.fullmatch(found[0])
    return None if read is None else read[1].decode("ascii")
