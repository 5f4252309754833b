"""One line of a trace file to one `Arrival`, in each of the three formats; told apart by content.

- `{"timestamp": ms, "input_length": …, "output_length": …, "hash_ids": […]}`: Mooncake (FAST'25)
- `arrival_s,tenant,prompt_tokens,output_tokens`: VTC's arena trace, sampled ServeGen; ours
- `TIMESTAMP,ContextTokens,GeneratedTokens`: the Azure LLM inference traces

In the first two a row may also say its `class` of work (and `tenant` in a Mooncake one): ours.

Columns are found by name, in any order and case; those that nobody here knows are not looked at.
Numbers are plain ASCII decimals: no NaN, no infinity, no digit of another script, no underscore.
A refusal never repeats what stood in the file: a column that slipped may hold somebody's text.

Refuses to know: files, line numbers, the order of rows.  Source: ../shared/traces/README.md.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec

from executor.simulation.quoting import misfit

SECONDS_MAX: Final = 1e11
"""Past the year 5000, should it be a date."""
_PREFIX_MAX: Final = 1 << 16
_LABEL_MAX: Final = 128
_TIME: Final = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?", re.ASCII)
_WHOLE: Final = re.compile(r"-?[0-9]{1,18}(\.0{1,9})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a trace.  `prefix`: ids of the prompt's 512-token blocks; an equal id at an
    equal place is text that could be shared.  `workload`: its class, where the row says one."""

    at_s: float
    tenant: str
    prompt_tokens: int
    output_tokens: int
    prefix: tuple[int, ...] = ()
    workload: str = ""

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


class BadRow(Exception):
    """What is wrong with a line, and what was expected there."""

    def __init__(self, wrong: str, expected: str) -> None:
        super().__init__(wrong, expected)
        self.wrong = wrong
        self.expected = expected


Parse = Callable[[str], Arrival]
"""Times as they stand in the file, in seconds."""


@dataclass(frozen=True, slots=True)
class Format:
    parse: Parse
    headed: bool
    """Whether the line that gave the format away was a header, and no row."""


def recognise(line: str, tokens_max: int, everybody: str) -> Format:
    """The format of a file by its first line that is not blank.  `everybody` is the tenant of the
    rows that name none."""
    if line.lstrip().startswith("{"):
        return Format(lambda text: _mooncake(text, tokens_max, everybody), headed=False)
    names = [name.strip().lower() for name in _cells(line)]
    at = {name: column for column, name in enumerate(names)}
    if len(at) < len(names):
        raise BadRow("a column name stands twice in the header", "each column once")
    if {"arrival_s", "prompt_tokens", "output_tokens"} <= at.keys():
        return Format(_Table(at, _OURS, _seconds, tokens_max, everybody).row, headed=True)
    if {"timestamp", "contexttokens", "generatedtokens"} <= at.keys():
        return Format(_Table(at, _AZURE, _date, tokens_max, everybody).row, headed=True)
    raise BadRow(
        "this is the start of no trace that can be read here",
        "a header `arrival_s,tenant,prompt_tokens,output_tokens`, a header "
        "`TIMESTAMP,ContextTokens,GeneratedTokens`, or JSON lines with `timestamp`, "
        "`input_length` and `output_length`, any of them gzipped or not",
    )


_OURS: Final = ("arrival_s", "prompt_tokens", "output_tokens")
_AZURE: Final = ("timestamp", "contexttokens", "generatedtokens")


@dataclass(frozen=True, slots=True)
class _Table:
    at: Mapping[str, int]
    names: tuple[str, str, str]
    time: Callable[[str, str], float]
    tokens_max: int
    everybody: str

    def row(self, line: str) -> Arrival:
        cells = _cells(line)
        if len(cells) != len(self.at):
            raise BadRow(f"it has {len(cells)} cells", f"{len(self.at)}, as the header has")
        time, prompt, output = self.names
        tenant = self._label(cells, "tenant") or self.everybody
        return Arrival(
            self.time(cells[self.at[time]], time),
            tenant,
            self._tokens(cells[self.at[prompt]], prompt),
            self._tokens(cells[self.at[output]], output),
            workload=self._label(cells, "class"),
        )

    def _label(self, cells: Sequence[str], name: str) -> str:
        """Empty where the file has no such column."""
        return _label(cells[self.at[name]], name) if name in self.at else ""

    def _tokens(self, cell: str, name: str) -> int:
        text = cell.strip()
        if _WHOLE.fullmatch(text) is None:
            raise BadRow(f"`{name}` is {_state(text)}", f"a whole number, 1 to {self.tokens_max}")
        return _bounded(int(text.partition(".")[0]), name, self.tokens_max)


def _cells(line: str) -> Sequence[str]:
    if '"' not in line:
        return line.split(",")
    try:
        return next(csv.reader([line], strict=True))
    except (csv.Error, StopIteration):
        raise BadRow(
            "its cells cannot be told apart", "comma-separated cells in one line"
        ) from None


def _state(text: str) -> str:
    return "empty" if not text else "no number of that kind"


def _bounded(tokens: int, name: str, tokens_max: int) -> int:
    if not 1 <= tokens <= tokens_max:
        where = "below 1" if tokens < 1 else f"past {tokens_max}"
        raise BadRow(f"`{name}` is {where}", f"a whole number, 1 to {tokens_max}")
    return tokens


def _seconds(cell: str, name: str) -> float:
    text = cell.strip()
    if _TIME.fullmatch(text) is None:
        raise BadRow(f"`{name}` is {_state(text)}", "seconds as a decimal number")
    return _timely(float(text), name)


def _timely(at_s: float, name: str) -> float:
    if not 0.0 <= at_s <= SECONDS_MAX:
        where = "negative" if at_s < 0 else f"past {SECONDS_MAX:.0e} s"
        raise BadRow(f"`{name}` is {where}", f"a time of 0 to {SECONDS_MAX:.0e} s")
    return at_s


def _date(cell: str, name: str) -> float:
    """Seconds since 1970, to the microsecond; a date without a zone is UTC."""
    text = cell.strip()
    try:
        at = datetime.fromisoformat(text)
        at_s = (at.replace(tzinfo=UTC) if at.tzinfo is None else at).timestamp()
    except (ValueError, OverflowError):
        raise BadRow(
            f"`{name}` is {'empty' if not text else 'no date'}", "a date `2023-11-16 18:17:03.97`"
        ) from None
    return _timely(at_s, name)


def _label(cell: str, what: str) -> str:
    name = cell.strip()
    if not name or len(name) > _LABEL_MAX or not name.isprintable():
        raise BadRow(
            f"`{what}` is {'empty' if not name else 'no label'}",
            f"1 to {_LABEL_MAX} printable characters",
        )
    return name


class _Mooncake(msgspec.Struct, rename={"workload": "class"}):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: Annotated[list[int], msgspec.Meta(max_length=_PREFIX_MAX)] = []
    tenant: str | None = None
    workload: str | None = None


_DECODER: Final = msgspec.json.Decoder(_Mooncake)


def _mooncake(line: str, tokens_max: int, everybody: str) -> Arrival:
    try:
        row = _DECODER.decode(line)
    except (msgspec.DecodeError, RecursionError) as broken:
        raise BadRow(
            misfit(broken, "JSON object"),
            "`timestamp` (ms), `input_length`, `output_length` and, if any, `hash_ids`",
        ) from None
    if any(not 0 <= block < 1 << 64 for block in row.hash_ids):
        raise BadRow("an id in `hash_ids` is out of range", "whole numbers below 2⁶⁴")
    return Arrival(
        _timely(row.timestamp / 1000, "timestamp"),
        everybody if row.tenant is None else _label(row.tenant, "tenant"),
        _bounded(row.input_length, "input_length", tokens_max),
        _bounded(row.output_length, "output_length", tokens_max),
        tuple(row.hash_ids),
        "" if row.workload is None else _label(row.workload, "class"),
    )
