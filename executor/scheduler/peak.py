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
from operator import add, itemgetter, sub
from typing import Final

_ahead: Final = itemgetter(0)

Row = tuple[int, int]
"""(tokens that it has left to say, tokens that it knows)"""


class Peak:
    """`slack`: tokens that each holds beyond what it knows: half a block."""

    __slots__ = ("_ends", "_held", "_known", "_longer", "_slack")

    def __init__(self, rows: Iterable[Row], slack: int) -> None:
        ordered = sorted(rows, key=_ahead, reverse=True)
        self._slack = slack
        self._ends = [-ahead for ahead, _ in ordered]  # ascending
        self._known = [known for _, known in ordered]
        self._held = [  # by all up to each, when that ends
            known + count * (slack - end)
            for count, known, end in zip(
                range(1, len(ordered) + 1), accumulate(self._known), self._ends, strict=True
            )
        ]
        self._longer = list(
            map(sub, self._held, self._ends)
        )  # if one more were with them till then

    @property
    def tokens(self) -> int:
        return max(self._held, default=0)

    def tokens_with(self, ahead: int, known: int) -> int:
        at = bisect_left(self._ends, -ahead)
        longer = max(self._held[:at], default=0)
        shorter = max(self._longer[at:], default=0)
        return max(longer, self._own(at, ahead, known), shorter + known + self._slack)

    def add(self, ahead: int, known: int) -> None:
        at = bisect_left(self._ends, -ahead)
        own, more = self._own(at, ahead, known), known + self._slack
        self._ends.insert(at, -ahead)
        self._known.insert(at, known)
        self._held[at:] = [own, *[each + more for each in self._longer[at:]]]
        self._longer[at:] = map(sub, self._held[at:], self._ends[at:])

    def remove(self, ahead: int, known: int) -> None:
        """One that is among them."""
        at = self._known.index(known, bisect_left(self._ends, -ahead))
        assert self._ends[at] == -ahead, "it is not among them"
        less = known + self._slack
        self._longer[at:] = [each - less for each in self._held[at + 1 :]]
        del self._ends[at], self._known[at]
        self._held[at:] = map(add, self._longer[at:], self._ends[at:])

    def without(self, rows: Iterable[Row]) -> Peak:
        """If these, which are among them, were not."""
        left = Peak((), self._slack)
        left._ends, left._known = self._ends[:], self._known[:]
        left._held, left._longer = self._held[:], self._longer[:]
        for each in rows:
            left.remove(*each)
        return left

    def _own(self, at: int, ahead: int, known: int) -> int:
        """What is held when one more ends, that comes in at that place."""
        before = self._held[at - 1] + at * (self._ends[at - 1] - self._slack) if at else 0
        return before + known + (at + 1) * (ahead + self._slack)
