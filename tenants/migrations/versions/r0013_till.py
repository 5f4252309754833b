"""What a budget has set aside for its till."""

from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    for column in ("epoch", "issued"):
        op.execute(f"ALTER TABLE budget_window ADD COLUMN {column} BIGINT DEFAULT 0 NOT NULL")
    op.execute(
        "ALTER TABLE budget_window ADD COLUMN floated BIGINT DEFAULT 0 NOT NULL"
        " CONSTRAINT no_negative_float CHECK (floated >= 0 AND floated <= issued AND epoch >= 0)"
    )
