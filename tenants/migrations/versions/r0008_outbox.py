"""Budgets that have come to a threshold are told of."""

from alembic import op
from sqlalchemy import BigInteger, Boolean, CheckConstraint, Column, Integer, Text, text

revision = "0008"
down_revision = "0007"

_DUE = text("done_at_ms IS NULL")


def upgrade() -> None:
    op.create_table(
        "outbox",
        Column("id", Text, nullable=False, primary_key=True),
        Column("kind", Text, nullable=False),
        Column("scope", Text, nullable=False),
        Column("account", Text, nullable=False),
        Column("window_id", Text, nullable=False),
        Column("threshold", Integer, nullable=False),
        Column("payload", Text, nullable=False),
        Column("at_ms", BigInteger, nullable=False),
        Column("attempts", Integer, nullable=False),
        Column("next_at_ms", BigInteger, nullable=False),
        Column("done_at_ms", BigInteger),
        Column("outcome", Text),
    )
    op.create_index(
        "outbox_due", "outbox", ["next_at_ms"], sqlite_where=_DUE, postgresql_where=_DUE
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
        Column("notify", Text, nullable=False),
        Column("noticed", Integer, nullable=False),
        CheckConstraint("spent >= 0 AND held >= 0 AND topped_up >= 0", name="no_negative_balance"),
    )
