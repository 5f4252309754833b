"""Transfers and usage lines: the two kinds of rows that are only ever appended.

Refuses to know: when something is posted, and how much (ledger).  Source: MONEY.md §1, invariants 4
and 7.  A transfer has one amount, one debit and one credit, so the sides are equal by construction;
transfers are unique by request and kind, lines by request, attempt, meter and entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, insert, select

from policies.price import Charge, Line, Meter
from tenants import schema

AVAILABLE, ON_HOLD, SPEND = "available", "held", "spend"
"""A tenant's accounts."""

USAGE, ESTIMATE, REVERSAL = "usage", "estimate", "reversal"
"""What a line is: measured, assumed when a hold expired, or the assumption taken back."""

_E = schema.usage_event
_POST = insert(schema.ledger_entry)
_LINES = insert(_E)


def transfer(
    conn: Connection,
    row: Mapping[Any, Any],
    kind: str,
    debit: str,
    credit: str,
    amount: int,
    now_ms: int,
) -> None:
    """Unique by request and kind, so that none can be posted twice.  Nothing moves nothing."""
    if amount <= 0:
        return
    conn.execute(
        _POST,
        {
            "transfer_id": f"{row['request_id']}/{kind}",
            "request_id": row["request_id"],
            "tenant": row["tenant"],
            "kind": kind,
            "debit": debit,
            "credit": credit,
            "amount": amount,
            "at_ms": now_ms,
            "effective_ms": row["at_ms"],
        },
    )


def lines(
    conn: Connection, row: Mapping[Any, Any], entry: str, of: Iterable[Line], now_ms: int
) -> None:
    values = [
        {
            "request_id": row["request_id"],
            "attempt": 0,
            "meter": line.meter.value,
            "entry": entry,
            "tokens": line.tokens,
            "price_id": row["price_id"],
            "unit_price": line.unit_price,
            "nano_usd": line.nano_usd,
            "at_ms": now_ms,
        }
        for line in of
    ]
    if values:
        conn.execute(_LINES, values)


def charge_of(conn: Connection, row: Mapping[Any, Any], entry: str = USAGE) -> Charge:
    found = conn.execute(
        select(_E).where(_E.c.request_id == row["request_id"], _E.c.entry == entry)
    ).mappings()
    by_meter = {each["meter"]: each for each in found}
    lines = tuple(
        Line(meter, each["tokens"], each["unit_price"], each["nano_usd"])
        for meter in Meter
        if (each := by_meter.get(meter.value)) is not None
    )
    return Charge(row["price_id"], lines, sum(line.nano_usd for line in lines))
