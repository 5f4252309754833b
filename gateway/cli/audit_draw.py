"""Distributions drawn as inline SVG: numbers in, elements out.  No script, no foreign font, nothing loaded.

Knows nothing of audits.  Colours are the page's CSS classes, so that they follow dark and light.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

WIDTH, HEIGHT = 360, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 10, 10, 8, 22
_POINTS_MAX = 240
_BINS = 41


def ecdfs(named: Sequence[tuple[str, Sequence[float]]], unit: str) -> str:
    """The part of each sample that is at most x, over one axis.  `named`: CSS class and values.  The axis
    ends at the 99th part of a hundred: stalls would squeeze the rest into a corner."""
    low = min(min(values) for _, values in named)
    high = max(_quantile(sorted(values), 0.99) for _, values in named)
    lines = [
        f'<polyline class="{name}" points="{_steps(sorted(values), low, high)}"/>'
        for name, values in named
    ]
    return _frame(low, high, unit, "".join(lines))


def histogram(values: Sequence[float], unit: str, band: float | None = None) -> str:
    """Counts over x, zero marked.  `band`: ± what counts as none is shaded."""
    ordered = sorted(values)
    reach = max(abs(_quantile(ordered, 0.01)), abs(_quantile(ordered, 0.99)), band or 0.0) or 1.0
    low, high = -1.05 * reach, 1.05 * reach
    edges = [low + (high - low) * at / _BINS for at in range(_BINS + 1)]
    counts = [bisect_right(ordered, b) - bisect_right(ordered, a) for a, b in pairwise(edges)]
    tallest = max(*counts, 1)
    parts = []
    if band:
        left, right = _x(-band, low, high), _x(band, low, high)
        parts.append(
            f'<rect class="band" x="{left:.1f}" y="{_TOP}" width="{right - left:.1f}" '
            f'height="{HEIGHT - _TOP - _BOTTOM}"/>'
        )
    for (a, b), count in zip(pairwise(edges), counts, strict=True):
        if count:
            x, y = _x(a, low, high), _y(count / tallest)
            parts.append(
                f'<rect class="bar" x="{x:.1f}" y="{y:.1f}" width="{_x(b, low, high) - x - 0.5:.1f}" '
                f'height="{_y(0) - y:.1f}"/>'
            )
    zero = _x(0, low, high)
    parts.append(
        f'<line class="zero" x1="{zero:.1f}" x2="{zero:.1f}" y1="{_TOP}" y2="{_y(0):.1f}"/>'
    )
    return _frame(low, high, unit, "".join(parts))


def _frame(low: float, high: float, unit: str, inside: str) -> str:
    base = _y(0)
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{inside}'
        f'<line class="axis" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{base}" y2="{base}"/>'
        f'<text x="{_LEFT}" y="{HEIGHT - 6}">{low:.4g} {unit}</text>'
        f'<text class="end" x="{WIDTH - _RIGHT}" y="{HEIGHT - 6}">{high:.4g} {unit}</text></svg>'
    )


def _steps(ordered: Sequence[float], low: float, high: float) -> str:
    """A staircase of at most `_POINTS_MAX` stairs."""
    n = len(ordered)
    stride = max(1, n // _POINTS_MAX)
    points, before = [f"{_LEFT:.1f},{_y(0):.1f}"], 0.0
    for at in range(0, n, stride):
        x, part = _x(min(ordered[at], high), low, high), (at + 1) / n
        points += [f"{x:.1f},{_y(before):.1f}", f"{x:.1f},{_y(part):.1f}"]
        before = part
    return " ".join(points)


def _quantile(ordered: Sequence[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def _x(value: float, low: float, high: float) -> float:
    span = (high - low) or 1.0
    return _LEFT + (value - low) / span * (WIDTH - _LEFT - _RIGHT)


def _y(part: float) -> float:
    return _TOP + (1 - part) * (HEIGHT - _TOP - _BOTTOM)
