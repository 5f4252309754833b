"""A user's own trace, from a file that nobody has cleaned: which request came when, and how long.

`stream` yields rows in the order of the file, one in memory at a time, and refuses a time that steps
back; `read` holds them all, once, and sorts.  Formats (`traces_rows`) are recognised by what stands
in the file, gzip by its magic.  Everything has a bound, the bytes after decompression too.  What
cannot be read is refused with file, line, what was wrong and what was expected: a trace of which a
tenth is quietly left out would plan a tenth too few machines.

`at_s` counts from whatever zero the file has.  If its first time is a date (past three years in
seconds) it counts from that row.

Refuses to know: prompts (a trace holds none), schedulers, clocks.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Final

import msgspec

from executor.simulation.traces_rows import Arrival, BadRow, Format, recognise

__all__ = ["BOUNDS", "Arrival", "Bounds", "TraceError", "lines", "read", "stream", "write"]

SAID_ROWS: Final = 100_000  # some seconds
_DATE_S: Final = 1e8
_GZIP: Final = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much of a file is read before it is refused.  `file_bytes` counts after decompression."""

    rows: int = 1_000_000
    file_bytes: int = 1 << 30
    line_bytes: int = 1 << 20
    tokens: int = 10_000_000


BOUNDS: Final = Bounds()


class TraceError(ValueError):
    """A trace that cannot be read: where, what was wrong, what was expected."""

    def __init__(self, name: str, line: int, wrong: str, expected: str) -> None:
        super().__init__(f"{name}, line {line}: {wrong}; expected {expected}")
        self.name = name
        self.line = line
        self.wrong = wrong
        self.expected = expected


def stream(path: Path, bounds: Bounds = BOUNDS, everybody: str = "all") -> Iterator[Arrival]:
    """The rows of a trace that is in order of time.  `everybody` is the tenant of rows that name
    none.  TraceError; OSError if the file cannot be opened."""
    last_s = 0.0
    for line, arrival in _numbered(path, bounds, everybody):
        if arrival.at_s < last_s:
            raise TraceError(
                path.name, line, "its time lies before that of a line above", "rows sorted by time"
            )
        last_s = arrival.at_s
        yield arrival


def read(
    path: Path,
    bounds: Bounds = BOUNDS,
    everybody: str = "all",
    say: Callable[[int], None] = lambda _: None,
) -> list[Arrival]:
    """All rows, sorted by time; rows of one time stay in the order of the file.  Counted from a
    first row that was not the earliest, times would be negative: then they move up.  `say`: how many
    rows there are so far, every `SAID_ROWS`."""
    rows: list[Arrival] = []
    for _, arrival in _numbered(path, bounds, everybody):
        rows.append(arrival)
        if len(rows) % SAID_ROWS == 0:
            say(len(rows))
    rows.sort(key=lambda arrival: arrival.at_s)
    if (early_s := rows[0].at_s) < 0:
        rows = [replace(row, at_s=round(row.at_s - early_s, 6)) for row in rows]
    return rows


def write(arrivals: Iterable[Arrival], file: IO[bytes], *, tenants: bool = False) -> int:
    """Mooncake JSON lines; how many.  Whole milliseconds, as in the published files, and no field
    that load generators would not know, unless `tenants` asks for ours."""
    count = 0
    for arrival in arrivals:
        row: dict[str, object] = {
            "timestamp": round(arrival.at_s * 1000),
            "input_length": arrival.prompt_tokens,
            "output_length": arrival.output_tokens,
        }
        if arrival.prefix:
            row["hash_ids"] = arrival.prefix
        if tenants:
            row["tenant"] = arrival.tenant
        file.write(msgspec.json.encode(row) + b"\n")
        count += 1
    return count


def _numbered(path: Path, bounds: Bounds, everybody: str) -> Iterator[tuple[int, Arrival]]:
    """Rows with their line numbers, times from the file's zero.  At least one, or TraceError."""
    form: Format | None = None
    zero_s: float | None = None
    number = rows = 0
    with path.open("rb") as raw:
        for number, text in lines(raw, path.name, bounds):
            if not text or text.isspace():
                continue
            try:
                if form is None:
                    form = recognise(text, bounds.tokens, everybody)
                    if form.headed:
                        continue
                arrival = form.parse(text)
            except BadRow as bad:
                raise TraceError(path.name, number, bad.wrong, bad.expected) from None
            rows += 1
            if rows > bounds.rows:
                raise TraceError(
                    path.name,
                    number,
                    "the trace goes on",
                    f"at most {bounds.rows:,} rows: a shorter part of it",
                )
            if zero_s is None:
                zero_s = arrival.at_s if arrival.at_s >= _DATE_S else 0.0
            if zero_s:  # microseconds are what a float holds of a date
                arrival = replace(arrival, at_s=round(arrival.at_s - zero_s, 6))
            yield number, arrival
    if not rows:
        what = "the file is empty" if form is None else "there is a header and nothing below it"
        raise TraceError(path.name, max(number, 1), what, "at least one request")


def lines(raw: IO[bytes], name: str, bounds: Bounds) -> Iterator[tuple[int, str]]:
    """Lines without their ends, with their numbers from 1; none longer, and no more, than allowed."""
    zipped = raw.read(2) == _GZIP
    raw.seek(0)
    file: IO[bytes] = gzip.GzipFile(fileobj=raw) if zipped else raw  # type: ignore[assignment]  # reads as one
    left = bounds.file_bytes
    number = 0
    while True:
        number += 1
        try:
            line = file.readline(min(bounds.line_bytes, left) + 1)
        except (gzip.BadGzipFile, EOFError, zlib.error):
            raise TraceError(
                name, number, "the gzip data is damaged or cut short", "a whole gzip file"
            ) from None
        if not line:
            return
        left -= len(line)
        if left < 0:
            raise TraceError(
                name, number, "the file is too large", f"at most {bounds.file_bytes} bytes unpacked"
            )
        if len(line) > bounds.line_bytes:
            raise TraceError(
                name, number, "the line is too long", f"at most {bounds.line_bytes} bytes"
            )
        try:
            text = line.decode()
        except UnicodeDecodeError:
            raise TraceError(name, number, "it is no UTF-8", "a text file in UTF-8") from None
        yield number, (text.removeprefix("\ufeff") if number == 1 else text).rstrip("\r\n")
