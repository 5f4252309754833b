"""What is to be forgotten and what was: salts, people to be renamed, deleted tenants, months sealed anew."""

from alembic import op
from sqlalchemy import BigInteger, Column, Integer, LargeBinary, Text

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "pseudonym_salt",
        Column("tenant", Text, nullable=False, primary_key=True),
        Column("salt", LargeBinary, nullable=False),
    )
    op.create_table(
        "erasure",
        Column("tenant", Text, nullable=False, primary_key=True),
        Column("issuer", Text, nullable=False, primary_key=True),
        Column("user", Text, nullable=False, primary_key=True),
        Column("at_ms", BigInteger, nullable=False),
        Column("actor", Text, nullable=False),
    )
    op.create_table(
        "tenant_deletion",
        Column("digest", Text, nullable=False, primary_key=True),
        Column("pseudonym", Text, nullable=False),
        Column("tenant", Text),
        Column("export_sha256", Text),
        Column("at_ms", BigInteger, nullable=False),
        Column("ended_at_ms", BigInteger),
        Column("actor", Text, nullable=False),
        Column("reason", Text, nullable=False),
    )
    op.create_table(
        "period_seal",
        Column("name", Text, nullable=False, primary_key=True),
        Column("number", Integer, nullable=False, primary_key=True),
        Column("at_ms", BigInteger, nullable=False),
        Column("old_sha256", Text, nullable=False),
        Column("new_sha256", Text, nullable=False),
        Column("changed", BigInteger, nullable=False),
        Column("entries", BigInteger, nullable=False),
        Column("lines", BigInteger, nullable=False),
        Column("spend_nano_usd", BigInteger, nullable=False),
        Column("actor", Text, nullable=False),
        Column("reason", Text, nullable=False),
    )
