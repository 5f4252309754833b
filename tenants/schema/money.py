"""The tables of the book.  Source: MONEY.md §1 ("Tables")."""

from __future__ import annotations

from sqlalchemy import Boolean, CheckConstraint, Column, Index, Integer, Table
from sqlalchemy import text as sql

from tenants.schema.columns import metadata, text, text_or_none, whole, whole_or_none

price = Table(
    "price",
    metadata,
    text("id", primary_key=True),
    text("model"),
    whole("effective_s"),
    whole("input"),
    whole("cached_input"),
    whole("cache_write"),
    whole("output"),
    text("batch_factor"),
)

budget_window = Table(
    "budget_window",
    metadata,
    text("scope", primary_key=True),
    text("account", primary_key=True),
    text("window_id", primary_key=True),
    whole("start_s"),
    whole_or_none("end_s"),
    whole("limit_nano_usd"),
    Column("hard", Boolean, nullable=False),
    whole("spent"),
    whole("held"),
    whole("topped_up"),
    text("notify"),
    Column("noticed", Integer, nullable=False),
    whole("floated"),
    whole("epoch"),
    whole("issued"),
    CheckConstraint("floated >= 0 AND floated <= issued AND epoch >= 0", name="no_negative_float"),
    CheckConstraint("spent >= 0 AND held >= 0 AND topped_up >= 0", name="no_negative_balance"),
    Index("budget_window_end", "end_s"),
)

_OPEN = sql("state = 'HELD'")

reservation = Table(
    "reservation",
    metadata,
    text("request_id", primary_key=True),
    text("tenant"),
    text_or_none("project"),
    text("user"),
    text("issuer"),
    text_or_none("key_id"),
    text("model"),
    text_or_none("service_class"),
    text("user_account"),
    text_or_none("project_account"),
    text("price_id"),
    whole("prompt_tokens"),
    whole("output_tokens"),
    Column("n", Integer, nullable=False),
    text_or_none("limited_by"),
    text("over"),
    whole("amount"),
    whole("charge"),
    whole("refunded"),
    text("state"),
    Column("estimated", Boolean, nullable=False),
    Column("dispatched", Boolean, nullable=False),
    text("owner"),
    whole("at_ms"),
    whole("lease_until_ms"),
    whole_or_none("ended_at_ms"),
    text_or_none("tags"),
    CheckConstraint("state IN ('HELD','SETTLED','VOIDED','EXPIRED')", name="known_state"),
    CheckConstraint("amount >= 0 AND charge >= 0", name="no_negative_amount"),
    CheckConstraint("refunded >= 0 AND refunded <= charge", name="no_refund_beyond_charge"),
    Index("reservation_tenant", "tenant", "at_ms"),
    Index("reservation_user", "user_account", "at_ms"),
    Index("reservation_project", "project_account", "at_ms"),
    Index("reservation_key", "key_id", "at_ms"),
    Index("reservation_held", "lease_until_ms", sqlite_where=_OPEN, postgresql_where=_OPEN),
)

_BINDING, _CLIENT = sql("origin <> 'client'"), sql("origin = 'client'")

reservation_tag = Table(
    "reservation_tag",
    metadata,
    text("request_id", primary_key=True),
    text("name", primary_key=True),
    text("value"),
    text("origin"),
    text("tenant"),
    whole("at_ms"),
    CheckConstraint("origin IN ('key','claim','client')", name="known_origin"),
    Index(
        "reservation_tag_binding",
        *("tenant", "name", "value", "at_ms"),
        sqlite_where=_BINDING,
        postgresql_where=_BINDING,
    ),
    Index(
        "reservation_tag_client",
        *("tenant", "at_ms"),
        sqlite_where=_CLIENT,
        postgresql_where=_CLIENT,
    ),
)

ledger_entry = Table(
    "ledger_entry",
    metadata,
    text("transfer_id", primary_key=True),
    text("request_id"),
    text("tenant"),
    text("kind"),
    text("debit"),
    text("credit"),
    whole("amount"),
    whole("at_ms"),
    whole("effective_ms"),
    CheckConstraint("amount > 0 AND debit <> credit", name="a_transfer_moves"),
    Index("ledger_request", "request_id"),
    Index("ledger_tenant", "tenant", "effective_ms"),
    Index("ledger_effective", "effective_ms"),
)

adjustment = Table(
    "adjustment",
    metadata,
    text("id", primary_key=True),
    text("kind"),
    text("tenant"),
    text_or_none("scope"),
    text_or_none("account"),
    text_or_none("request_id"),
    whole("amount"),
    text("actor"),
    text("reason"),
    whole("at_ms"),
    CheckConstraint("kind IN ('top_up','credit','refund')", name="known_adjustment"),
    CheckConstraint("amount > 0", name="an_adjustment_moves"),
    Index("adjustment_account", "account", "at_ms"),
    Index("adjustment_tenant", "tenant", "at_ms"),
)

usage_event = Table(
    "usage_event",
    metadata,
    text("request_id", primary_key=True),
    Column("attempt", Integer, primary_key=True),
    text("meter", primary_key=True),
    text("entry", primary_key=True),
    whole("tokens"),
    text("price_id"),
    whole("unit_price"),
    whole("nano_usd"),
    whole("at_ms"),
    whole("effective_ms"),
    Index("usage_effective", "effective_ms"),
)

FAULTED = sql("faulted_ns > 0")

request = Table(
    "request",
    metadata,
    text("request_id", primary_key=True),
    text("tenant"),
    text_or_none("project"),
    text("user"),
    text("issuer"),
    text_or_none("key_id"),
    text("model"),
    text_or_none("service_class"),
    text("route"),
    whole("received_at_ms"),
    text("outcome"),
    text_or_none("reason"),
    text_or_none("finish_reason"),
    whole("prompt_tokens"),
    whole("output_tokens"),
    whole("generated_tokens"),
    whole("delivered_tokens"),
    whole("admitted_ns"),
    whole("queued_ns"),
    whole("prefill_ns"),
    whole("decode_ns"),
    whole("total_ns"),
    whole("device_ns"),
    whole("recomputed_ns"),
    text_or_none("device_start"),
    whole("faulted_ns"),
    Column("preemptions", Integer, nullable=False),
    text("trace"),
    Index("request_tenant", "tenant", "received_at_ms"),
    Index("request_device", "device_start"),
    Index("request_faulted", "device_start", sqlite_where=FAULTED, postgresql_where=FAULTED),
)
