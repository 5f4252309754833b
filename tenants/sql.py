"""What the databases spell differently."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Dialect, Table, Text, bindparam, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import NullType, TypeDecorator, TypeEngine


def insert_new(conn: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert what is not there yet, by whatever makes a row unique; leave alone what is."""
    dialect = postgresql if conn.dialect.name == "postgresql" else sqlite
    conn.execute(dialect.insert(table).on_conflict_do_nothing(), rows)


class Many:
    """A statement over many rows at once: `{name}` stands for a row's value.  SQLite runs it for each; to
    PostgreSQL the rows go as one JSON document, since a statement each is what its time would go into.

    `columns` names the values and their types, `returns` how many rows were changed."""

    def __init__(self, columns: Mapping[str, TypeEngine[Any]], each: str, together: str) -> None:
        """`each` for one row; `together` where `{rows}` stands for all, as a table called `x`."""
        listed = ", ".join(f'"{name}" {kind.compile()}' for name, kind in columns.items())
        here = {name: f":{name}" for name in columns}
        there = {name: f'x."{name}"' for name in columns}
        self._each = text(each.format(**here))
        rows = f"jsonb_to_recordset(CAST(:rows AS jsonb)) AS x({listed})"
        self._together = text(together.format(**there, rows=rows))

    def run(self, conn: Connection, rows: Sequence[Mapping[str, Any]]) -> int:
        if conn.dialect.name != "postgresql":
            return conn.execute(self._each, rows).rowcount
        return conn.execute(self._together, {"rows": msgspec.json.encode(rows).decode()}).rowcount


def insert_many(table: Table) -> Many:
    """All columns of `table`, by their names."""
    quoted = ", ".join(f'"{column.name}"' for column in table.columns)
    values = ", ".join(f"{{{column.name}}}" for column in table.columns)
    # The names are those of our own tables.
    into = f'INSERT INTO "{table.name}" ({quoted})'
    return Many(
        {column.name: column.type for column in table.columns},
        f"{into} VALUES ({values})",
        f"{into} SELECT {values} FROM {{rows}}",  # noqa: S608
    )


def update_many(
    table: Table, columns: Mapping[str, TypeEngine[Any]], sets: str, where: str
) -> Many:
    """`sets` and `where` as SQL, with `{name}` for what is handed over."""
    head = f'UPDATE "{table.name}" AS t SET {sets}'  # noqa: S608 — likewise
    return Many(columns, f"{head} WHERE {where}", f"{head} FROM {{rows}} WHERE {where}")


def within(column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
    """Whether `column` is one of the texts that are handed over as `name`, however many they are.  One
    parameter, so that the statement is the same each time: an IN with a parameter each would be
    prepared anew for each count."""
    return _Within(column, bindparam(name, type_=_Texts()))


class _Texts(TypeDecorator[Sequence[str]]):
    """An array, or JSON where there are none."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(postgresql.ARRAY(Text()))
        return dialect.type_descriptor(Text())

    def process_bind_param(self, value: Sequence[str] | None, dialect: Dialect) -> Any:
        texts = list(value or ())
        return texts if dialect.name == "postgresql" else msgspec.json.encode(texts).decode()


class _Within(FunctionElement[Any]):
    """Of no type: where booleans are numbers, as in SQLite, a boolean one would be written `(…) = 1`,
    by which no index is used."""

    name = "within"
    type = NullType()
    inherit_cache = True


@compiles(_Within, "postgresql")
def _any(element: _Within, compiler: SQLCompiler, **how: Any) -> str:
    column, texts = element.clauses
    return f"{compiler.process(column, **how)} = ANY ({compiler.process(texts, **how)})"


@compiles(_Within)
def _json(element: _Within, compiler: SQLCompiler, **how: Any) -> str:
    column, texts = element.clauses
    listed = f"SELECT value FROM json_each({compiler.process(texts, **how)})"  # noqa: S608 — a placeholder
    return f"{compiler.process(column, **how)} IN ({listed})"
