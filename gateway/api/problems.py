"""Refusals of the admin listener, as RFC 9457 problems.  The public API speaks OpenAI's shape."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.api.wire import json_bytes
from gateway.errors import ApiError
from gateway.streaming import respond

PROBLEM_JSON = "application/problem+json"


@dataclass(frozen=True, slots=True)
class Problems:
    """Every refusal, of a route or where there is none."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.app(scope, receive, send)
        except ApiError as why:
            await refuse(send, why)


def problem(why: ApiError) -> bytes:
    """RFC 9457.  `type` is a stable name, not an address."""
    return json_bytes(
        {
            "type": f"urn:lockgate:{why.code or why.kind}",
            "title": (why.code or why.kind).replace("_", " "),
            "status": why.status,
            "detail": why.message,
            **({"param": why.param} if why.param else {}),
        }
    )


async def refuse(send: Send, why: ApiError) -> None:
    headers = {**why.headers, "content-type": PROBLEM_JSON}
    await respond(send, why.status, problem(why), headers)
