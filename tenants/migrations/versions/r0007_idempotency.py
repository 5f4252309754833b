"""Idempotency keys and their sealed answers."""

from alembic import op
from sqlalchemy import BigInteger, Boolean, CheckConstraint, Column, Integer, LargeBinary, Text

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_table(
        "idempotency",
        Column("digest", Text, nullable=False, primary_key=True),
        Column("tenant", Text, nullable=False),
        Column("body", LargeBinary, nullable=False),
        Column("request_id", Text, nullable=False),
        Column("metered", Boolean, nullable=False),
        Column("state", Text, nullable=False),
        Column("owner", Text, nullable=False),
        Column("lease_until_ms", BigInteger, nullable=False),
        Column("expires_at_ms", BigInteger, nullable=False),
        Column("sealed", LargeBinary),
        Column("sealed_bytes", Integer, nullable=False),
        Column("secret_version", Integer, nullable=False),
        Column("why", Text),
        CheckConstraint("state IN ('RUNNING','DONE')", name="known_state_of_a_key"),
    )
    op.create_index(
        "idempotency_tenant", "idempotency", ["tenant", "secret_version", "sealed_bytes"]
    )
    op.create_index("idempotency_expiry", "idempotency", ["expires_at_ms"])
