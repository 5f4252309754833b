"""Promised, kept, broken: each request is judged once, at its end, and counted by class, tenant and hour.

In memory, since this process started: the last `HOURS_MAX` hours, and no more than `ROWS_MAX` rows beside
those of the running hour (which are bounded by the configuration); whole hours go, the oldest first.  The usage rows in the book keep every span of a
request for ever; what was promised at that time they do not hold.

Refuses to know: when a promise is kept (`policies.classes`).  Holds names of tenants and counts alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Final

from executor.contract import Cause, Ended
from gateway.case import Case
from policies.classes import Fate, Judged, ServiceClass, Times, Verdict

HOUR_MS: Final = 3_600_000
HOURS_MAX: Final = 48
ROWS_MAX: Final = 20_000
COLUMNS: Final = ("service_class", "tenant", "hour")
_LATE: Final = 408


@dataclass(slots=True)
class Tally:
    """`requests`: all that were authorised, which are the sum of `PARTS`.  `refused`: for a backlog of their own;
    `displaced` of these had waited.  `limited`: by a rate, a budget or another limit, or for a mistake of
    theirs.  `left`: before anything could be judged.  `unjudged`: nothing was promised, or too little came
    to judge by.  Of the broken, `unserved` had no token at all."""

    requests: int = 0
    kept: int = 0
    broken: int = 0
    refused: int = 0
    limited: int = 0
    left: int = 0
    unjudged: int = 0
    ttft_kept: int = 0
    ttft_broken: int = 0
    itl_kept: int = 0
    itl_broken: int = 0
    displaced: int = 0
    unserved: int = 0

    @property
    def promised(self) -> int:
        return self.kept + self.broken

    def count(self, fate: Fate, judged: Judged) -> None:
        self.requests += 1
        part = _part(fate, judged)
        setattr(self, part, getattr(self, part) + 1)
        self.ttft_kept += judged.ttft is Verdict.KEPT
        self.ttft_broken += judged.ttft is Verdict.BROKEN
        self.itl_kept += judged.itl is Verdict.KEPT
        self.itl_broken += judged.itl is Verdict.BROKEN
        self.displaced += fate is Fate.DISPLACED
        self.unserved += fate is Fate.PLATFORM and judged.ttft is Verdict.BROKEN

    def add(self, other: Tally) -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


PARTS: Final = ("kept", "broken", "refused", "limited", "left", "unjudged")
_WHY_NOT_JUDGED: Final = {
    Fate.BACKLOG: "refused",
    Fate.DISPLACED: "refused",
    Fate.OTHER: "limited",
    Fate.LEFT: "left",
}


def _part(fate: Fate, judged: Judged) -> str:
    """The one of `PARTS` that a request counts in."""
    if judged.whole is not Verdict.NONE:
        return judged.whole.value
    return _WHY_NOT_JUDGED.get(fate, "unjudged")


Row = tuple[str, str]  # class, tenant


class Promises:
    """Owned by one event loop."""

    def __init__(
        self,
        clock_ms: Callable[[], int],
        *,
        hours_max: int = HOURS_MAX,
        rows_max: int = ROWS_MAX,
    ) -> None:
        self._clock_ms = clock_ms
        self._hours_max = hours_max
        self._rows_max = rows_max
        self.since_ms = clock_ms()
        self._hours: OrderedDict[int, dict[Row, Tally]] = OrderedDict()

    def count(self, service_class: str, tenant: str, fate: Fate, judged: Judged) -> None:
        hour = self._clock_ms() // HOUR_MS
        rows = self._hours.setdefault(hour, {})
        rows.setdefault((service_class, tenant), Tally()).count(fate, judged)
        while len(self._hours) > 1 and (
            len(self._hours) > self._hours_max or self._rows > self._rows_max
        ):
            self._hours.popitem(last=False)

    def forget(self, gone: Callable[[str], bool]) -> None:
        """Tenants that are no more."""
        for rows in self._hours.values():
            for row in [each for each in rows if gone(each[1])]:
                del rows[row]

    @property
    def _rows(self) -> int:
        return sum(map(len, self._hours.values()))

    @property
    def from_ms(self) -> int:
        """What is counted begins here."""
        return max(self.since_ms, next(iter(self._hours), 0) * HOUR_MS)

    def by(
        self, columns: Collection[str], *, tenant: str | None = None
    ) -> list[tuple[dict[str, str | int], Tally]]:
        """Sums by `columns` (of `COLUMNS`), of one tenant or of all, in order.  `hour`: when it began."""
        sums: dict[tuple[str | int, ...], Tally] = {}
        for hour, rows in self._hours.items():
            for (service_class, whose), tally in rows.items():
                if tenant is not None and whose != tenant:
                    continue
                named: dict[str, str | int] = {
                    "service_class": service_class,
                    "tenant": whose,
                    "hour": hour * HOUR_MS,
                }
                key = tuple(named[column] for column in columns)
                sums.setdefault(key, Tally()).add(tally)
        ordered = sorted(sums.items(), key=lambda each: tuple(map(str, each[0])))
        return [(dict(zip(columns, key, strict=True)), tally) for key, tally in ordered]


def fate_of(case: Case) -> Fate:
    """How it fared."""
    refused = [each for each in case.ended.values() if each.cause is Cause.BACKLOG]
    if refused:
        return Fate.DISPLACED if any(map(had_waited, refused)) else Fate.BACKLOG
    if case.outcome == "crashed":
        return Fate.PLATFORM
    if case.outcome == "cancelled":
        return Fate.LEFT
    if case.error is None:
        return Fate.SERVED
    ours = case.error.status >= 500 or case.error.status == _LATE
    return Fate.PLATFORM if ours else Fate.OTHER


def had_waited(ended: Ended) -> bool:
    """And was not refused at the door."""
    return ended.displaced


def times_of(case: Case) -> Times:
    """Of several choices, the one whose tokens came slowest.  As they came to the gateway, whoever read them
    and when: so a client that reads slowly breaks no promise of ours, nor does one that leaves."""
    until_ns = case.left_ns or case.closed_ns or case.received_ns
    life_ns = until_ns - case.received_ns
    promised = all(each.promised for each in case.ended.values())
    if case.first_token_ns is None:
        return Times(life_ns, promised=promised)
    slowest = case.slowest()
    ttft_ns = case.first_token_ns - case.received_ns
    return Times(life_ns, ttft_ns, slowest.span_ns, slowest.tokens, promised)


def class_of(case: Case, named: Mapping[str, ServiceClass]) -> ServiceClass | None:
    """Of a request that was authorised; a class that is configured no more promises nothing."""
    if case.dims is None or case.dims.service_class is None:
        return None
    name = case.dims.service_class
    return named.get(name) or ServiceClass(name)


def promises_view(
    promises: Promises,
    named: Mapping[str, ServiceClass],
    by: Collection[str],
    tenant: str | None,
) -> dict[str, object]:
    """What was kept stands beside what is promised now."""
    rows: list[dict[str, object]] = []
    for group, tally in promises.by(by, tenant=tenant):
        row: dict[str, object] = {
            name: iso(value) if isinstance(value, int) else value for name, value in group.items()
        }
        if "service_class" in group:
            of = named.get(str(group["service_class"]))
            row |= {
                "ttft_ms": None if of is None else of.ttft_ms,
                "itl_ms": None if of is None else of.itl_ms,
            }
        rows.append(row | {"promised": tally.promised, **asdict(tally)})
    return {"from": iso(promises.from_ms), "rows": rows}


def iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
