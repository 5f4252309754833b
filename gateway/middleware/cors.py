"""Let the listed browser origins read our answers; by default there are none.

An origin is matched whole, never by pattern, and never with credentials: callers send a token in
`Authorization`, and no cookie of ours exists.  This stands outside all that refuses, so that a page can
read a refusal as well as an answer; only what the byte guard refuses never comes here, and no browser
writes such a request.
Source: the Fetch standard (CORS protocol), API.md §5 (CORS row), API.md §2 case 53.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from gateway.middleware.wire import (
    ASGIApp,
    Header,
    Message,
    Receive,
    Scope,
    Send,
    respond,
    values,
    with_headers,
)

EXPOSED = (
    "x-request-id, request-id, retry-after, retry-after-ms, x-should-retry, "
    "x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, "
    "x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens, "
    "ratelimit, ratelimit-policy, openai-processing-ms, idempotent-replayed, "
    "www-authenticate, dpop-nonce"
)
METHODS = "GET, POST, PUT, PATCH, DELETE"
MAX_AGE_S = 600
_ALLOWED = frozenset(
    {
        *("authorization", "content-type", "idempotency-key", "x-api-key", "dpop"),
        # What the SDKs of OpenAI and Anthropic send from a page; Firefox asks for `user-agent`, too.
        *("openai-organization", "openai-project", "user-agent"),
        *("anthropic-version", "anthropic-beta", "anthropic-dangerous-direct-browser-access"),
    }
)
_STAINLESS = re.compile(r"x-stainless-[a-z0-9-]{1,64}")
_NAMES_MAX = 64
_VARY = (b"vary", b"Origin")


@dataclass(frozen=True, slots=True)
class Cors:
    app: ASGIApp
    origins: Collection[str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self.origins:
            await self.app(scope, receive, send)
            return
        origin = self._listed(scope)
        asked = values(scope["headers"], b"access-control-request-method")
        if origin is not None and asked and scope["method"] == "OPTIONS":
            await respond(send, 204, [_VARY, *_allow(origin), *_preflight(scope)], b"")
            return

        async def opened(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = (
                    [] if origin is None else [*_allow(origin), _pair("expose-headers", EXPOSED)]
                )
                message = with_headers(message, [_vary(message), *extra])
            await send(message)

        await self.app(scope, receive, opened)

    def _listed(self, scope: Scope) -> str | None:
        found = values(scope["headers"], b"origin")
        origin = found[0].decode("latin-1") if len(found) == 1 else None
        return origin if origin in self.origins else None


def allowed_headers(requested: str) -> str:
    """Of the header names that a browser asks to send, those it may."""
    names = [name.strip(" \t").lower() for name in requested.split(",", _NAMES_MAX)[:_NAMES_MAX]]
    return ", ".join(
        dict.fromkeys(name for name in names if name in _ALLOWED or _STAINLESS.fullmatch(name))
    )


def _allow(origin: str) -> list[Header]:
    return [_pair("allow-origin", origin)]


def _preflight(scope: Scope) -> list[Header]:
    requested = b",".join(values(scope["headers"], b"access-control-request-headers"))
    return [
        _pair("allow-methods", METHODS),
        _pair("allow-headers", allowed_headers(requested.decode("latin-1"))),
        _pair("max-age", str(MAX_AGE_S)),
    ]


def _pair(name: str, value: str) -> Header:
    return f"access-control-{name}".encode("ascii"), value.encode("ascii")


def _vary(message: Message) -> Header:
    """The answer differs by origin, beside what the app says it differs by."""
    own = [value for value in values(message.get("headers", ()), b"vary") if value]
    return b"vary", b", ".join([*own, _VARY[1]])
