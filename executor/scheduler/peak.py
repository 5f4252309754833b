"""The most memory that some requests will hold at once, if each says what is expected of it, a token a
step: when the i-th from the end ends, i are there, all of them longer by what it had left.

Built once a step in O(n log n), then asked in O(n) what one more, or some fewer, would make of it: those
that end after it have their peaks without it, those before it with all of it.

Refuses to know: blocks, requests.  Source: LightLLM's estimate of the peak, as SCHEDULER.md §2 asks for:
reserve predicted output.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from operator import itemgetter, sub
from typing import Final

_ahead: Final = itemgetter(0)

Row = tuple[int, int]
"""(tokens that it has left to say, tokens that it knows)"""


class Peak:
    """`slack`: tokens that each holds beyond what it knows: half a block."""

    __slots__ = ("_ends", "_held", "_known", "_slack")

    def __init__(self, rows: Iterable[Row], slack: int) -> None:
        ordered = sorted(rows, key=_ahead, reverse=True)
        self._slack = slack
        self._ends = [-ahead for ahead, _ in ordered]  # ascending
        self._known = [known for _, known in ordered]
        self._held = [  # by all up to each, when that ends
            known + count * (slack + ahead)
            for (count, (ahead, _)), known in zip(
                enumerate(ordered, 1), accumulate(self._known), strict=True
            )
        ]

    @property
    def tokens(self) -> int:
        return max(self._held, default=0)

    def tokens_with(self, ahead: int, known: int) -> int:
        at = bisect_left(self._ends, -ahead)
        longer = max(self._held[:at], default=0)
        shorter = max(map(sub, self._held[at:], self._ends[at:]), default=0)
        return max(longer, self._own(at, ahead, known), shorter + known + self._slack)

    def add(self, ahead: int, known: int) -> None:
        at = bisect_left(self._ends, -ahead)
        more = known + self._slack
        self._held[at:] = [
            self._own(at, ahead, known),
            *[
                held - end + more
                for held, end in zip(self._held[at:], self._ends[at:], strict=True)
            ],
        ]
        self._ends.insert(at, -ahead)
        self._known.insert(at, known)

    def remove(self, ahead: int, known: int) -> None:
        """One that is among them."""
        at = self._known.index(known, bisect_left(self._ends, -ahead))
        assert self._ends[at] == -ahead, "it is not among them"
        del self._ends[at], self._known[at], self._held[at]
        less = known + self._slack
        self._held[at:] = [
            held + end - less for held, end in zip(self._held[at:], self._ends[at:], strict=True)
        ]

    def without(self, rows: Iterable[Row]) -> Peak:
        """If these, which are among them, were not."""
        left = Peak((), self._slack)
        left._ends, left._known, left._held = self._ends[:], self._known[:], self._held[:]
        for each in rows:
            left.remove(*each)
        return left

    def _own(self, at: int, ahead: int, known: int) -> int:
        """What is held when one more ends, that comes in at that place."""
        before = self._held[at - 1] + at * (self._ends[at - 1] - self._slack) if at else 0
        return before + known + (at + 1) * (ahead + self._slack)
