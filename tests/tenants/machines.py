"""What the state machines of this room share: how one is run, and a real PostgreSQL between two examples."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from sqlalchemy import Connection, make_url, text

from tenants import schema
from tenants.store.postgres import PostgresBackend
from tests.servers_postgres import cluster


def hold_out(
    machine: type[RuleBasedStateMachine], examples: int, steps: int, *, shrink: bool = True
) -> None:
    """The same examples each time; a failure is not written down but named."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            database=None,
            print_blob=False,
            report_multiple_bugs=False,
            phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
            suppress_health_check=list(HealthCheck),
        ),
    )


def on_postgres(database: str) -> PostgresBackend:
    """`database`: one for each machine, made where it is not there."""
    server = cluster()
    if not server.sql(f"SELECT 1 FROM pg_database WHERE datname = '{database}'"):
        server.sql(f"CREATE DATABASE {database}")
    return PostgresBackend(make_url(server.url(database)), write=True)


def emptied(backend: PostgresBackend) -> None:
    """All tables, for the next example; and closed."""
    filled = set(schema.metadata.tables) - {schema.period_gate.name}  # whose one row stays
    names = ", ".join(f'"{each}"' for each in sorted(filled))

    def op(conn: Connection) -> None:
        conn.execute(text(f"TRUNCATE {names}"))

    backend.commit(op)
    backend.close()
