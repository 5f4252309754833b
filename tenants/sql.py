"""What the databases spell differently, and statements that go to their drivers as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
from sqlalchemy import (
    Boolean,
    ClauseElement,
    ColumnElement,
    Connection,
    Dialect,
    Select,
    Table,
    Text,
    bindparam,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import NullType, TypeDecorator, TypeEngine

T = TypeVar("T")


def insert_new(conn: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert what is not there yet, by whatever makes a row unique; leave alone what is."""
    dialect = postgresql if conn.dialect.name == "postgresql" else sqlite
    conn.execute(dialect.insert(table).on_conflict_do_nothing(), rows)


class _Spelt(NamedTuple):
    """A statement as one kind of driver takes it: its text, and its parameters' names in their order."""

    sql: str
    names: tuple[str, ...]


class _Hot:
    """A statement on the way of every request.  SQLAlchemy spells it, once for each kind of database, and
    it goes to the driver as it is: what is made around each execution (contexts, results, rows) costs
    several times what SQLite takes to answer, and cools the caches of whatever runs beside it.

    Values are plain: numbers, texts, booleans, and lists of texts for `within`."""

    def __init__(self) -> None:
        self._by_dialect: dict[str, _Spelt] = {}

    def _spelt(self, dialect: Dialect, statement: ClauseElement) -> _Spelt:
        if (known := self._by_dialect.get(dialect.name)) is None:
            made = statement.compile(dialect=dialect)
            assert isinstance(made, SQLCompiler)
            assert made.positiontup is not None, "parameters go by place"
            known = self._by_dialect[dialect.name] = _Spelt(str(made), tuple(made.positiontup))
        return known


class Find(_Hot):
    """A query, and the rows that it finds by their columns' names."""

    def __init__(self, query: Select[Any]) -> None:
        super().__init__()
        columns = list(query.selected_columns)
        self._query = query
        self._keys = tuple(column.name for column in columns)
        self._booleans = tuple(each.name for each in columns if isinstance(each.type, Boolean))

    def rows(self, conn: Connection, given: Mapping[str, Any]) -> list[dict[str, Any]]:
        spelt = self._spelt(conn.dialect, self._query)
        values = [given[name] for name in spelt.names]
        if conn.dialect.name == "sqlite":  # which has neither lists nor booleans
            values = [_json(value) if isinstance(value, list) else value for value in values]
        read = drive(conn, spelt.sql, values, _found)
        found = [dict(zip(self._keys, row, strict=True)) for row in read]
        for name in self._booleans:
            for row in found:
                row[name] = bool(row[name])
        return found


class Many(_Hot):
    """A statement over many rows at once: `{name}` stands for a row's value.  SQLite runs it for each; to
    PostgreSQL the rows go as one JSON document, since a statement each is what its time would go into.

    `columns` names the values and their types, `run` returns how many rows were changed."""

    def __init__(self, columns: Mapping[str, TypeEngine[Any]], each: str, together: str) -> None:
        """`each` for one row; `together` where `{rows}` stands for all, as a table called `x`."""
        super().__init__()
        listed = ", ".join(f'"{name}" {kind.compile()}' for name, kind in columns.items())
        here = {name: f":{name}" for name in columns}
        there = {name: f'x."{name}"' for name in columns}
        self._each = text(each.format(**here))
        rows = f"jsonb_to_recordset(CAST(:rows AS jsonb)) AS x({listed})"
        self._together = text(together.format(**there, rows=rows))

    def run(self, conn: Connection, rows: Sequence[Mapping[str, Any]]) -> int:
        if conn.dialect.name == "postgresql":
            spelt = self._spelt(conn.dialect, self._together)
            return drive(conn, spelt.sql, [_json(rows)], changed)
        spelt = self._spelt(conn.dialect, self._each)
        values = [[row[name] for name in spelt.names] for row in rows]
        return drive(conn, spelt.sql, values, _changed_each)


def _found(cursor: DBAPICursor, sql: str, values: Sequence[Any]) -> Sequence[Any]:
    cursor.execute(sql, values)
    return cursor.fetchall()


def changed(cursor: DBAPICursor, sql: str, values: Sequence[Any]) -> int:
    cursor.execute(sql, values)
    return cursor.rowcount


def _changed_each(cursor: DBAPICursor, sql: str, values: Sequence[Any]) -> int:
    cursor.executemany(sql, values)
    return cursor.rowcount


def drive(
    conn: Connection,
    sql: str,
    values: Sequence[Any],
    act: Callable[[DBAPICursor, str, Sequence[Any]], T],
) -> T:
    """Hand a statement to the driver, within the transaction of `conn`.  Raises what SQLAlchemy would."""
    driver = conn.dialect.loaded_dbapi.Error
    cursor = conn.connection.cursor()
    try:
        return act(cursor, sql, values)
    except driver as why:
        gone = conn.dialect.is_disconnect(why, conn.connection, cursor)
        if gone:
            conn.invalidate(why)
        raise DBAPIError.instance(
            None,  # neither statement nor parameters are told
            None,
            why,
            driver,
            hide_parameters=True,
            connection_invalidated=gone,
            dialect=conn.dialect,
        ) from why
    finally:
        cursor.close()


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
        return texts if dialect.name == "postgresql" else _json(texts)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


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
def _each_of(element: _Within, compiler: SQLCompiler, **how: Any) -> str:
    column, texts = element.clauses
    listed = f"SELECT value FROM json_each({compiler.process(texts, **how)})"  # noqa: S608 — a placeholder
    return f"{compiler.process(column, **how)} IN ({listed})"
