"""A hold is its reservation, and where it is counted follows from it: no rows of their own for either.

What the ledger has said of holds until now stays said: `held` was an account of its own there, whose
entries cancel out as each of those requests ended."""

from alembic import op
from sqlalchemy import text

revision = "0004"
down_revision = "0003"

_HELD = text("state = 'HELD'")


def upgrade() -> None:
    op.drop_table("reservation_window")
    op.execute("DELETE FROM budget_window")  # taken anew from the reservations
    op.drop_index("reservation_open", "reservation")
    op.create_index(
        "reservation_held",
        "reservation",
        ["lease_until_ms"],
        sqlite_where=_HELD,
        postgresql_where=_HELD,
    )
