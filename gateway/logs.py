"""The process's log: structlog to standard error, redacted, one JSON object a line.

In development mode the same redacted fields, worded for people.  Returns a function and configures
nothing global.  Redaction is `security.redact`; what may be said is decided there.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import structlog

from executor.client import State, StateKind
from security import redact


def configure(*, development: bool) -> Callable[..., None]:
    """`log(event, **fields)`.  Values of fields that are not on the list are shown as their type."""
    end = [redact.redact, _for_people] if development else redact.processors()
    logger = structlog.wrap_logger(
        structlog.WriteLogger(sys.stderr),  # a line is one write
        processors=[structlog.processors.TimeStamper(fmt="iso", utc=True), *end],
    ).bind()

    def log(event: str, **fields: object) -> None:
        kept = {name: value for name, value in fields.items() if value is not None}
        error = kept.pop("error", None)
        if isinstance(error, BaseException):
            kept["exc_info"] = error  # redaction shows its type and where it was raised
        logger.msg(event, **kept)

    return log


def watch(loop: asyncio.AbstractEventLoop, log: Callable[..., None]) -> None:
    """What fails with nobody waiting for it is told here too.  asyncio's own words would show the
    exception's message and the arguments of the call, and either may quote what a caller sent."""

    def failed(_: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        log("loop.failed", error=context.get("exception"))

    loop.set_exception_handler(failed)


def _for_people(_logger: Any, _method: str, event: Mapping[str, Any]) -> str:
    """`12:00:01 request  outcome=completed …`"""
    fields: MutableMapping[str, Any] = dict(event)
    at = str(fields.pop("timestamp", ""))[11:19]
    name = fields.pop("event", "")
    said = "  ".join(f"{key}={value}" for key, value in fields.items())
    return f"{at} {name:<20} {said}".rstrip()


def executor_told(log: Callable[..., None], name: str, state: State) -> None:
    """Each change of state, and where loading begins and ends; not every per cent between."""
    percent = None if state.fraction is None else round(state.fraction * 100)
    if percent not in {None, 0, 100}:
        return
    log(
        f"executor.{state.kind.value}",
        model=name,
        stage=state.stage or None,
        percent=percent,
        reason=state.reason if state.kind in {StateKind.BROKEN, StateKind.RESTARTING} else None,
    )
