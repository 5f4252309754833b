"""Transfers and usage lines: the two kinds of rows that are only ever appended.

Refuses to know: when something is posted, and how much (ledger).  Source: MONEY.md §1, invariants 4
and 7.  A transfer has one amount, one debit and one credit, so the sides are equal by construction;
transfers are unique by request and kind, lines by request, attempt, meter and entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, select

from policies.periods import effective_for
from policies.price import Charge, Line, Meter
from tenants import schema
from tenants.sql import insert_many, within

AVAILABLE, SPEND, GRANTED = "available", "spend", "granted"
"""A tenant's accounts.  What is held is not among them: that is its reservations.  What an operator
grants on top of a budget comes from `granted`, and is spent or not."""

USAGE, ESTIMATE, REVERSAL = "usage", "estimate", "reversal"
"""What a line is: measured, assumed when a hold expired, or the assumption taken back."""

_E = schema.usage_event
_POST = insert_many(schema.ledger_entry)
_LINES = insert_many(_E)
_LINES_OF = select(_E).where(
    within(_E.c.request_id, "ids"),
    _E.c.entry.in_([USAGE, ESTIMATE]),
    _E.c.tokens > 0,  # what used nothing has a line, and is charged none
)
_BILLED_AS = {"SETTLED": USAGE, "EXPIRED": ESTIMATE}


class Postings:
    """What a turn appends, gathered until it is written."""

    def __init__(self, now_ms: int, closed_until_ms: int = 0) -> None:
        self._now_ms = now_ms
        self._closed_until_ms = closed_until_ms
        self._transfers: list[dict[str, Any]] = []
        self._lines: list[dict[str, Any]] = []

    def transfer(
        self,
        row: Mapping[Any, Any],
        kind: str,
        debit: str,
        credit: str,
        amount: int,
        *,
        transfer_id: str | None = None,
    ) -> None:
        """Unique by request and kind, or by an id of its own (which has no slash), so that none can be
        posted twice.  Nothing moves nothing."""
        if amount <= 0:
            return
        self._transfers.append(
            {
                "transfer_id": transfer_id or f"{row['request_id']}/{kind}",
                "request_id": row["request_id"],
                "tenant": row["tenant"],
                "kind": kind,
                "debit": debit,
                "credit": credit,
                "amount": amount,
                "at_ms": self._now_ms,
                "effective_ms": self._effective_ms(row),
            }
        )

    def lines(self, row: Mapping[Any, Any], entry: str, of: Iterable[Line]) -> None:
        self._lines += [
            {
                "request_id": row["request_id"],
                "attempt": 0,
                "meter": line.meter.value,
                "entry": entry,
                "tokens": line.tokens,
                "price_id": row["price_id"],
                "unit_price": line.unit_price,
                "nano_usd": line.nano_usd,
                "at_ms": self._now_ms,
                "effective_ms": self._effective_ms(row),
            }
            for line in of
        ]

    def _effective_ms(self, row: Mapping[Any, Any]) -> int:
        """When it counts: as its request was admitted, or now where that month is closed."""
        return effective_for(self._closed_until_ms, row["at_ms"], self._now_ms)

    def write(self, conn: Connection) -> None:
        if self._transfers:
            _POST.run(conn, self._transfers)
        if self._lines:
            _LINES.run(conn, self._lines)


def charges(conn: Connection, rows: Iterable[Mapping[Any, Any]]) -> dict[str, Charge]:
    """What stands against each of these reservations that was billed: measured, or estimated still."""
    billed = {row["request_id"]: row for row in rows if row["state"] in _BILLED_AS}
    if not billed:
        return {}
    lines: dict[str, dict[str, Line]] = {request_id: {} for request_id in billed}
    for each in conn.execute(_LINES_OF, {"ids": sorted(billed)}):
        if each.entry == _BILLED_AS[billed[each.request_id]["state"]]:
            lines[each.request_id][each.meter] = Line(
                Meter(each.meter), each.tokens, each.unit_price, each.nano_usd
            )
    return {
        request_id: _charge(billed[request_id]["price_id"], by_meter)
        for request_id, by_meter in lines.items()
    }


def _charge(price_id: str, by_meter: Mapping[str, Line]) -> Charge:
    lines = tuple(by_meter[meter.value] for meter in Meter if meter.value in by_meter)
    return Charge(price_id, lines, sum(line.nano_usd for line in lines))
