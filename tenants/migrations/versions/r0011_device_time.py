"""Device time has accounts, and a request says in which start of an executor it ran."""

from alembic import op
from sqlalchemy import BigInteger, CheckConstraint, Column, Integer, Text, text

revision = "0011"
down_revision = "0010"

_ACCOUNTS = (
    *("busy_ns", "idle_ns", "load_ns", "capture_ns", "warm_up_ns", "recompute_ns"),
    *("wrong_guesses_ns", "failed_steps_ns", "empty_steps_ns", "faults_ns", "lost_ns"),
)
_FAULTED = text("faulted_ns > 0")
_ADDS_UP = f"{' + '.join(_ACCOUNTS)} = wall_ns * devices"


def _times() -> list[Column[int]]:
    return [Column(name, BigInteger, nullable=False) for name in ("wall_ns", *_ACCOUNTS)]


def upgrade() -> None:
    op.create_table(
        "device_start",
        Column("start", Text, nullable=False, primary_key=True),
        Column("model", Text, nullable=False),
        Column("devices", Integer, nullable=False),
        Column("rule", Text, nullable=False),
        Column("owner", Text, nullable=False),
        Column("began_ms", BigInteger, nullable=False),
        Column("told_at_ms", BigInteger, nullable=False),
        Column("ended_at_ms", BigInteger),
        Column("told_wall_ns", BigInteger, nullable=False),
        Column("told_attributed_ns", BigInteger, nullable=False),
        *_times(),
        CheckConstraint(_ADDS_UP, name="a_start_adds_up"),
        CheckConstraint(
            " AND ".join(f"{name} >= 0" for name in _ACCOUNTS), name="no_negative_time"
        ),
    )
    op.create_index("device_start_ended", "device_start", ["ended_at_ms"])
    op.create_table(
        "device_minute",
        Column("start", Text, nullable=False, primary_key=True),
        Column("minute_ms", BigInteger, nullable=False, primary_key=True),
        Column("model", Text, nullable=False),
        Column("devices", Integer, nullable=False),
        Column("rule", Text, nullable=False),
        Column("coefficients", Text, nullable=False),
        *_times(),
        CheckConstraint(_ADDS_UP, name="a_minute_adds_up"),
    )
    op.create_index("device_minute_at", "device_minute", ["minute_ms"])
    op.add_column("request", Column("device_start", Text))
    op.add_column(
        "request", Column("faulted_ns", BigInteger, nullable=False, server_default=text("0"))
    )
    op.create_index("request_device", "request", ["device_start"])
    op.create_index(
        "request_faulted",
        "request",
        ["device_start"],
        sqlite_where=_FAULTED,
        postgresql_where=_FAULTED,
    )
