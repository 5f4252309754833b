"""Closing a month: its rows in one order, and their hash.

Refuses to know: which month may be closed (policies.periods), who closes it.  Source: MONEY.md §1,
invariant 11; §2 (open → closing → closed, hashed).

Closing shuts first and counts afterwards.  The gate is one row with one instant; whoever writes an entry
old enough to lie behind it reads that row locked, in the transaction that writes.  So when the gate has
moved, nothing can enter what is behind it any more, and its rows are read and hashed a page at a time
while everything else goes on.  Interrupted between the two, a month is shut and not sealed; closing it
again counts it again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Table,
    func,
    insert,
    select,
    tuple_,
    update,
)

from policies.periods import Month
from tenants import schema
from tenants.periods import closed_until
from tenants.postings import SPEND

PAGE = 5000
"""Rows read at once."""
FORM = "lockgate-period-2"
"""How a month is written for the hash: this, its name, and one JSON array a line, entries before usage lines."""

_P, _G = schema.period, schema.period_gate
_L, _E = schema.ledger_entry, schema.usage_event

_ENTRY = (
    *(_L.c.effective_ms, _L.c.transfer_id, _L.c.request_id, _L.c.tenant, _L.c.kind),
    *(_L.c.debit, _L.c.credit, _L.c.amount, _L.c.at_ms),
)
_LINE = (
    *(_E.c.effective_ms, _E.c.request_id, _E.c.attempt, _E.c.meter, _E.c.entry),
    *(_E.c.tokens, _E.c.price_id, _E.c.unit_price, _E.c.nano_usd, _E.c.at_ms),
)
# What is hashed, and how many of its first columns are its order.
_PARTS: tuple[tuple[Table, tuple[Column[Any], ...], int], ...] = ((_L, _ENTRY, 2), (_E, _LINE, 5))


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """A month that was shut.  `sha256` and what follows are None until it is sealed."""

    name: str
    start_ms: int
    end_ms: int
    shut_at_ms: int
    closed_at_ms: int | None
    sha256: str | None
    entries: int | None
    lines: int | None
    spend_nano_usd: int | None
    actor: str
    reason: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a reading goes on: which part, and after which row."""

    part: int = 0
    after: tuple[Any, ...] | None = None


Page = tuple[int, Sequence[Sequence[Any]], Place | None]
"""The part, its next rows, and where to go on."""


@dataclass(slots=True)
class Seal:
    """The hash of the month of this name, taken page by page."""

    name: str
    entries: int = 0
    lines: int = 0
    spend_nano_usd: int = 0
    _hash: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._hash = hashlib.sha256(f"{FORM}\n{self.name}\n".encode())

    def take(self, part: int, rows: Sequence[Sequence[Any]]) -> None:
        for row in rows:
            self._hash.update(msgspec.json.encode(["EU"[part], *row]) + b"\n")
            if part == 0:
                debit, credit, amount = row[5:8]
                self.spend_nano_usd += ((credit == SPEND) - (debit == SPEND)) * int(amount)
        if part == 0:
            self.entries += len(rows)
        else:
            self.lines += len(rows)

    @property
    def sha256(self) -> str:
        return str(self._hash.hexdigest())


def oldest_open_ms(conn: Connection) -> int | None:
    """Where the next month to be closed begins: at the gate, so that no month behind it is without its own
    hash; where none was closed yet, at the first instant at which anything stands."""
    if until_ms := closed_until(conn):
        return until_ms
    firsts = (
        conn.execute(select(func.min(table.c.effective_ms))).scalar_one() for table in (_L, _E)
    )
    return min((first for first in firsts if first is not None), default=None)


def shut(conn: Connection, period: Month, *, now_ms: int, actor: str, reason: str) -> None:
    """From here on nothing enters `period`, nor any month before it."""
    closed_until(conn, read=False)
    conn.execute(update(_G).values(closed_until_ms=period.end_ms))
    conn.execute(
        insert(_P).values(
            name=period.name,
            start_ms=period.start_ms,
            end_ms=period.end_ms,
            shut_at_ms=now_ms,
            actor=actor,
            reason=reason,
        )
    )


def read_page(conn: Connection, period: Month, place: Place) -> Page:
    """The part, its next rows and where to go on; None: that was all."""
    table, columns, keys = _PARTS[place.part]
    order = [_bytewise(conn, column) for column in columns[:keys]]
    query = select(*columns).where(
        table.c.effective_ms >= period.start_ms, table.c.effective_ms < period.end_ms
    )
    if place.after is not None:
        query = query.where(tuple_(*order) > tuple_(*place.after))
    rows = conn.execute(query.order_by(*order).limit(PAGE)).all()
    if len(rows) == PAGE:
        return place.part, rows, Place(place.part, tuple(rows[-1][:keys]))
    onwards = Place(place.part + 1) if place.part + 1 < len(_PARTS) else None
    return place.part, rows, onwards


def seal(conn: Connection, period: Month, found: Seal, *, now_ms: int) -> bool:
    """Keep the hash of a month that is shut.  False where it was sealed before."""
    changed = conn.execute(
        update(_P)
        .where(_P.c.name == period.name, _P.c.sha256.is_(None))
        .values(
            closed_at_ms=now_ms,
            sha256=found.sha256,
            entries=found.entries,
            lines=found.lines,
            spend_nano_usd=found.spend_nano_usd,
        )
    )
    return changed.rowcount == 1


def listed(conn: Connection) -> tuple[Closed, ...]:
    names = tuple(Closed.__dataclass_fields__)
    query = select(*(_P.c[name] for name in names)).order_by(_P.c.start_ms)
    return tuple(Closed(**row) for row in conn.execute(query).mappings())


def find(conn: Connection, name: str) -> Closed | None:
    return next((each for each in listed(conn) if each.name == name), None)


def _bytewise(conn: Connection, column: Column[Any]) -> ColumnElement[Any]:
    """One order on every database: that of the bytes, which is SQLite's own."""
    if conn.dialect.name == "postgresql" and column.type.python_type is str:
        return column.collate("C")
    return column
