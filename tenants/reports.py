"""What was used and what it cost, read from the book.  Every cut sums to the ledger.

Refuses to know: who may see it (access), how it is printed.  Source: MONEY.md §1, invariant 9.
A request belongs to the time at which it was admitted, whenever it was settled (invariant 15).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, case, func, select

from policies.price import Charge, Meter
from tenants import ledger, schema, usage
from tenants.postings import SPEND
from tenants.scopes import Dimensions
from tenants.usage import UsageRecord

_R, _E, _L, _Q = schema.reservation, schema.usage_event, schema.ledger_entry, schema.request

COLUMNS = {
    "tenant": (_R.c.tenant,),
    "project": (_R.c.project,),
    "user": (_R.c.issuer, _R.c.user),  # equal names of two issuers are two people
    "key": (_R.c.key_id,),
    "model": (_R.c.model,),
}
"""What a report can be grouped by."""


@dataclass(frozen=True, slots=True)
class UsageRow:
    """`group` holds the values of the columns asked for, by name (`user` brings `issuer` along).
    `requests` counts those that were billed, also with nothing; `estimated` how many of them are
    still billed as reserved.  `device_ns` is the operator's to see."""

    group: dict[str, str | None]
    requests: int
    estimated: int
    input_tokens: int
    cached_input_tokens: int
    cache_write_tokens: int
    output_tokens: int
    nano_usd: int
    device_ns: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """One request.  `record` is None while it runs, or where it ended without its own word;
    `state` is None where nothing was ever held (it was refused)."""

    request_id: str
    dims: Dimensions
    record: UsageRecord | None
    state: str | None
    reserved_nano_usd: int
    charge: Charge | None
    estimated: bool


def _tokens(meter: Meter) -> ColumnElement[int]:
    return func.coalesce(func.sum(case((_E.c.meter == meter.value, _E.c.tokens), else_=0)), 0)


def usage_rows(
    conn: Connection, by: Sequence[str], *, from_ms: int, to_ms: int, tenant: str | None
) -> tuple[UsageRow, ...]:
    """ValueError for a name that is not in `COLUMNS`."""
    if unknown := [name for name in by if name not in COLUMNS]:
        raise ValueError(f"cannot group by {', '.join(unknown)}; choose from {', '.join(COLUMNS)}")
    columns = [column for name in by for column in COLUMNS[name]]
    counted = [
        _R.c.at_ms >= from_ms,
        _R.c.at_ms < to_ms,
        _R.c.state.in_([ledger.SETTLED, ledger.EXPIRED]),
    ]
    if tenant is not None:
        counted.append(_R.c.tenant == tenant)
    events = (
        select(
            _E.c.request_id,
            *(_tokens(meter).label(meter.value) for meter in Meter),
            func.sum(_E.c.nano_usd).label("nano_usd"),
        )
        .join(_R, _R.c.request_id == _E.c.request_id)
        .where(*counted)
        .group_by(_E.c.request_id)
        .subquery()
    )
    sums = [events.c[meter.value] for meter in Meter]
    sums += [events.c.nano_usd, _Q.c.device_ns]
    query = (
        select(
            *columns,
            func.count().label("requests"),
            func.sum(case((_R.c.estimated, 1), else_=0)).label("estimated"),
            *(func.coalesce(func.sum(column), 0).label(f"sum_{column.name}") for column in sums),
        )
        .select_from(_R)
        .outerjoin(events, events.c.request_id == _R.c.request_id)
        .outerjoin(_Q, _Q.c.request_id == _R.c.request_id)
        .where(*counted)
        .group_by(*columns)
        .order_by(*columns)
    )
    return tuple(
        UsageRow(
            {column.name: row[column.name] for column in columns},
            row["requests"],
            row["estimated"],
            *(int(row[f"sum_{column.name}"]) for column in sums),
        )
        for row in conn.execute(query).mappings()
        if row["requests"]
    )


def spend(conn: Connection, *, from_ms: int, to_ms: int, tenant: str | None) -> int:
    """The balance of the `spend` accounts."""
    signed = case((_L.c.credit == SPEND, _L.c.amount), else_=0) - case(
        (_L.c.debit == SPEND, _L.c.amount), else_=0
    )
    query = select(func.coalesce(func.sum(signed), 0)).where(
        _L.c.effective_ms >= from_ms, _L.c.effective_ms < to_ms
    )
    if tenant is not None:
        query = query.where(_L.c.tenant == tenant)
    return int(conn.execute(query).scalar_one())


def explain(conn: Connection, request_id: str) -> Explanation | None:
    record = usage.read(conn, request_id)
    row = ledger.find(conn, request_id)
    if row is None:
        if record is None:
            return None
        return Explanation(request_id, record.dims, record, None, 0, None, estimated=False)
    return Explanation(
        request_id,
        usage.dims_of(row),
        record,
        row["state"],
        row["amount"],
        ledger.charge_now(conn, row),
        row["estimated"],
    )
