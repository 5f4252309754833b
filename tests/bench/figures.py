"""What one request showed, and how many of them become one row.  Pure: no clock, no I/O.

Definitions, those of the usual serving benchmarks: output tokens/s = tokens of all finished
requests over the time from the first request sent to the last answer's end.  TTFT = request sent
to first text.  ITL = gap between two arrivals of text (a server that coalesces tokens shows fewer
and longer gaps, so TPOT = (end − first text) / (tokens − 1) stands beside it).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Answer:
    """One request, timed.  `error` None: it ended as asked.  Tokens are what the server counted and
    the stream said; `asked_tokens` is what an answer that ignores its end token must reach."""

    asked_tokens: int
    sent_s: float
    ended_s: float
    first_s: float | None = None
    gaps_s: tuple[float, ...] = ()
    status: int | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    finish: str | None = None
    error: str | None = None
    request_id: str | None = None

    @property
    def whole(self) -> bool:
        return self.error is None and self.output_tokens == self.asked_tokens


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of one run at one concurrency.  None where nothing was measured."""

    concurrency: int
    requests: int
    errors: int
    wall_s: float
    input_tokens: int
    output_tokens: int
    output_per_s: float
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    itl_p50_ms: float | None
    itl_p99_ms: float | None
    tpot_p50_ms: float | None
    client_cpu_share: float  # of one core
    gateway_cpu_ms: float | None = None  # a request
    executor_cpu_share: float | None = None  # of one core; 2.0 is two cores


def percentile(values: Sequence[float], q: float) -> float | None:
    """Linear between ranks, as numpy's default; None of nothing."""
    assert 0 <= q <= 100
    if not values:
        return None
    ordered = sorted(values)
    at = (len(ordered) - 1) * q / 100
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def row(answers: Sequence[Answer], *, concurrency: int, client_cpu_s: float) -> Row:
    assert answers
    good = [a for a in answers if a.whole]
    wall_s = max(a.ended_s for a in answers) - min(a.sent_s for a in answers)
    ttft = [a.first_s - a.sent_s for a in good if a.first_s is not None]
    gaps = [gap for a in good for gap in a.gaps_s]
    tpot = [
        (a.ended_s - a.first_s) / (a.output_tokens - 1)
        for a in good
        if a.first_s is not None and a.output_tokens > 1
    ]
    output = sum(a.output_tokens for a in good)
    return Row(
        concurrency=concurrency,
        requests=len(answers),
        errors=len(answers) - len(good),
        wall_s=wall_s,
        input_tokens=sum(a.input_tokens for a in good),
        output_tokens=output,
        output_per_s=output / wall_s if wall_s > 0 else 0.0,
        ttft_p50_ms=_ms(percentile(ttft, 50)),
        ttft_p99_ms=_ms(percentile(ttft, 99)),
        itl_p50_ms=_ms(percentile(gaps, 50)),
        itl_p99_ms=_ms(percentile(gaps, 99)),
        tpot_p50_ms=_ms(percentile(tpot, 50)),
        client_cpu_share=client_cpu_s / wall_s if wall_s > 0 else 0.0,
    )


def median(rows: Sequence[Row]) -> Row:
    """Each figure's median over repeats, apart from errors, which add up: none may hide."""
    assert rows
    assert len({r.concurrency for r in rows}) == 1
    values: dict[str, float | None] = {}
    for field in fields(Row):
        known = [v for r in rows if (v := getattr(r, field.name)) is not None]
        values[field.name] = statistics.median(known) if known else None
    return Row(
        **{
            **values,
            "concurrency": rows[0].concurrency,
            "requests": sum(r.requests for r in rows),
            "errors": sum(r.errors for r in rows),
            "input_tokens": sum(r.input_tokens for r in rows),
            "output_tokens": sum(r.output_tokens for r in rows),
        }  # type: ignore[arg-type]
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
