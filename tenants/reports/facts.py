"""The rows that every report is a cut of: usage lines with what their request is charged to, and
whatever else moved money in or out of `spend`.

Refuses to know: how they are grouped (cuts).  Source: MONEY.md §1, invariants 9 and 11.

A fact counts at its effective time: when its request was admitted, or, where that month was closed
already, when it was written.  An entry of the ledger that no request wrote (a credit, a refund) is a
fact by itself, on a meter called after its kind, without tokens; so whatever entries the ledger may come
to know, every cut still sums to it.  What moves with a request is in `REQUEST_KINDS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    FromClause,
    Subquery,
    and_,
    case,
    func,
    literal,
    literal_column,
    or_,
    select,
    union_all,
)

from policies.periods import DAY_MS, months
from policies.tags import NAME_CHARS_MAX
from tenants import schema
from tenants.postings import SPEND

_R, _E, _L = schema.reservation, schema.usage_event, schema.ledger_entry
_T = schema.reservation_tag

REQUEST_KINDS = ("settle", "expire", "correct", "overrun")
"""Transfers to and from `spend` that usage lines stand beside."""
ADJUSTMENT = "adjustment"
"""What a fact's `entry` is where it is no usage line."""
HOUR_MS = 3_600_000
MONTHS_MOST = 1200

PLAIN: Mapping[str, tuple[str, ...]] = {
    "tenant": ("tenant",),
    "project": ("project",),
    "user": ("issuer", "user"),  # equal names of two issuers are two people
    "key": ("key_id",),
    "model": ("model",),
    "class": ("service_class",),
    "meter": ("meter",),
    "price": ("price_id",),
    "request": ("request_id",),
}
"""Dimensions that are columns of a fact."""
SPANS: Mapping[str, int | None] = {"minute": 60_000, "hour": HOUR_MS, "day": DAY_MS, "month": None}
"""Dimensions of time, in UTC, by their length; a month has no fixed one."""
COLUMNS = (*PLAIN, *SPANS)
"""What a report can be grouped by, besides tags."""
TAG = "tag:"
"""Before a tag's name, where one is grouped by or narrowed to: `tag:team`."""
TAGS_BY_MOST, TAGS_MOST = 2, 8
"""In one question: to group by, and in all.  A page goes on by the values of its last group, which clients
may have made long."""
FILTERS: Mapping[str, str] = {
    "project": "project",
    "user": "user",
    "issuer": "issuer",
    "key": "key_id",
    "model": "model",
    "class": "service_class",
    "meter": "meter",
    "price": "price_id",
    "request": "request_id",
}
"""What a report can be narrowed to, besides tags; None: those without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Which facts: of [from_ms, to_ms), of one tenant or all.  `posted_before_ms` leaves out what was
    written since, so that one question has one answer while requests go on."""

    from_ms: int
    to_ms: int
    tenant: str | None = None
    where: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    posted_before_ms: int | None = None


def is_tag(name: str) -> bool:
    return len(TAG) < len(name) <= len(TAG) + NAME_CHARS_MAX and name.startswith(TAG)


def facts(of: Slice, by: Sequence[str] = ()) -> Subquery:
    """With a column for each tag that `by` and `of` name: its value, or none."""
    lines = (
        select(
            *(_R.c[name] for name in ("tenant", "project", "issuer", "user", "key_id", "model")),
            _R.c.service_class,
            *(_E.c[name] for name in ("request_id", "meter", "entry", "tokens", "price_id")),
            *(_E.c[name] for name in ("unit_price", "nano_usd", "effective_ms", "at_ms")),
            _E.c.attempt,
            _R.c.at_ms.label("admitted_ms"),
            _R.c.tags,
        )
        .join_from(_E, _R, _R.c.request_id == _E.c.request_id)
        .where(*_within(of, _E.c.effective_ms, _E.c.at_ms, _R.c.tenant))
    )
    none = literal(0, BigInteger)
    others = (
        select(
            _L.c.tenant,
            *(_R.c[name] for name in ("project", "issuer", "user", "key_id", "model")),
            _R.c.service_class,
            _L.c.request_id,
            _L.c.kind,
            literal(ADJUSTMENT),
            none,
            _R.c.price_id,
            none,
            signed(),
            _L.c.effective_ms,
            _L.c.at_ms,
            none,
            _R.c.at_ms,
            _R.c.tags,
        )
        .join_from(_L, _R, _R.c.request_id == _L.c.request_id, isouter=True)
        .where(
            *_within(of, _L.c.effective_ms, _L.c.at_ms, _L.c.tenant),
            _L.c.kind.not_in(REQUEST_KINDS),
            or_(_L.c.credit == SPEND, _L.c.debit == SPEND),
        )
    )
    every = union_all(lines, others).subquery("every")
    narrowed = select(every)
    columns: dict[str, ColumnElement[Any]] = {
        name: every.c[column] for name, column in FILTERS.items()
    }
    source: FromClause = every
    for name, label in _labels((*by, *of.where)).items():
        tagged = _T.alias(f"of_{label}")
        mine = and_(
            tagged.c.request_id == every.c.request_id, tagged.c.name == name.removeprefix(TAG)
        )
        source = source.outerjoin(tagged, mine)
        columns[name] = tagged.c.value
        narrowed = narrowed.add_columns(tagged.c.value.label(label))
    narrowed = narrowed.select_from(source)
    for name, values in of.where.items():
        column = columns[name]
        given = [value for value in values if value is not None]
        kept = column.in_(given)
        narrowed = narrowed.where(or_(kept, column.is_(None)) if None in values else kept)
    return narrowed.subquery("fact")


def _labels(names: Sequence[str]) -> dict[str, str]:
    """Of the tags among these, in their order: what a client calls one is no name for a column."""
    tags = dict.fromkeys(name for name in names if is_tag(name))
    return {name: f"tag_{place}" for place, name in enumerate(tags)}


def _within(
    of: Slice,
    effective: ColumnElement[int],
    posted: ColumnElement[int],
    tenant: ColumnElement[str],
) -> Iterator[ColumnElement[bool]]:
    yield effective >= of.from_ms
    yield effective < of.to_ms
    if of.posted_before_ms is not None:
        yield posted < of.posted_before_ms
    if of.tenant is not None:
        yield tenant == of.tenant


def signed() -> ColumnElement[int]:
    """What an entry adds to `spend`."""
    into = case((_L.c.credit == SPEND, _L.c.amount), else_=0)
    return into - case((_L.c.debit == SPEND, _L.c.amount), else_=0)


def keys_of(conn: Connection, fact: Subquery, by: tuple[str, ...]) -> dict[str, ColumnElement[Any]]:
    """The expressions that `by` groups by, named.  A time is its span's first millisecond.
    ValueError for a name that is neither in `COLUMNS` nor a tag."""
    if unknown := [name for name in by if name not in COLUMNS and not is_tag(name)]:
        raise ValueError(
            f"cannot group by {', '.join(unknown)}; choose from {', '.join(COLUMNS)}, {TAG}NAME"
        )
    labels = _labels(by)
    found: dict[str, ColumnElement[Any]] = {}
    for name in by:
        if name in labels:
            found[name] = fact.c[labels[name]]
        elif name in PLAIN:
            found |= {column: fact.c[column] for column in PLAIN[name]}
        elif (span := SPANS[name]) is not None:
            found[name] = fact.c.effective_ms // _number(span) * _number(span)
        else:
            found[name] = _month(conn, fact)
    return found


def _month(conn: Connection, fact: Subquery) -> ColumnElement[int]:
    """No two databases share a function for it, so the bounds are written out."""
    first, last = conn.execute(
        select(func.min(fact.c.effective_ms), func.max(fact.c.effective_ms))
    ).one()
    starts = [each.start_ms for each in months(first, last + 1)] if first is not None else []
    if len(starts) > MONTHS_MOST:
        raise ValueError(f"more than {MONTHS_MOST} months; narrow the time")
    if len(starts) < 2:  # a bare number in GROUP BY would be a column's place
        return fact.c.effective_ms * _number(0) + _number(starts[0] if starts else 0)
    cases = [(fact.c.effective_ms >= _number(start), _number(start)) for start in starts[:0:-1]]
    return case(*cases, else_=_number(starts[0]))


def _number(value: int) -> ColumnElement[int]:
    """Written out: what is grouped by must read the same where it is selected, on every database."""
    return literal_column(str(value), BigInteger)


def knows(conn: Connection, tenant: str) -> bool:
    """Whether anything of it stands in the book, though it may be configured no more."""
    places = (select(literal(1)).where(table.c.tenant == tenant).limit(1) for table in (_R, _L))
    return any(conn.execute(query).first() is not None for query in places)


def spend(
    conn: Connection,
    *,
    from_ms: int,
    to_ms: int,
    tenant: str | None,
    posted_before_ms: int | None = None,
) -> int:
    """The balance of the `spend` accounts."""
    of = Slice(from_ms=from_ms, to_ms=to_ms, tenant=tenant, posted_before_ms=posted_before_ms)
    query = select(func.coalesce(func.sum(signed()), 0)).where(
        *_within(of, _L.c.effective_ms, _L.c.at_ms, _L.c.tenant)
    )
    return int(conn.execute(query).scalar_one())
