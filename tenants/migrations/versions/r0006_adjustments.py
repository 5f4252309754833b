"""Top-ups, credits and refunds: rows of their own, and where they are counted."""

from alembic import op
from sqlalchemy import BigInteger, Boolean, CheckConstraint, Column, Text

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "adjustment",
        Column("id", Text, nullable=False, primary_key=True),
        Column("kind", Text, nullable=False),
        Column("tenant", Text, nullable=False),
        Column("scope", Text),
        Column("account", Text),
        Column("request_id", Text),
        Column("amount", BigInteger, nullable=False),
        Column("actor", Text, nullable=False),
        Column("reason", Text, nullable=False),
        Column("at_ms", BigInteger, nullable=False),
        CheckConstraint("kind IN ('top_up','credit','refund')", name="known_adjustment"),
        CheckConstraint("amount > 0", name="an_adjustment_moves"),
    )
    op.create_index("adjustment_account", "adjustment", ["account", "at_ms"])
    op.create_index("adjustment_tenant", "adjustment", ["tenant", "at_ms"])
    op.execute(
        "ALTER TABLE reservation ADD COLUMN refunded BIGINT DEFAULT 0 NOT NULL"
        " CONSTRAINT no_refund_beyond_charge CHECK (refunded >= 0 AND refunded <= charge)"
    )
    op.drop_table("budget_window")  # taken anew from the reservations
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
        Column("topped_up", BigInteger, nullable=False),
        CheckConstraint("spent >= 0 AND held >= 0 AND topped_up >= 0", name="no_negative_balance"),
    )
