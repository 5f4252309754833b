"""Tags: with the key, with the reservation, and a row each."""

from alembic import op
from sqlalchemy import BigInteger, CheckConstraint, Column, Text, text

revision = "0012"
down_revision = "0011"

_BINDING, _CLIENT = text("origin <> 'client'"), text("origin = 'client'")


def upgrade() -> None:
    op.execute("ALTER TABLE api_key ADD COLUMN tags TEXT DEFAULT '[]' NOT NULL")
    op.add_column("reservation", Column("tags", Text))
    op.create_table(
        "reservation_tag",
        Column("request_id", Text, nullable=False, primary_key=True),
        Column("name", Text, nullable=False, primary_key=True),
        Column("value", Text, nullable=False),
        Column("origin", Text, nullable=False),
        Column("tenant", Text, nullable=False),
        Column("at_ms", BigInteger, nullable=False),
        CheckConstraint("origin IN ('key','claim','client')", name="known_origin"),
    )
    op.create_index(
        "reservation_tag_binding",
        "reservation_tag",
        ["tenant", "name", "value", "at_ms"],
        sqlite_where=_BINDING,
        postgresql_where=_BINDING,
    )
    op.create_index(
        "reservation_tag_client",
        "reservation_tag",
        ["tenant", "at_ms"],
        sqlite_where=_CLIENT,
        postgresql_where=_CLIENT,
    )
