"""Stored responses, sealed."""

from alembic import op
from sqlalchemy import BigInteger, Boolean, CheckConstraint, Column, Integer, LargeBinary, Text

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.create_table(
        "response",
        Column("id", Text, nullable=False, primary_key=True),
        Column("tenant", Text, nullable=False),
        Column("project", Text, nullable=False),
        Column("issuer", Text, nullable=False),
        Column("user", Text, nullable=False),
        Column("model", Text, nullable=False),
        Column("status", Text, nullable=False),
        Column("background", Boolean, nullable=False),
        Column("previous", Text),
        Column("created_at_ms", BigInteger, nullable=False),
        Column("expires_at_ms", BigInteger, nullable=False),
        Column("owner", Text, nullable=False),
        Column("lease_until_ms", BigInteger, nullable=False),
        Column("cancelling", Boolean, nullable=False),
        Column("sealed", LargeBinary),
        Column("sealed_bytes", Integer, nullable=False),
        Column("secret_version", Integer, nullable=False),
        CheckConstraint(
            "status IN ('queued','in_progress','completed','incomplete','failed','cancelled')",
            name="known_status_of_a_response",
        ),
    )
    op.create_index("response_tenant", "response", ["tenant", "secret_version", "sealed_bytes"])
    op.create_index("response_person", "response", ["tenant", "issuer", "user"])
    op.create_index("response_expiry", "response", ["expires_at_ms"])
    op.create_index("response_lease", "response", ["status", "lease_until_ms"])
