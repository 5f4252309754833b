"""How many requests of one tenant may be sending their bodies at once.

A body may take half a minute to come, and until it is there no plan's limit counts it, while its
place among the requests that this process can serve is taken.  So no tenant may hold more than a
part of those places, whatever its plan; a body that comes at once hardly ever stands here.
Refuses to know: plans, HTTP beyond its own refusal.  Source: SECURITY.md §4 (W7, A12).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from gateway.errors import ApiError

SENDING_MAX = 256
"""A quarter of the front's `live_max`."""


@dataclass(frozen=True, slots=True)
class Doorway:
    """One for a listener.  Operators, who belong to no tenant, are not counted."""

    most: int = SENDING_MAX
    _sending: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def held(self, tenant: str | None) -> Iterator[None]:
        """Raises ApiError 429."""
        if tenant is None:
            yield
            return
        if self._sending[tenant] >= self.most:
            raise ApiError(
                429,
                "rate_limit_error",
                "concurrency_exceeded",
                f"{self.most} requests of your tenant are still sending their bodies. Send each "
                "body at once, and try again.",
                headers={"retry-after": "1"},
            )
        self._sending[tenant] += 1
        try:
            yield
        finally:
            self._sending[tenant] -= 1
            if not self._sending[tenant]:
                del self._sending[tenant]
