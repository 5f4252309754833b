"""Whether the book agrees with itself: every request is somewhere, every line is tokens × price, every
charge is what its lines come to, and the ledger holds what they all come to; device time likewise
(`device_sums`).

Refuses to know: who asks, invoices of others (they are compared by whoever has them).  Source: MONEY.md
§2 ("Reconciliation"), §1, invariants 4, 6 and 9.

Each line is computed anew from its price, in other arithmetic than the one that charged it (decimals
here, whole numbers there).  Read in pages, in the order of time; what disagrees is named, up to a bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, ROUND_HALF_UP, Context, Decimal
from typing import Any

from sqlalchemy import BigInteger, Connection, case, func, literal_column, select, tuple_

from policies.periods import DAY_MS
from tenants import schema
from tenants.device_sums import Devices
from tenants.ledger import EXPIRED, HELD, SETTLED, VOIDED
from tenants.postings import ESTIMATE, REVERSAL, USAGE
from tenants.reports.facts import REQUEST_KINDS, Slice, signed, spend

PAGE = 2000
NAMED_MOST = 20
"""Disagreements that are named; all are counted."""
_EXACT = Context(prec=80)
_R, _E, _L, _P = schema.reservation, schema.usage_event, schema.ledger_entry, schema.price

Place = tuple[int, str, int, str, str]


@dataclass(slots=True)
class Findings:
    """What was counted, and what does not agree."""

    lines: int = 0
    line_faults: int = 0
    line_nano_usd: int = 0
    request_faults: int = 0
    named: list[str] = field(default_factory=list)

    def copy(self) -> Findings:
        return replace(self, named=list(self.named))

    def fault(self, words: str) -> None:
        if len(self.named) < NAMED_MOST:
            self.named.append(words)


@dataclass(frozen=True, slots=True)
class Count:
    """Requests admitted in a time, by what became of them.  `nameless`: of a state that nobody knows."""

    admitted: int
    settled: int
    voided: int
    expired: int
    open: int

    @property
    def nameless(self) -> int:
        return self.admitted - self.settled - self.voided - self.expired - self.open


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """`by_hand_nano_usd` is the part of the ledger that no request wrote (credits, refunds)."""

    count: Count
    found: Findings
    ledger_nano_usd: int
    by_hand_nano_usd: int
    device: Devices

    @property
    def requests_agree(self) -> bool:
        return self.count.nameless == 0 and self.found.request_faults == 0

    @property
    def ledger_agrees(self) -> bool:
        priced = self.found.line_faults == 0
        return priced and self.ledger_nano_usd == self.found.line_nano_usd + self.by_hand_nano_usd


def days(conn: Connection, of: Slice) -> tuple[Slice, ...]:
    """Those of `of` on which anything stands, in order."""
    found: set[int] = set()
    length = literal_column(str(DAY_MS), BigInteger)
    for time in (_R.c.at_ms, _E.c.effective_ms, _L.c.effective_ms):
        day = (time // length).label("day")
        query = select(day).where(time >= of.from_ms, time < of.to_ms).distinct()
        found.update(conn.execute(query).scalars())
    return tuple(
        replace(of, from_ms=max(of.from_ms, day * DAY_MS), to_ms=min(of.to_ms, (day + 1) * DAY_MS))
        for day in sorted(found)
    )


def counted(conn: Connection, of: Slice) -> Count:
    found = conn.execute(
        select(
            func.count(),
            *(
                func.coalesce(func.sum(case((_R.c.state == state, 1), else_=0)), 0)
                for state in (SETTLED, VOIDED, EXPIRED, HELD)
            ),
        ).where(_R.c.at_ms >= of.from_ms, _R.c.at_ms < of.to_ms)
    ).one()
    return Count(*(int(number) for number in found))


def check_lines(conn: Connection, of: Slice, after: Place | None, found: Findings) -> Place | None:
    """The next page of lines against their prices; where to go on, None: that was all."""
    order = (_E.c.effective_ms, _E.c.request_id, _E.c.attempt, _E.c.meter, _E.c.entry)
    query = (
        select(*order, _E.c.tokens, _E.c.unit_price, _E.c.nano_usd, _E.c.price_id, *_prices())
        .join_from(_E, _P, _P.c.id == _E.c.price_id, isouter=True)
        .where(_E.c.effective_ms >= of.from_ms, _E.c.effective_ms < of.to_ms)
        .order_by(*order)
        .limit(PAGE)
    )
    if after is not None:
        query = query.where(tuple_(*order) > tuple_(*after))
    rows = conn.execute(query).all()
    for row in rows:
        found.lines += 1
        found.line_nano_usd += row.nano_usd
        if (why := _wrong(row)) is not None:
            found.line_faults += 1
            found.fault(f"{row.request_id}, {row.entry} of {row.meter}: {why}")
    return tuple(rows[-1][:5]) if len(rows) == PAGE else None


def _prices() -> Sequence[Any]:
    names = ("input", "cached_input", "cache_write", "output")
    return [_P.c[name].label(f"price_{name}") for name in names]


def _wrong(row: Any) -> str | None:
    listed = {name: getattr(row, f"price_{name}") for name in ("input", "cached_input")}
    listed |= {name: getattr(row, f"price_{name}") for name in ("cache_write", "output")}
    if listed["output"] is None:
        return f"there is no price {row.price_id}"
    if row.meter not in listed:
        return "there is no such meter"
    exact = _EXACT.divide(Decimal(row.tokens * row.unit_price), Decimal(10**6))
    if row.entry == USAGE:
        if row.unit_price != listed[row.meter]:
            return f"priced at {row.unit_price}, listed at {listed[row.meter]}"
        if row.tokens < 0:
            return f"{row.tokens} tokens"
        right = {int(exact.quantize(Decimal(1), ROUND_HALF_UP, _EXACT))}
    else:  # an assumption is rounded up, and by one more where a prompt may fall into several lines
        up = int(abs(exact).quantize(Decimal(1), ROUND_CEILING, _EXACT))
        right = {up, up + 1} if row.entry == ESTIMATE else {-up, -up - 1}
        if row.unit_price not in listed.values() or row.entry not in {ESTIMATE, REVERSAL}:
            return "it is at no listed price"
    if row.nano_usd not in right:
        return f"{row.tokens} at {row.unit_price} a million is not {row.nano_usd} nano-USD"
    return None


def check_requests(conn: Connection, of: Slice, found: Findings) -> None:
    """Requests whose lines, ledger entries and charge are not one amount.  One query for a span."""
    lines = (
        select(_E.c.request_id, func.sum(_E.c.nano_usd).label("nano_usd"))
        .where(_E.c.effective_ms >= of.from_ms, _E.c.effective_ms < of.to_ms)
        .group_by(_E.c.request_id)
        .subquery("lines")
    )
    entries = (
        select(_L.c.request_id, func.sum(signed()).label("nano_usd"))
        .where(
            _L.c.effective_ms >= of.from_ms,
            _L.c.effective_ms < of.to_ms,
            _L.c.kind.in_(REQUEST_KINDS),
        )
        .group_by(_L.c.request_id)
        .subquery("entries")
    )
    charged = (
        select(_R.c.request_id, _R.c.charge, func.coalesce(func.sum(_E.c.nano_usd), 0).label("sum"))
        .join_from(_R, _E, _E.c.request_id == _R.c.request_id, isouter=True)
        .where(_R.c.at_ms >= of.from_ms, _R.c.at_ms < of.to_ms)
        .group_by(_R.c.request_id, _R.c.charge)
        .having(_R.c.charge != func.coalesce(func.sum(_E.c.nano_usd), 0))
    )
    by_lines = (
        select(lines.c.request_id, lines.c.nano_usd, func.coalesce(entries.c.nano_usd, 0))
        .join_from(lines, entries, entries.c.request_id == lines.c.request_id, isouter=True)
        .where(lines.c.nano_usd != func.coalesce(entries.c.nano_usd, 0))
    )
    alone = (
        select(entries.c.request_id, entries.c.nano_usd)
        .join_from(entries, lines, lines.c.request_id == entries.c.request_id, isouter=True)
        .where(lines.c.request_id.is_(None), entries.c.nano_usd != 0)
    )
    for query, words in (
        (charged, "{0}: charged {1}, its lines come to {2}"),
        (by_lines, "{0}: its lines come to {1}, its ledger entries to {2}"),
        (alone, "{0}: its ledger entries come to {1}, and it has no lines"),
    ):
        for row in conn.execute(query):
            found.request_faults += 1
            found.fault(words.format(*row))


def ledger_sum(conn: Connection, of: Slice) -> tuple[int, int]:
    """`spend` as the ledger has it, and the part of it that no request wrote."""
    whole = spend(conn, from_ms=of.from_ms, to_ms=of.to_ms, tenant=None)
    by_hand = conn.execute(
        select(func.coalesce(func.sum(signed()), 0)).where(
            _L.c.effective_ms >= of.from_ms,
            _L.c.effective_ms < of.to_ms,
            _L.c.kind.not_in(REQUEST_KINDS),
        )
    ).scalar_one()
    return whole, int(by_hand)
