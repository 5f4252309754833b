"""How many places of the house one tenant may hold, and with how many of them it may be sending bodies.

A body may take half a minute to come, and until it is there no plan's limit counts it, while its
place among the requests that this process can serve is taken.  So no tenant may hold more than a
part of those places so, whatever its plan; a body that comes at once hardly ever stands here.
And since a plan may allow more at once than there are places, no tenant may hold so many that nobody else
finds one (`policies.shedding.may_hold`).
Refuses to know: plans, HTTP beyond its own refusal.  Source: SECURITY.md §4 (W7, A12).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from gateway.errors import ApiError
from policies.shedding import may_hold

PLACES = 1024
"""The front's `live_max`."""
SENDING_MAX = PLACES // 4


@dataclass(frozen=True, slots=True)
class Doorway:
    """One for a listener.  Operators, who belong to no tenant, are not counted."""

    most: int = SENDING_MAX
    places: int = PLACES
    _sending: Counter[str] = field(default_factory=Counter)
    _inside: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def inside(self, tenant: str | None) -> Iterator[None]:
        """From when it is known who asks to the last word.  Raises ApiError 429."""
        if tenant is None:
            yield
            return
        if not may_hold(self._inside[tenant], self._inside.total(), self.places):
            raise _too_many(
                "Your tenant has as many requests here as leave room for others. Wait for some of "
                "them to end."
            )
        with _counted(self._inside, tenant):
            yield

    @contextmanager
    def held(self, tenant: str | None) -> Iterator[None]:
        """Raises ApiError 429."""
        if tenant is None:
            yield
            return
        if self._sending[tenant] >= self.most:
            raise _too_many(
                f"{self.most} requests of your tenant are still sending their bodies. Send each "
                "body at once, and try again."
            )
        with _counted(self._sending, tenant):
            yield


@contextmanager
def _counted(counter: Counter[str], tenant: str) -> Iterator[None]:
    counter[tenant] += 1
    try:
        yield
    finally:
        counter[tenant] -= 1
        if not counter[tenant]:
            del counter[tenant]


def _too_many(message: str) -> ApiError:
    return ApiError(
        429,
        "rate_limit_error",
        "concurrency_exceeded",
        message,
        headers={"retry-after": "1"},
    )
