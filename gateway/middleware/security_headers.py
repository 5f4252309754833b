"""Say on every answer that it must not be stored or guessed at.

Answers depend on who asked, and a cache between us and them does not know that (SECURITY.md §5:
Kong, CVE-2026-92442/3).  An event stream brings its own `no-cache, no-transform` (API.md §3).
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.middleware.wire import ASGIApp, Message, Receive, Scope, Send, values, with_headers

_NO_STORE = (b"cache-control", b"no-store")
_NO_SNIFF = (b"x-content-type-options", b"nosniff")


@dataclass(frozen=True, slots=True)
class SecurityHeaders:
    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = with_headers(message, [_NO_SNIFF])
                kinds = values(message["headers"], b"content-type")
                if not any(kind.startswith(b"text/event-stream") for kind in kinds):
                    message = with_headers(message, [_NO_STORE])
            await send(message)

        await self.app(scope, receive, secured)
