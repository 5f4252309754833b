"""How a database comes to have the tables: made at once where it is empty, else brought up to date by
Alembic, one revision after the other.

A new revision is a file in `tenants/migrations/versions` and one more name in `REVISIONS`; the tests
hold that all of them together make what `metadata` says.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sqlalchemy import Column, Connection, MetaData, String, Table, insert, inspect, select, text

import tenants.schema
from tenants.schema.columns import metadata

REVISIONS: Final = (
    *("0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008", "0009", "0010"),
    *("0011", "0012", "0013", "0014", "0015", "0016"),
)
"""Oldest first.  Named here, so that Alembic is only loaded where there is something to do."""
MIGRATIONS: Final = Path(__file__).parent.parent / "migrations"

_version = Table("alembic_version", MetaData(), Column("version_num", String(32), primary_key=True))
_COUNTED: Final = "schema_version"
"""Where the version was counted before Alembic: the numbers of the first three revisions."""

assert tenants.schema.metadata is metadata  # all tables are defined


class SchemaMismatch(Exception):
    """The database holds something else than this program wrote, or than this version can read."""


def check(conn: Connection) -> str | None:
    """The revision found, None for an empty database.  Touches nothing.
    SchemaMismatch where it was written by another program, or by a newer version of this one."""
    there = set(inspect(conn).get_table_names())
    if not there:
        return None
    if _version.name in there:
        found: str | None = conn.execute(select(_version.c.version_num)).scalar_one_or_none()
    elif _COUNTED in there:
        count: int | None = conn.execute(
            text("SELECT version FROM schema_version")
        ).scalar_one_or_none()
        found = None if count is None else f"{count:04}"
    else:
        raise SchemaMismatch("holds tables of another program; name a database of Lockgate's own")
    if found not in REVISIONS:
        raise SchemaMismatch(
            f"has schema version {found}; this program reads up to {REVISIONS[-1]}: run the newer program"
        )
    missing = set(metadata.tables) - there
    if missing and found == REVISIONS[-1]:
        raise SchemaMismatch(f"lacks the tables {sorted(missing)}: restore it from a backup")
    return found


def prepare(conn: Connection) -> None:
    """Make the tables, or bring them up to date, within the transaction of `conn`."""
    found = check(conn)
    if found is None:
        metadata.create_all(conn)
        _version.create(conn)
        conn.execute(insert(_version).values(version_num=REVISIONS[-1]))
        return
    if inspect(conn).has_table(_COUNTED):
        _version.create(conn)
        conn.execute(insert(_version).values(version_num=found))
        conn.execute(text(f"DROP TABLE {_COUNTED}"))
    if found != REVISIONS[-1]:
        upgrade(conn, REVISIONS[-1])


def upgrade(conn: Connection, to: str) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = conn
    command.upgrade(config, to)
