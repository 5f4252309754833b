"""Rows as bytes: CSV, or Parquet with exact decimals.

Refuses to know: what columns mean.  pyarrow is an optional extra and enters here alone.

CSV and formulas.  A spreadsheet runs a cell that begins with `=`, `+`, `-`, `@`, a tab or a carriage
return, and ids are whatever a customer chose.  Such a text is written with an apostrophe before it, which
spreadsheets show as text; and the row says so: `x_EscapedColumns` names the columns whose first character
is not part of the value, so that nothing is altered silently and a program can take it off.  Numbers and
times are never texts here.  Parquet has types, and holds every text as it is.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Protocol

from tenants.focus.columns import Column, Kind
from tenants.focus.rows import Row, Value

FORMATS = ("csv", "parquet")
ESCAPED = "x_EscapedColumns"
FORMULA = ("=", "+", "-", "@", "\t", "\r")
PRECISION, SCALE = 38, 18


class NoParquet(Exception):
    """No Parquet can be written here: pyarrow is missing."""


class File(Protocol):
    """Bytes as rows come; `escaped` counts the rows that were altered to be safe."""

    escaped: int

    def rows(self, rows: Sequence[Row]) -> bytes: ...

    def end(self) -> bytes: ...


def open_file(kind: str, columns: Sequence[Column]) -> File:
    """Raises NoParquet."""
    assert kind in FORMATS
    return Csv(columns) if kind == "csv" else Parquet(columns)


class Csv:
    """UTF-8, one header line, a line feed after each row; nothing for null."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self.escaped = 0
        self._columns = columns
        self._begun = False

    def rows(self, rows: Sequence[Row]) -> bytes:
        text = io.StringIO()
        out = csv.writer(text, lineterminator="\n")
        if not self._begun:
            self._begun = True
            out.writerow([*(column.name for column in self._columns), ESCAPED])
        for row in rows:
            risky = [
                column.name
                for column in self._columns
                if isinstance(value := row[column.name], str) and value.startswith(FORMULA)
            ]
            self.escaped += bool(risky)
            cells = [
                ("'" if column.name in risky else "") + _cell(row[column.name])
                for column in self._columns
            ]
            out.writerow([*cells, ";".join(risky)])
        return text.getvalue().encode()

    def end(self) -> bytes:
        return b"" if self._begun else self.rows(())


def _cell(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%SZ")
    return plain(value) if isinstance(value, Decimal) else str(value)


def plain(value: Decimal) -> str:
    """Every digit, no exponent, no trailing zeros, no negative nothing."""
    text = f"{value:f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text in {"-0", ""} else text


class Parquet:
    """One row group for each batch of rows, handed on as it is written."""

    def __init__(self, columns: Sequence[Column]) -> None:
        try:
            import pyarrow as pa
            from pyarrow import parquet
        except ImportError as why:
            raise NoParquet("pyarrow is not installed") from why
        self.escaped = 0
        self._columns = columns
        self._arrow: Any = pa
        kinds = {
            Kind.TEXT: pa.string(),
            Kind.DECIMAL: pa.decimal128(PRECISION, SCALE),
            Kind.WHOLE: pa.int64(),
            Kind.TIME: pa.timestamp("ms", tz="UTC"),
        }
        self._schema: Any = pa.schema(
            [
                pa.field(column.name, kinds[column.kind], nullable=not column.required)
                for column in columns
            ]
        )
        self._sink = _Sink()
        self._writer: Any = parquet.ParquetWriter(self._sink, self._schema, compression="zstd")

    def rows(self, rows: Sequence[Row]) -> bytes:
        if rows:
            names = [column.name for column in self._columns]
            kept = [{name: row[name] for name in names} for row in rows]
            self._writer.write_table(self._arrow.Table.from_pylist(kept, schema=self._schema))
        return self._sink.taken()

    def end(self) -> bytes:
        self._writer.close()
        return self._sink.taken()


class _Sink:
    """A file that is only ever written on; what was written is taken away."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._at = 0

    def write(self, data: Any) -> int:
        part = bytes(data)
        self._parts.append(part)
        self._at += len(part)
        return len(part)

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        """Nothing waits here."""

    def close(self) -> None:
        self.closed = True

    def taken(self) -> bytes:
        taken = b"".join(self._parts)
        self._parts.clear()
        return taken
