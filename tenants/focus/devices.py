"""Device time in an operator's export: rows for what no request is charged for, and how the devices' time
was split over the rows of each span.

Refuses to know: money.  No device has a price here, so its rows cost nothing and have seconds; whoever knows
what an hour of it costs multiplies by `AllocatedRatio`.  Source: MONEY.md §2 ("Idle", "FOCUS"); FOCUS 1.3,
data generator-calculated split cost allocation.

The ratios of a span and a model sum to one, exactly: each is the part of the sum so far, in whole 1e-15, less
the part before it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from sqlalchemy import Connection, func, select

from tenants import schema
from tenants.devices import MINUTE_MS
from tenants.focus.files import plain
from tenants.focus.lines import Line
from tenants.focus.rows import EXACT, Row, Terms, Value, row_of, scaled
from tenants.postings import USAGE
from tenants.reports.facts import Slice
from tenants.schema.devices import OVERHEAD

_M = schema.device_minute
PLATFORM: Final = "platform"
"""The sub-account of what is nobody's."""
IDLE: Final = "idle"
UNPRICED: Final = "unpriced"
_PARTS: Final = 10**15


@dataclass(frozen=True, slots=True)
class DeviceLine:
    """What went to nobody in one span.  `account`: idle, or a kind of overhead."""

    model: str
    account: str
    start_ms: int
    device_ns: int


def first_ms(conn: Connection, of: Slice) -> int | None:
    first: int | None = conn.execute(
        select(func.min(_M.c.minute_ms)).where(*_within(of))
    ).scalar_one()
    return first


def lines(conn: Connection, of: Slice) -> list[DeviceLine]:
    """Of one span, in order; without what is nothing."""
    names = (f"{IDLE}_ns", *(f"{kind}_ns" for kind in OVERHEAD))
    query = (
        select(_M.c.model, *(func.sum(_M.c[name]) for name in names))
        .where(*_within(of))
        .group_by(_M.c.model)
        .order_by(_M.c.model)
    )
    return [
        DeviceLine(model, account, of.from_ms, int(time_ns))
        for model, *times in conn.execute(query)
        for account, time_ns in zip((IDLE, *OVERHEAD), times, strict=True)
        if time_ns
    ]


def rules(conn: Connection, of: Slice) -> dict[str, str]:
    """By model, how its steps were split: the last by name, where it changed within the time."""
    query = select(_M.c.model, func.max(_M.c.rule)).where(*_within(of)).group_by(_M.c.model)
    return {str(row[0]): str(row[1]) for row in conn.execute(query)}


def _within(of: Slice) -> tuple[Any, ...]:
    """Minutes that were over by then: they change no more."""
    until_ms = of.to_ms
    if of.posted_before_ms is not None:
        until_ms = min(until_ms, of.posted_before_ms // MINUTE_MS * MINUTE_MS)
    return (_M.c.minute_ms >= of.from_ms, _M.c.minute_ms < until_ms)


def device_row(line: DeviceLine, terms: Terms) -> Row:
    idle = line.account == IDLE
    meter = f"device_{line.account}"
    seconds = scaled(line.device_ns, -9)
    row = row_of(
        Line(
            tenant=terms.operator,
            project=PLATFORM,
            issuer=None,
            user=None,
            key_id=None,
            model=line.model,
            service_class=None,
            meter=meter,
            entry=USAGE,
            price_id=f"{UNPRICED}/{line.model}",
            unit_price=0,
            tags=None,
            late=False,
            start_ms=line.start_ms,
            tokens=0,
            nano_usd=0,
            requests=0,
            device_ns=line.device_ns,
        ),
        terms,
    )
    return row | {
        "PricingQuantity": seconds,
        "PricingUnit": "Seconds",
        "ConsumedQuantity": seconds,
        "ConsumedUnit": "Seconds",
        "ChargeDescription": f"device time of {line.model}: {line.account.replace('_', ' ')}",
        "x_Entry": IDLE if idle else "overhead",
        "x_PriceVersion": None,
    }


class Allocation:
    """Of one span.  `totals`: all device time in its rows, by model; what has none is allocated nowhere."""

    def __init__(self, totals: Mapping[str, int], rules: Mapping[str, str]) -> None:
        self._totals = totals
        self._rules = rules
        self._so_far: Counter[str] = Counter()

    def columns(
        self, model: str | None, device_ns: int, to: Sequence[str | None], tags: Value = None
    ) -> Row:
        """Of the next row.  `to`, `tags`: who it is of."""
        total = self._totals.get(model or "", 0)
        if model is None or model not in self._rules or not device_ns or total <= 0:
            return dict.fromkeys(ALLOCATED)
        before = self._so_far[model]
        self._so_far[model] += device_ns
        parts = self._so_far[model] * _PARTS // total - before * _PARTS // total
        ratio = plain(EXACT.divide(Decimal(parts), Decimal(_PARTS)))
        details = (
            f'{{"Elements":[{{"AllocatedRatio":{ratio},"UsageUnit":"Nanoseconds",'
            f'"UsageQuantity":{device_ns}}}]}}'
        )
        return {
            "AllocatedMethodId": self._rules[model],
            "AllocatedMethodDetails": details,
            "AllocatedResourceId": json.dumps(list(to), ensure_ascii=False),
            "AllocatedTags": tags,
        }


ALLOCATED: Final = (
    *("AllocatedMethodId", "AllocatedMethodDetails"),
    *("AllocatedResourceId", "AllocatedTags"),
)
