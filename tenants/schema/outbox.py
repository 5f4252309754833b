"""What is to be told to the outside, written with what it tells of."""

from __future__ import annotations

from sqlalchemy import Column, Index, Integer, Table
from sqlalchemy import text as sql

from tenants.schema.columns import metadata, text, text_or_none, whole, whole_or_none

_DUE = sql("done_at_ms IS NULL")

outbox = Table(
    "outbox",
    metadata,
    text("id", primary_key=True),
    text("kind"),
    text("scope"),
    text("account"),
    text("window_id"),
    Column("threshold", Integer, nullable=False),
    text("payload"),
    whole("at_ms"),
    Column("attempts", Integer, nullable=False),
    whole("next_at_ms"),
    whole_or_none("done_at_ms"),
    text_or_none("outcome"),
    Index("outbox_due", "next_at_ms", sqlite_where=_DUE, postgresql_where=_DUE),
    Index("outbox_done", "done_at_ms"),
)
