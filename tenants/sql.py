"""The two statements that the databases spell differently."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite


def insert_new(conn: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert what is not there yet, by whatever makes a row unique; leave alone what is."""
    dialect = postgresql if conn.dialect.name == "postgresql" else sqlite
    conn.execute(dialect.insert(table).on_conflict_do_nothing(), rows)
