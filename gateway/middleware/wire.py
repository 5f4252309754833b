"""The ASGI names and the few helpers that every layer of the front shares.

Refuses to know: what any layer decides.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]
Header = tuple[bytes, bytes]


class ClientGone(Exception):
    """The caller went away, or takes no more bytes: nobody is left to answer."""


def values(headers: Iterable[Header], name: bytes) -> list[bytes]:
    """All values of `name`, which is lower case; both servers lower header names."""
    return [value for found, value in headers if found == name]


def with_headers(message: Message, extra: Iterable[Header]) -> Message:
    """A response start with `extra` in place of what bore the same names."""
    added = list(extra)
    names = {name for name, _ in added}
    kept = [pair for pair in message.get("headers", ()) if pair[0].lower() not in names]
    return {**message, "headers": [*kept, *added]}


async def respond(send: Send, status: int, headers: Iterable[Header], body: bytes) -> None:
    length = (b"content-length", str(len(body)).encode("ascii"))
    await send(
        {"type": "http.response.start", "status": status, "headers": [*headers, length]},
    )
    await send({"type": "http.response.body", "body": body})
