"""Months are closed, and a usage line says when it counts: so far, when its request was admitted."""

from alembic import op
from sqlalchemy import BigInteger, Column, Integer, Text

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("usage_event", Column("effective_ms", BigInteger))
    op.execute(
        "UPDATE usage_event SET effective_ms = (SELECT at_ms FROM reservation"
        " WHERE reservation.request_id = usage_event.request_id)"
    )
    with op.batch_alter_table("usage_event") as table:
        table.alter_column("effective_ms", nullable=False)
    op.create_index("usage_effective", "usage_event", ["effective_ms"])
    op.create_index("ledger_effective", "ledger_entry", ["effective_ms"])
    op.create_table(
        "period",
        Column("name", Text, nullable=False, primary_key=True),
        Column("start_ms", BigInteger, nullable=False),
        Column("end_ms", BigInteger, nullable=False),
        Column("shut_at_ms", BigInteger, nullable=False),
        Column("closed_at_ms", BigInteger),
        Column("sha256", Text),
        Column("entries", BigInteger),
        Column("lines", BigInteger),
        Column("spend_nano_usd", BigInteger),
        Column("actor", Text, nullable=False),
        Column("reason", Text, nullable=False),
    )
    op.create_table(
        "period_gate",
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("closed_until_ms", BigInteger, nullable=False),
    )
    op.execute("INSERT INTO period_gate (id, closed_until_ms) VALUES (1, 0)")
