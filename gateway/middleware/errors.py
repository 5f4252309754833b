"""Turn what the line raises into the one JSON answer, and what nobody foresaw into a plain 500.

Refuses to know: logging, and whose words a path speaks (`worded`).  `report` gets each unforeseen exception with the request's id; nothing of
it reaches the caller (SECURITY.md §4 L5).  Nothing escapes to the server but cancellation: an answer
that had begun and cannot be finished is left unfinished, which closes the connection, so that the
caller sees a cut answer and not a short one.  Whoever is cancelled before its answer began is cut by the end of the
drain (`listen`), and is told so: a server answers for it with a bare 500.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from gateway.errors import ApiError, shutting_down, unavailable
from gateway.middleware.wire import (
    ASGIApp,
    ClientGone,
    Message,
    Receive,
    Scope,
    Send,
    respond,
)
from gateway.worded import refusal
from tenants.store import StoreUnavailable


def internal_error() -> ApiError:
    return ApiError(
        500,
        "server_error",
        "internal_error",
        "Something failed on our side. The request id names it in our log; retrying may help.",
        headers={"connection": "close"},
    )


@dataclass(frozen=True, slots=True)
class Errors:
    """`report(request_id, exception)` is called for what no answer could tell: what nobody foresaw,
    and what came after the answer had begun.  A caller who left is no error."""

    app: ASGIApp
    report: Callable[[str, Exception], None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not started and task is not None and task.cancelling():
                why = shutting_down()
                with suppress(ClientGone):
                    await answer(watched, why, refusal(why, scope, _request_id(scope)))
            raise
        except Exception as raised:  # noqa: BLE001  (the last one who can answer)
            fault = _single(raised)
            if isinstance(fault, ClientGone):
                return
            error = fault if isinstance(fault, ApiError) else _foreseen(fault)
            request_id = _request_id(scope)
            if started or not isinstance(fault, ApiError):
                self.report(request_id, fault)
            if not started:
                await answer(watched, error, refusal(error, scope, request_id))


def _request_id(scope: Scope) -> str:
    return str(scope.get("state", {}).get("request_id", ""))


def _foreseen(fault: Exception) -> ApiError:
    """A database that is away is no fault of ours, wherever it was asked."""
    if isinstance(fault, StoreUnavailable):
        return unavailable(
            "The database could not be reached. Try again.", code="store_unavailable"
        )
    return internal_error()


async def answer(send: Send, error: ApiError, body: bytes) -> None:
    headers = [
        (name.lower().encode("ascii"), value.encode("latin-1"))
        for name, value in error.headers.items()
    ]
    await respond(send, error.status, [(b"content-type", b"application/json"), *headers], body)


def _single(fault: Exception) -> Exception:
    """Task groups wrap even a lone exception."""
    while isinstance(fault, ExceptionGroup) and len(fault.exceptions) == 1:
        fault = fault.exceptions[0]
    return fault
