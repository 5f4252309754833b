"""The register of requests that are running now, so that authority withdrawn ends them.

A revocation, a suspension or a token's expiry interrupts each live request it concerns within the
same event-loop turn; the request then unwinds through `lifecycle` like any other.  Knows no HTTP.
Source: SECURITY.md P6, J20, J22.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from gateway.errors import ApiError
from policies.facts import Principal
from policies.scope.labels import Label


@dataclass(frozen=True, slots=True)
class LiveRequest:
    """`reads`: the registered texts that it was allowed to read, where it read any.  `listens`: it does no work, and
    hears that of another, with its end.  `left` is set when it is over and its work is aborted."""

    request_id: str
    who: Principal
    interrupt: Callable[[BaseException], None]
    reads: Label | None = None
    listens: bool = False
    left: asyncio.Event = field(default_factory=asyncio.Event, compare=False, repr=False)


class Live:
    """`withdrawn` says whether a request's authority is gone: asked of each that comes in, since it
    was authenticated before its body was read and its budget held."""

    def __init__(self, withdrawn: Callable[[LiveRequest], bool]) -> None:
        self._withdrawn = withdrawn
        self._requests: dict[str, LiveRequest] = {}
        self._closed: Callable[[], ApiError] | None = None
        self._none = asyncio.Event()
        self._none.set()

    def __len__(self) -> int:
        return len(self._requests)

    def ids(self) -> tuple[str, ...]:
        """The requests whose leases and holds are to be renewed."""
        return tuple(self._requests)

    @contextmanager
    def entered(self, request: LiveRequest, *, expires_in_ms: int | None) -> Iterator[None]:
        """Live inside the block.  `expires_in_ms`: when authority lapses by itself, grace included.
        Raises ApiError 403 where it was withdrawn since it was shown, and what `close` was given."""
        if self._withdrawn(request):
            raise authorization_revoked()
        if self._closed is not None:
            raise self._closed()
        self._requests[request.request_id] = request
        self._none.clear()
        timer = None
        if expires_in_ms is not None:
            timer = asyncio.get_running_loop().call_later(
                max(0, expires_in_ms) / 1000, request.interrupt, auth_expired()
            )
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()
            self._requests.pop(request.request_id, None)
            request.left.set()
            if not self._requests:
                self._none.set()

    async def emptied(self) -> None:
        """Until nothing runs."""
        await self._none.wait()

    def interrupt_all(self, why: Callable[[], ApiError]) -> int:
        """End everything that runs, each with an error of its own; how many.  Who only listens hears it from there."""
        struck = tuple(each for each in self._requests.values() if not each.listens)
        for request in struck:
            request.interrupt(why())
        return len(struck)

    def close(self, why: Callable[[], ApiError]) -> int:
        """The same, and whatever comes from now on is refused with it: a body may take long to come."""
        self._closed = why
        return self.interrupt_all(why)

    def reading(self, concerns: Callable[[Label], bool]) -> bool:
        """Whether any request that runs reads what `concerns` says of its label."""
        return any(each.reads and concerns(each.reads) for each in self._requests.values())

    def withdraw(self) -> tuple[LiveRequest, ...]:
        """After a change of authority: interrupt every request that has lost its own."""
        struck = tuple(request for request in self._requests.values() if self._withdrawn(request))
        for request in struck:
            request.interrupt(authorization_revoked())
        return struck


def auth_expired() -> ApiError:
    return ApiError(
        401,
        "authentication_error",
        "auth_expired",
        "The token expired while the answer was running. Ask again with a current token.",
        headers={"x-should-retry": "false"},
    )


def authorization_revoked() -> ApiError:
    return ApiError(
        403,
        "permission_error",
        "authorization_revoked",
        "The authorization of this request was withdrawn while it was running.",
        headers={"x-should-retry": "false"},
    )
