"""Values counted by bounds, as a histogram is read: where they lie, and their sum.

Refuses to know: what is counted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from executor.contract import Spread


class Tally:
    """`bounds` ascend; a value at a bound belongs to it."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[int]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0

    def add(self, value: int) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def spread(self) -> Spread:
        """As of now."""
        return Spread(tuple(self._counts), self._total)
