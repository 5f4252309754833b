"""The book and the directory."""

from alembic import op
from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Integer,
    LargeBinary,
    Text,
    UniqueConstraint,
)

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "price",
        Column("id", Text, nullable=False, primary_key=True),
        Column("model", Text, nullable=False),
        Column("effective_s", BigInteger, nullable=False),
        Column("input", BigInteger, nullable=False),
        Column("cached_input", BigInteger, nullable=False),
        Column("cache_write", BigInteger, nullable=False),
        Column("output", BigInteger, nullable=False),
        Column("batch_factor", Text, nullable=False),
    )
    op.create_table(
        "budget_window",
        Column("scope", Text, nullable=False, primary_key=True),
        Column("account", Text, nullable=False, primary_key=True),
        Column("window_id", Text, nullable=False, primary_key=True),
        Column("start_s", BigInteger, nullable=False),
        Column("end_s", BigInteger),
        Column("limit_nano_usd", BigInteger, nullable=False),
        Column("hard", Boolean, nullable=False),
        Column("spent", BigInteger, nullable=False),
        Column("held", BigInteger, nullable=False),
        CheckConstraint("spent >= 0 AND held >= 0", name="no_negative_balance"),
    )
    op.create_table(
        "reservation",
        Column("request_id", Text, nullable=False, primary_key=True),
        Column("tenant", Text, nullable=False),
        Column("project", Text),
        Column("user", Text, nullable=False),
        Column("issuer", Text, nullable=False),
        Column("key_id", Text),
        Column("model", Text, nullable=False),
        Column("service_class", Text),
        Column("user_account", Text, nullable=False),
        Column("project_account", Text),
        Column("price_id", Text, nullable=False),
        Column("prompt_tokens", BigInteger, nullable=False),
        Column("output_tokens", BigInteger, nullable=False),
        Column("n", Integer, nullable=False),
        Column("limited_by", Text),
        Column("over", Text, nullable=False),
        Column("amount", BigInteger, nullable=False),
        Column("charge", BigInteger, nullable=False),
        Column("state", Text, nullable=False),
        Column("estimated", Boolean, nullable=False),
        Column("dispatched", Boolean, nullable=False),
        Column("owner", Text, nullable=False),
        Column("at_ms", BigInteger, nullable=False),
        Column("lease_until_ms", BigInteger, nullable=False),
        Column("ended_at_ms", BigInteger),
        CheckConstraint("state IN ('HELD','SETTLED','VOIDED','EXPIRED')", name="known_state"),
        CheckConstraint("amount >= 0 AND charge >= 0", name="no_negative_amount"),
    )
    op.create_index("reservation_tenant", "reservation", ["tenant", "at_ms"])
    op.create_index("reservation_user", "reservation", ["user_account", "at_ms"])
    op.create_index("reservation_project", "reservation", ["project_account", "at_ms"])
    op.create_index("reservation_key", "reservation", ["key_id", "at_ms"])
    op.create_index("reservation_open", "reservation", ["state", "lease_until_ms"])
    op.create_table(
        "reservation_window",
        Column("request_id", Text, nullable=False, primary_key=True),
        Column("scope", Text, nullable=False, primary_key=True),
        Column("account", Text, nullable=False, primary_key=True),
        Column("window_id", Text, nullable=False, primary_key=True),
    )
    op.create_table(
        "ledger_entry",
        Column("transfer_id", Text, nullable=False, primary_key=True),
        Column("request_id", Text, nullable=False),
        Column("tenant", Text, nullable=False),
        Column("kind", Text, nullable=False),
        Column("debit", Text, nullable=False),
        Column("credit", Text, nullable=False),
        Column("amount", BigInteger, nullable=False),
        Column("at_ms", BigInteger, nullable=False),
        Column("effective_ms", BigInteger, nullable=False),
        CheckConstraint("amount > 0 AND debit <> credit", name="a_transfer_moves"),
    )
    op.create_index("ledger_request", "ledger_entry", ["request_id"])
    op.create_index("ledger_tenant", "ledger_entry", ["tenant", "effective_ms"])
    op.create_table(
        "usage_event",
        Column("request_id", Text, nullable=False, primary_key=True),
        Column("attempt", Integer, primary_key=True),
        Column("meter", Text, nullable=False, primary_key=True),
        Column("entry", Text, nullable=False, primary_key=True),
        Column("tokens", BigInteger, nullable=False),
        Column("price_id", Text, nullable=False),
        Column("unit_price", BigInteger, nullable=False),
        Column("nano_usd", BigInteger, nullable=False),
        Column("at_ms", BigInteger, nullable=False),
    )
    op.create_table(
        "request",
        Column("request_id", Text, nullable=False, primary_key=True),
        Column("tenant", Text, nullable=False),
        Column("project", Text),
        Column("user", Text, nullable=False),
        Column("issuer", Text, nullable=False),
        Column("key_id", Text),
        Column("model", Text, nullable=False),
        Column("service_class", Text),
        Column("route", Text, nullable=False),
        Column("received_at_ms", BigInteger, nullable=False),
        Column("outcome", Text, nullable=False),
        Column("reason", Text),
        Column("finish_reason", Text),
        Column("prompt_tokens", BigInteger, nullable=False),
        Column("output_tokens", BigInteger, nullable=False),
        Column("generated_tokens", BigInteger, nullable=False),
        Column("delivered_tokens", BigInteger, nullable=False),
        Column("admitted_ns", BigInteger, nullable=False),
        Column("queued_ns", BigInteger, nullable=False),
        Column("prefill_ns", BigInteger, nullable=False),
        Column("decode_ns", BigInteger, nullable=False),
        Column("total_ns", BigInteger, nullable=False),
        Column("device_ns", BigInteger, nullable=False),
        Column("recomputed_ns", BigInteger, nullable=False),
        Column("preemptions", Integer, nullable=False),
        Column("trace", Text, nullable=False),
    )
    op.create_index("request_tenant", "request", ["tenant", "received_at_ms"])
    op.create_table(
        "api_key",
        Column("id", Text, nullable=False, primary_key=True),
        Column("digest", LargeBinary, nullable=False),
        Column("tenant", Text, nullable=False),
        Column("project", Text),
        Column("user", Text, nullable=False),
        Column("name", Text, nullable=False),
        Column("roles", Text, nullable=False),
        Column("groups", Text, nullable=False),
        Column("service_class", Text),
        Column("limits", Text, nullable=False),
        Column("created_at_s", BigInteger, nullable=False),
        Column("expires_at_s", BigInteger),
        Column("revoked_at_s", BigInteger),
        Column("replaced_by", Text),
        UniqueConstraint("digest", name="one_key_a_digest"),
    )
    op.create_index("api_key_tenant", "api_key", ["tenant"])
    op.create_table(
        "revocation",
        Column("kind", Text, nullable=False, primary_key=True),
        Column("tenant", Text, nullable=False, primary_key=True),
        Column("issuer", Text, nullable=False, primary_key=True),
        Column("value", Text, nullable=False, primary_key=True),
        Column("at_s", BigInteger, nullable=False),
        Column("until_s", BigInteger, nullable=False),
        Column("actor", Text, nullable=False),
        Column("reason", Text, nullable=False),
    )
    op.create_table(
        "suspension",
        Column("tenant", Text, nullable=False, primary_key=True),
        Column("at_s", BigInteger, nullable=False),
        Column("actor", Text, nullable=False),
        Column("reason", Text, nullable=False),
    )
    op.create_table(
        "budget_override",
        Column("tenant", Text, nullable=False, primary_key=True),
        Column("scope", Text, nullable=False, primary_key=True),
        Column("issuer", Text, nullable=False, primary_key=True),
        Column("name", Text, nullable=False, primary_key=True),
        Column("budget", Text, nullable=False),
    )
    op.create_table(
        "change",
        Column("id", Integer, primary_key=True, autoincrement=True),
        Column("at_s", BigInteger, nullable=False),
        Column("tenant", Text, nullable=False),
        Column("kind", Text, nullable=False),
        Column("subject", Text, nullable=False),
        Column("detail", Text, nullable=False),
        Column("actor", Text, nullable=False),
        Column("reason", Text, nullable=False),
    )
    op.create_index("change_tenant", "change", ["tenant", "at_s"])
