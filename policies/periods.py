"""Accounting periods: which month an instant lies in, when one may be closed, where what is late goes.

Refuses to know: what is in a period, who closes it, any clock.  Source: MONEY.md §1, invariant 11; §2.

A period is a UTC month.  It is open while it runs, closing for 48 hours more and until somebody closes
it (late usage still enters), then closed for ever.  Periods are closed in order, so that what is closed
is one instant: everything before it.  What arrives later belongs to the period that is open then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from enum import StrEnum

DAY_MS = 86_400_000
CLOSING_MS = 2 * DAY_MS
"""How long after its end late usage still enters a period."""
LATE_MS = DAY_MS
"""What is younger cannot lie in a closed period, though a clock had stepped back by a day."""
_EPOCH = date(1970, 1, 1).toordinal()


class State(StrEnum):
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


class Hurdle(StrEnum):
    """Why a month cannot be closed now."""

    RUNNING = "running"
    LATE_USAGE = "late_usage"
    CLOSED = "closed"
    EARLIER = "earlier"


@dataclass(frozen=True, slots=True)
class Month:
    """`name` as `2026-10`; [start_ms, end_ms) in UTC."""

    name: str
    start_ms: int
    end_ms: int

    @property
    def closable_ms(self) -> int:
        return self.end_ms + CLOSING_MS


def month(name: str) -> Month:
    """ValueError for what is no month like `2026-10`."""
    parts = name.split("-")
    if [len(part) for part in parts] != [4, 2] or not all(
        part.isascii() and part.isdigit() for part in parts
    ):
        raise ValueError("a period is a month like 2026-10")
    year, number = map(int, parts)
    if not (1970 <= year < 9999 and 1 <= number <= 12):
        raise ValueError("a period is a month like 2026-10")
    start, end = date(year, number, 1), date(year + number // 12, number % 12 + 1, 1)
    return Month(name, _ms(start), _ms(end))


def month_at(at_ms: int) -> Month:
    day = date.fromordinal(_EPOCH + at_ms // DAY_MS)
    return month(f"{day.year:04}-{day.month:02}")


def months(from_ms: int, to_ms: int) -> Iterator[Month]:
    """Those that [from_ms, to_ms) touches, in order."""
    at_ms = from_ms
    while at_ms < to_ms:
        found = month_at(at_ms)
        yield found
        at_ms = found.end_ms


def state_of(period: Month, closed_until_ms: int, now_ms: int) -> State:
    if period.end_ms <= closed_until_ms:
        return State.CLOSED
    return State.OPEN if now_ms < period.end_ms else State.CLOSING


def hurdle(
    period: Month, closed_until_ms: int, now_ms: int, oldest_open_ms: int | None
) -> Hurdle | None:
    """None: it may be closed.  `oldest_open_ms`: the first instant that is to be closed; a month before this
    one must be closed before it."""
    if period.end_ms <= closed_until_ms:
        return Hurdle.CLOSED
    if now_ms < period.end_ms:
        return Hurdle.RUNNING
    if now_ms < period.closable_ms:
        return Hurdle.LATE_USAGE
    if oldest_open_ms is not None and oldest_open_ms < period.start_ms:
        return Hurdle.EARLIER
    return None


def may_be_closed(at_ms: int, now_ms: int) -> bool:
    """False: nobody can have closed the period of `at_ms` yet, and nothing need be asked."""
    return now_ms - at_ms >= LATE_MS


def effective_for(closed_until_ms: int, at_ms: int, now_ms: int) -> int:
    """When an entry counts that belongs to `at_ms` and is written at `now_ms`: then, or, where that is
    closed, now.  A clock that stepped back does not reach into what is closed."""
    if at_ms >= closed_until_ms:
        return at_ms
    return max(now_ms, closed_until_ms)


def _ms(day: date) -> int:
    return (day.toordinal() - _EPOCH) * DAY_MS
