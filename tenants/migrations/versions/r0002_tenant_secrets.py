"""Tenants' secrets."""

from alembic import op
from sqlalchemy import (
    Column,
    Integer,
    LargeBinary,
    Text,
)

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "tenant_secret",
        Column("tenant", Text, nullable=False, primary_key=True),
        Column("version", Integer, primary_key=True),
        Column("root", Text, nullable=False),
        Column("wrapped", LargeBinary, nullable=False),
    )
