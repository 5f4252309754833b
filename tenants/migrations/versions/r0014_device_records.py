"""How many requests' records an account of device time has been brought to agree with."""

from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.execute("ALTER TABLE device_start ADD COLUMN records BIGINT DEFAULT 0 NOT NULL")
