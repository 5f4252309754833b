"""Months that were closed, and the gate before them."""

from __future__ import annotations

from sqlalchemy import Column, Connection, Integer, Table, event, insert

from tenants.schema.columns import metadata, text, text_or_none, whole, whole_or_none

period = Table(
    "period",
    metadata,
    text("name", primary_key=True),
    whole("start_ms"),
    whole("end_ms"),
    whole("shut_at_ms"),
    whole_or_none("closed_at_ms"),
    text_or_none("sha256"),
    whole_or_none("entries"),
    whole_or_none("lines"),
    whole_or_none("spend_nano_usd"),
    text("actor"),
    text("reason"),
)

period_gate = Table(
    "period_gate",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    whole("closed_until_ms"),
)


def _hang(table: Table, conn: Connection, **_: object) -> None:
    """The one row, there from the beginning, so that who asks and who shuts lock the same."""
    conn.execute(insert(table).values(id=1, closed_until_ms=0))


event.listen(period_gate, "after_create", _hang)
