"""Facts, grouped: any combination of dimensions, a page at a time.

Refuses to know: who asks, how rows are shown.  Source: MONEY.md §1, invariant 9; §2 ("Reports").

Everything is summed in two steps, by request within a group and then by group, so that a request counts
once however many lines it has.  A request counts where it was first charged; a line that corrects it
later counts as none.  By meter or price it counts in each that it has lines on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    Connection,
    and_,
    case,
    func,
    or_,
    select,
    tuple_,
)

from policies.price import Meter
from tenants import schema
from tenants.postings import ESTIMATE, REVERSAL, USAGE
from tenants.reports import paging
from tenants.reports.facts import ADJUSTMENT, SPANS, Slice, facts, keys_of

_Q = schema.request
ROWS_MOST = 10_000
"""In one page."""
_WITHOUT_DEVICE = frozenset({"meter", "price"})


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """`group` holds the values of the columns asked for, by name (`user` brings `issuer` along; times are
    their first millisecond).  `estimated` is how many requests are billed as reserved, and
    `estimated_nano_usd` the part of `nano_usd` that is; where the usage arrived after its month had been
    closed, they are taken back in the month in which it did.  `device_ns` is the operator's to see, and
    None by meter or price, which it has none of."""

    group: dict[str, str | int | None]
    requests: int
    estimated: int
    input_tokens: int
    cached_input_tokens: int
    cache_write_tokens: int
    output_tokens: int
    nano_usd: int
    estimated_nano_usd: int
    adjustment_nano_usd: int
    device_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One question.  `after`: the group of the last row that was read, as `Cut.next` told it."""

    by: tuple[str, ...]
    of: Slice
    after: tuple[str | int | None, ...] | None = None
    most: int = ROWS_MOST


@dataclass(frozen=True, slots=True)
class Cut:
    """`next`: where to go on; None: these were the last."""

    rows: tuple[UsageRow, ...]
    next: tuple[str | int | None, ...] | None


def cut(conn: Connection, asked: Asked) -> Cut:
    """ValueError for a dimension that there is none of, or an `after` of another question."""
    fact = facts(asked.of, asked.by)
    keys = keys_of(conn, fact, asked.by)
    order = [part for key in keys.values() for part in paging.ordered(key)]
    labels = [f"key_{place}" for place in range(len(keys))]  # a tag's name is a client's word
    counted = select(*(key.label(label) for key, label in zip(keys.values(), labels, strict=True)))
    if asked.after is not None:
        counted = counted.where(tuple_(*order) > tuple_(*paging.place(keys, asked.after)))
    of = fact.c
    is_line = {
        entry: case((of.entry == entry, 1), else_=0) for entry in (ESTIMATE, REVERSAL, USAGE)
    }
    estimate, reversal, usage = (func.max(flag) for flag in is_line.values())
    assumed = case((of.entry.in_((ESTIMATE, REVERSAL)), of.nano_usd), else_=0)
    other = case((of.entry == ADJUSTMENT, of.nano_usd), else_=0)
    by_request = (
        counted.add_columns(
            of.request_id.label("of_request"),
            case((or_(estimate == 1, and_(usage == 1, reversal == 0)), 1), else_=0).label("first"),
            (estimate - reversal).label("assumed"),
            case((or_(usage == 1, reversal == 1), 1), else_=0).label("told"),
            *(
                func.sum(case((of.meter == meter.value, of.tokens), else_=0)).label(meter.value)
                for meter in Meter
            ),
            func.sum(of.nano_usd).label("nano_usd"),
            func.sum(assumed).label("assumed_nano_usd"),
            func.sum(other).label("other_nano_usd"),
        )
        .group_by(*keys.values(), of.request_id)
        .subquery("by_request")
    )
    b = by_request.c
    names = [b[label] for label in labels]
    device = case((b.told == 1, func.coalesce(_Q.c.device_ns, 0)), else_=0)
    query = (
        select(
            *names,
            *(
                func.coalesce(func.sum(column), 0).label(f"n_{place}")
                for place, column in enumerate(
                    (
                        *(b.first, b.assumed, *(b[meter.value] for meter in Meter)),
                        *(b.nano_usd, b.assumed_nano_usd, b.other_nano_usd, device),
                    )
                )
            ),
            func.count().label("facts"),
        )
        .select_from(by_request)
        .outerjoin(_Q, _Q.c.request_id == b.of_request)
        .group_by(*names)
        .order_by(*(part for name in names for part in paging.ordered(name)))
        .limit(asked.most + 1)
    )
    with_device = not _WITHOUT_DEVICE & set(asked.by)
    rows = tuple(
        _row(row, len(keys), tuple(keys), with_device=with_device)
        for row in conn.execute(query)
        if row.facts
    )
    more = len(rows) > asked.most
    rows = rows[: asked.most]
    return Cut(rows, tuple(rows[-1].group.values()) if more else None)


def total(conn: Connection, of: Slice) -> UsageRow | None:
    """The sum over everything; None where there is nothing."""
    rows = cut(conn, Asked(by=(), of=of)).rows
    return rows[0] if rows else None


def usage_rows(
    conn: Connection, by: tuple[str, ...], *, from_ms: int, to_ms: int, tenant: str | None
) -> tuple[UsageRow, ...]:
    """One page.  ValueError for a name that is not in `COLUMNS`."""
    of = Slice(from_ms=from_ms, to_ms=to_ms, tenant=tenant)
    return cut(conn, Asked(by=tuple(by), of=of)).rows


def _row(row: Any, width: int, names: tuple[str, ...], *, with_device: bool) -> UsageRow:
    numbers = [int(value) for value in row[width:-1]]
    first, assumed, plain, cached, written, out, nano, assumed_nano, other, device = numbers
    return UsageRow(
        group={
            name: int(value) if name in SPANS else value
            for name, value in zip(names, row[:width], strict=True)
        },
        requests=first,
        estimated=assumed,
        input_tokens=plain,
        cached_input_tokens=cached,
        cache_write_tokens=written,
        output_tokens=out,
        nano_usd=nano,
        estimated_nano_usd=assumed_nano,
        adjustment_nano_usd=other,
        device_ns=device if with_device else None,
    )
