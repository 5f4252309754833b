"""What is kept for a while and then dropped is found by when it ended."""

from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_index("budget_window_end", "budget_window", ["end_s"])
    op.create_index("outbox_done", "outbox", ["done_at_ms"])
