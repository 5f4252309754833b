"""Where the time of devices went: by start of an executor, and by minute.  Source: MONEY.md §1, invariant 8."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Index, Integer, Table

from tenants.schema.columns import metadata, text, whole, whole_or_none

TOLD = (
    *("load", "capture", "warm_up", "recompute"),
    *("wrong_guesses", "failed_steps", "empty_steps"),
)
"""Kinds of overhead as executors tell them."""
FOUND = ("faults", "lost")
"""Those that the book finds: work for requests that were priced zero because the fault was ours, and work
of which no request's record tells."""
OVERHEAD = TOLD + FOUND
ACCOUNTS = ("busy_ns", "idle_ns", *(f"{kind}_ns" for kind in OVERHEAD))
ADDS_UP = f"{' + '.join(ACCOUNTS)} = wall_ns * devices"

device_start = Table(
    "device_start",
    metadata,
    text("start", primary_key=True),
    text("model"),
    Column("devices", Integer, nullable=False),
    text("rule"),
    text("owner"),
    whole("began_ms"),
    whole("told_at_ms"),
    whole_or_none("ended_at_ms"),
    whole("told_wall_ns"),
    whole("told_attributed_ns"),
    whole("records"),
    whole("wall_ns"),
    *(whole(name) for name in ACCOUNTS),
    CheckConstraint(ADDS_UP, name="a_start_adds_up"),
    CheckConstraint(" AND ".join(f"{name} >= 0" for name in ACCOUNTS), name="no_negative_time"),
    Index("device_start_ended", "ended_at_ms"),
)

device_minute = Table(
    "device_minute",
    metadata,
    text("start", primary_key=True),
    whole("minute_ms", primary_key=True),
    text("model"),
    Column("devices", Integer, nullable=False),
    text("rule"),
    text("coefficients"),
    whole("wall_ns"),
    *(whole(name) for name in ACCOUNTS),
    CheckConstraint(ADDS_UP, name="a_minute_adds_up"),
    Index("device_minute_at", "minute_ms"),
)
