"""Does a series rise?  Least squares, and how sure that is.  Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

SURE = 2.0  # standard errors


@dataclass(frozen=True, slots=True)
class Trend:
    """`slope` a unit of x, with its standard error; `growth`: what the line gains over the series."""

    points: int
    mean: float
    slope: float
    error: float
    growth: float

    def rises_by(self, most: float) -> bool:
        """More than `most`, and not by chance."""
        return self.growth > most and self.slope > SURE * self.error


def trend(xs: Sequence[float], ys: Sequence[float]) -> Trend | None:
    """None of fewer than three points, through which any line goes."""
    count = len(xs)
    assert count == len(ys)
    if count < 3:
        return None
    x_mean, y_mean = sum(xs) / count, sum(ys) / count
    spread = sum((x - x_mean) ** 2 for x in xs)
    assert spread > 0
    slope = sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True)) / spread
    left = sum((y - y_mean - slope * (x - x_mean)) ** 2 for x, y in zip(xs, ys, strict=True))
    return Trend(
        points=count,
        mean=y_mean,
        slope=slope,
        error=math.sqrt(left / (count - 2) / spread),
        growth=slope * (max(xs) - min(xs)),
    )
