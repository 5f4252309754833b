"""What every endpoint that changes or computes something is given, and what it must say of itself.

`once` finds out who asks and reads the body, then calls `serve`: by itself, or as work by an `Idempotency-Key`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from starlette.types import Receive, Scope, Send

from gateway.house import Clock
from gateway.identify import request_id
from gateway.kept import Basis
from gateway.runs import Doing
from policies.facts import Principal


@dataclass(frozen=True, slots=True)
class Arrival:
    request_id: str
    wall_ms: int
    monotonic_ns: int
    trace_id: str | None = None  # of the caller's own trace

    @classmethod
    def of(cls, clock: Clock, scope: Scope) -> Arrival:
        trace_id = scope["state"].get("trace_id")
        return cls(request_id(scope), clock.wall_ms(), clock.monotonic_ns(), trace_id)


@dataclass(frozen=True, slots=True)
class Entry:
    """One request that has come in.  `key`: its Idempotency-Key.  `doing`: where the endpoint writes down what its
    answer goes by."""

    scope: Scope
    arrived: Arrival
    who: Principal
    body: bytes = b""
    key: str | None = None
    doing: Doing = field(default_factory=Doing)


class Endpoint(Protocol):
    @property
    def body_bytes_max(self) -> int: ...

    @property
    def metered(self) -> bool:
        """The book knows what it costs."""
        ...

    @property
    def rated(self) -> bool:
        """It draws from the caller's rate of requests, and so does looking for its answer."""
        ...

    def open(self) -> None:
        """Before anything is read.  Raises ApiError 503 where nothing new is taken in."""

    async def serve(self, entry: Entry, receive: Receive, send: Send) -> None:
        """Raises ApiError, recorded."""

    def check(self, entry: Entry, basis: Basis) -> None:
        """Of an answer that was given before: may it be told now?  Raises the ApiError that a new request would meet."""
