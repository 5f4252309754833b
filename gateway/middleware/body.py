"""Bound a request's body in size and in time, and read it whole.

The limit counts before anything is kept: a declared length at once, a chunked body as it comes.  The
deadline is for the whole body, so that one byte a second gains nothing (Hypercorn's `read_timeout`
does not see that).  Both are raised from `receive`, in whichever handler reads.
Source: SECURITY.md §4 W7 and W12, API.md §2 case 55.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from gateway.errors import ApiError
from gateway.middleware.wire import ASGIApp, ClientGone, Message, Receive, Scope, Send, values


def too_large(limit: int) -> ApiError:
    return ApiError(
        413,
        "invalid_request_error",
        "request_too_large",
        f"The request body is larger than {limit} bytes; send less.",
    )


def too_slow(body_s: float) -> ApiError:
    return ApiError(
        408,
        "timeout",
        "body_too_slow",
        f"The request body did not arrive within {body_s:g} s; send it again, faster.",
        headers={"connection": "close"},
    )


@dataclass(frozen=True, slots=True)
class BodyBounds:
    app: ASGIApp
    body_bytes_max: int
    body_s: float

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if any(int(value) > self.body_bytes_max for value in declared_lengths(scope)):
            raise too_large(self.body_bytes_max)
        until = asyncio.get_running_loop().time() + self.body_s
        count, complete = 0, False

        async def bounded() -> Message:
            nonlocal count, complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout_at(until) as clock:
                    message = await receive()
            except TimeoutError:
                if clock.expired():
                    raise too_slow(self.body_s) from None
                raise
            complete = not message.get("more_body", False)
            count += len(message.get("body", b""))
            if count > self.body_bytes_max:
                raise too_large(self.body_bytes_max)
            return message

        await self.app(scope, bounded, send)


def declared_lengths(scope: Scope) -> list[bytes]:
    """Well-formed Content-Length values; what else stands there the head check has refused."""
    found = values(scope["headers"], b"content-length")
    return [value for value in found if value.isdigit() and len(value) <= 15]


async def read_body(receive: Receive, *, limit: int) -> bytes:
    """The whole body.  ApiError 413 above `limit` bytes; ClientGone when the caller leaves first."""
    parts: list[bytes] = []
    count = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        count += len(part)
        if count > limit:
            raise too_large(limit)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)
