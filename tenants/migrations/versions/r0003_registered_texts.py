"""Documents and templates."""

from alembic import op
from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Integer,
    LargeBinary,
    Text,
)

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "registration",
        Column("id", Text, nullable=False, primary_key=True),
        Column("kind", Text, nullable=False),
        Column("tenant", Text),
        Column("issuer", Text, nullable=False),
        Column("owner", Text, nullable=False),
        Column("content_version", Integer, nullable=False),
        Column("acl_version", Integer, nullable=False),
        Column("created_at_s", BigInteger, nullable=False),
        Column("changed_at_s", BigInteger, nullable=False),
        Column("expires_at_s", BigInteger),
        Column("deleted_at_s", BigInteger),
        CheckConstraint("kind IN ('document','template')", name="known_kind"),
        CheckConstraint(
            "kind = 'template' OR tenant IS NOT NULL", name="only_templates_are_public"
        ),
    )
    op.create_index("registration_tenant", "registration", ["tenant", "kind"])
    op.create_table(
        "registration_text",
        Column("id", Text, nullable=False, primary_key=True),
        Column("version", Integer, primary_key=True),
        Column("sealed_text", LargeBinary, nullable=False),
        Column("sealed_about", LargeBinary, nullable=False),
        Column("tokens", Text, nullable=False),
    )
    op.create_table(
        "registration_reader",
        Column("id", Text, nullable=False, primary_key=True),
        Column("kind", Text, nullable=False, primary_key=True),
        Column("issuer", Text, nullable=False, primary_key=True),
        Column("name", Text, nullable=False, primary_key=True),
        CheckConstraint("kind IN ('user','group','role')", name="known_reader"),
    )
    op.create_table(
        "registration_state",
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("generation", BigInteger, nullable=False),
    )
