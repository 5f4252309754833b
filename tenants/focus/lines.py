"""The book summed to what a FOCUS row needs: one line for each span of time, who, SKU, price and entry.

Refuses to know: columns.  Amounts that were assumed, taken back, corrected or given by hand stand in
lines of their own, so that none hides another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Subquery,
    and_,
    case,
    exists,
    func,
    literal_column,
    select,
    tuple_,
)

from policies.periods import DAY_MS
from policies.price import Meter
from tenants import schema
from tenants.postings import ESTIMATE, USAGE
from tenants.reports import paging
from tenants.reports.facts import HOUR_MS, Slice, facts

_Q = schema.request
_EARLIER = schema.usage_event.alias("earlier")
PAGE = 2000
GRAINS = {"hour": HOUR_MS, "day": DAY_MS}

Place = tuple[str | int | None, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """`late`: it corrects a month that was closed.  `requests` and `device_ns` are counted on one line of
    each request, so that their columns add up: on its first meter, where it was first charged and where it
    was measured.  `tags`: all that its requests are filed under, as reservations keep them."""

    tenant: str
    project: str | None
    issuer: str | None
    user: str | None
    key_id: str | None
    model: str | None
    service_class: str | None
    meter: str
    entry: str
    price_id: str | None
    unit_price: int
    tags: str | None
    late: bool
    start_ms: int
    tokens: int
    nano_usd: int
    requests: int
    device_ns: int


_KEYS = (
    *("tenant", "project", "issuer", "user", "key_id", "model", "service_class", "meter", "entry"),
    *("price_id", "unit_price", "tags"),
)


def next_span(conn: Connection, of: Slice, grain: str) -> Slice | None:
    """The first hour or day of `of` in which there is anything; None where there is none left."""
    fact = facts(of)
    first: int | None = conn.execute(select(func.min(fact.c.effective_ms))).scalar_one()
    if first is None:
        return None
    start_ms = first // GRAINS[grain] * GRAINS[grain]
    return replace(of, from_ms=start_ms, to_ms=start_ms + GRAINS[grain])


def page(
    conn: Connection, of: Slice, after: Place | None, *, since_ms: int
) -> tuple[list[Line], Place | None]:
    """The next lines of one span, and where to go on; None: these were the last.  `since_ms`: what was
    admitted before is a correction."""
    fact = facts(of)
    keys: dict[str, Any] = {name: fact.c[name] for name in _KEYS}
    earlier: ColumnElement[int] = literal_column(str(since_ms))
    keys["late"] = case(
        (fact.c.admitted_ms < earlier, literal_column("1", Integer)),
        else_=literal_column("0", Integer),
    )
    order = [part for key in keys.values() for part in paging.ordered(key)]
    counts = case((_is_first(fact, ESTIMATE, USAGE), 1), else_=0)
    device = case((_is_first(fact, USAGE), func.coalesce(_Q.c.device_ns, 0)), else_=0)
    query = (
        select(
            *(key.label(name) for name, key in keys.items()),
            func.sum(fact.c.tokens),
            func.sum(fact.c.nano_usd),
            func.sum(counts),
            func.sum(device),
        )
        .select_from(fact)
        .outerjoin(_Q, _Q.c.request_id == fact.c.request_id)
        .group_by(*keys.values())
        .order_by(*order)
        .limit(PAGE + 1)
    )
    if after is not None:
        query = query.where(tuple_(*order) > tuple_(*paging.place(keys, after)))
    found = conn.execute(query).all()
    lines = [
        Line(
            *row[:10],
            int(row[10]),
            row[11],
            bool(row[12]),
            of.from_ms,
            *(int(n) for n in row[13:]),
        )
        for row in found[:PAGE]
    ]
    return lines, tuple(found[PAGE - 1][: len(keys)]) if len(found) > PAGE else None


def device_by_model(conn: Connection, of: Slice) -> dict[str, int]:
    """What the lines of one span come to."""
    fact = facts(of)
    device = case((_is_first(fact, USAGE), func.coalesce(_Q.c.device_ns, 0)), else_=0)
    query = (
        select(fact.c.model, func.sum(device))
        .select_from(fact)
        .outerjoin(_Q, _Q.c.request_id == fact.c.request_id)
        .where(fact.c.model.is_not(None))
        .group_by(fact.c.model)
    )
    return {model: int(device_ns) for model, device_ns in conn.execute(query)}


def _is_first(fact: Subquery, *entries: str) -> ColumnElement[bool]:
    """The first line that its request has among these entries, in their order, wherever the others count."""
    earlier = tuple_(*_order(_EARLIER.c, entries)) < tuple_(*_order(fact.c, entries))
    return and_(
        fact.c.entry.in_(entries),
        ~exists().where(
            _EARLIER.c.request_id == fact.c.request_id, _EARLIER.c.entry.in_(entries), earlier
        ),
    )


def _order(columns: Any, entries: Sequence[str]) -> Iterator[ColumnElement[Any]]:
    yield _rank(columns.entry, entries)
    yield columns.attempt
    yield _rank(columns.meter, [meter.value for meter in Meter])
    yield columns.meter


def _rank(column: ColumnElement[str], values: Sequence[str]) -> ColumnElement[int]:
    return case(
        *((column == value, place) for place, value in enumerate(values)), else_=len(values)
    )
