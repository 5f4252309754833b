"""Rows and reports as text for people.  Pure: returns lines, prints nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from tests.bench.figures import Row

COLUMNS = (
    ("conc", "concurrency", "{:d}"),
    ("requests", "requests", "{:d}"),
    ("errors", "errors", "{:d}"),
    ("out tok/s", "output_per_s", "{:.1f}"),
    ("TTFT p50", "ttft_p50_ms", "{:.0f}"),
    ("p99 ms", "ttft_p99_ms", "{:.0f}"),
    ("ITL p50", "itl_p50_ms", "{:.1f}"),
    ("p99 ms", "itl_p99_ms", "{:.1f}"),
    ("TPOT ms", "tpot_p50_ms", "{:.1f}"),
    ("gw CPU ms/req", "gateway_cpu_ms", "{:.1f}"),
    ("exec cores", "executor_cpu_share", "{:.2f}"),
    ("client cores", "client_cpu_share", "{:.3f}"),
)


def table(rows: Sequence[Row], names: Sequence[str] | None = None) -> list[str]:
    """`names`: one a row, as a first column."""
    head = [*([""] if names else []), *(title for title, _, _ in COLUMNS)]
    cells = [head]
    for number, row in enumerate(rows):
        line = [names[number]] if names else []
        for _, field, form in COLUMNS:
            value = getattr(row, field)
            line.append("-" if value is None else form.format(value))
        cells.append(line)
    return columns(cells)


def columns(cells: Sequence[Sequence[str]]) -> list[str]:
    """Right-aligned; every line has as many cells."""
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    return ["  ".join(c.rjust(w) for c, w in zip(line, widths, strict=True)) for line in cells]


def report(value: object) -> list[str]:
    """A frozen dataclass, a field a line; its faults last and loud."""
    lines = [
        f"{field.name.replace('_', ' ')}: {_plain(getattr(value, field.name))}"
        for field in fields(value)  # type: ignore[arg-type]
        if field.name != "faults"
    ]
    faults = getattr(value, "faults", ())
    return [*lines, *(f"FAULT: {fault}" for fault in faults), *(() if faults else ("all holds",))]


def _plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, dict):
        return ", ".join(f"{v} x {k}" for k, v in value.items()) or "none"
    return str(value)
