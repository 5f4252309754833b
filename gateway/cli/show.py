"""How the command line talks: people get sentences and tables, programs get one JSON document.

Text that came from a server or a file is never read as markup, and its control characters do not
reach the terminal.  Results go to standard output, everything else to standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.quoting import fit

TEXT_CHARS_MAX = 2000
PIPE_WIDTH = 200
_WIDEST = 100_000


class Refusal(Exception):
    """It cannot be done.  The message: what was wrong, what was expected, what to do."""

    def __init__(self, message: str, *, exit_code: int = 1, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code
        self.facts = facts


def tell_refusal(refusal: Refusal, *, as_json: bool) -> None:
    if as_json:
        error = {"message": clean(refusal.message), **refusal.facts}
        sys.stderr.write(msgspec.json.encode({"error": error}).decode() + "\n")
    else:
        note(refusal.message)


def clean(value: object) -> str:
    """Printable text of bounded length."""
    text = value if isinstance(value, str) else _plain(value)
    return fit(text, TEXT_CHARS_MAX, keep="\n")


def _plain(value: object) -> str:
    if value is None:
        return "–"  # noqa: RUF001 — a dash for nothing
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_plain(item) for item in value)
    return str(value)


def note(text: str) -> None:
    """A sentence beside the result."""
    sys.stderr.write(clean(text) + "\n")
    sys.stderr.flush()


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


def document(value: object) -> None:
    """One JSON document for programs."""
    say(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def console() -> Console:
    """A pipe gets wide lines, so that nothing a program may look for is cut."""
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(width=width, highlight=False)


def table(rows: Sequence[Mapping[str, Any]], columns: Iterable[str] | None = None) -> None:
    """`columns` None: those of the rows, as they first appear.  Where the terminal is too narrow for a row
    to be read, each is a list by itself."""
    names = list(columns) if columns else list(dict.fromkeys(key for row in rows for key in row))
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in names:
        numeric = name.endswith("usd") or all(_numeric(row.get(name)) for row in rows)
        drawn.add_column(
            Text(name.replace("_", " ")), justify="right" if numeric else "left", overflow="fold"
        )
    for row in rows:
        drawn.add_row(*(Text(cell(name, row.get(name))) for name in names))
    paper = console()
    if paper.measure(drawn, options=paper.options.update(width=_WIDEST)).maximum <= paper.width:
        paper.print(drawn)
        return
    for place, row in enumerate(rows):
        if place:
            paper.print()
        pairs({name: row.get(name) for name in names})


def pairs(values: Mapping[str, Any]) -> None:
    drawn = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    drawn.add_column(style="dim")
    drawn.add_column(overflow="fold")
    for name, value in values.items():
        drawn.add_row(Text(name.replace("_", " ")), Text(cell(name, value)))
    console().print(drawn)


def cell(name: str, value: object) -> str:
    """Instants are written as such: fields that end in `_at` or `_at_s` hold Unix seconds."""
    if isinstance(value, int) and not isinstance(value, bool):
        if name.endswith(("_at", "_at_s")):
            return instant(value)
        if name.endswith("_at_ms"):
            return instant(value // 1000)
    return clean(value)


def instant(at_s: int) -> str:
    try:
        return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return str(at_s)


def _numeric(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
