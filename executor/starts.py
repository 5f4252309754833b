"""When one that waits may start: an estimate from how its own tenant's waiting requests came to start.

Told is the mean of the last starts, times the places before it.  An interval runs from the tenant's start before,
or from when the request began to wait where that was later, so a time in which nobody waited counts for nothing.
What others do moves it only as it moved the tenant's own waits, which the tenant can measure by its own clock: no
number of another's enters.  Too few starts, or the last too long ago: no estimate.

Pure: times are arguments.  Refuses to know: classes, promises, the queue.  Source: DESIGN.md, settled 5.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Final

STARTS_LEAST: Final = 4
STARTS_MAX: Final = 16
STALE_NS: Final = 60_000_000_000
GRAIN_MS: Final = 100


@dataclass(slots=True)
class _Tenant:
    last_ns: int
    intervals_ns: deque[int] = field(default_factory=lambda: deque(maxlen=STARTS_MAX))


class Starts:
    """Owned by an engine.  Holds nothing of a tenant whose last start is older than a minute."""

    __slots__ = ("_tenants",)

    def __init__(self) -> None:
        self._tenants: OrderedDict[str, _Tenant] = OrderedDict()  # the longest ago first

    def began(self, tenant: str, waiting_since_ns: int, now_ns: int) -> None:
        """One that was told that it waits has started."""
        self._forget(now_ns)
        found = self._tenants.get(tenant)
        if found is None:
            found = self._tenants[tenant] = _Tenant(waiting_since_ns)
        found.intervals_ns.append(max(0, now_ns - max(found.last_ns, waiting_since_ns)))
        found.last_ns = now_ns
        self._tenants.move_to_end(tenant)

    def eta_ms(self, tenant: str, place: int, now_ns: int) -> int | None:
        """Until the one in `place` (0 is next) starts, if it goes on as it went; in steps of 100 ms."""
        self._forget(now_ns)
        found = self._tenants.get(tenant)
        if found is None or len(found.intervals_ns) < STARTS_LEAST:
            return None
        mean_ns = sum(found.intervals_ns) / len(found.intervals_ns)
        steps = (place + 1) * mean_ns / (GRAIN_MS * 1_000_000)
        return max(1, round(steps)) * GRAIN_MS

    def __len__(self) -> int:
        return len(self._tenants)

    def _forget(self, now_ns: int) -> None:
        while self._tenants:
            tenant, oldest = next(iter(self._tenants.items()))
            if now_ns - oldest.last_ns <= STALE_NS:
                return
            del self._tenants[tenant]
