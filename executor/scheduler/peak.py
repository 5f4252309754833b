"""The most memory that some requests will hold at once, if each says what is expected of it, a token a
step: when the i-th from the end ends, i are there, all of them longer by what it had left.

Built once in O(n log n), then asked in O(log n) what one more would make of it: those that end after it
have their peaks without it, those before it with all of it.

Refuses to know: blocks, requests.  Source: LightLLM's estimate of the peak, as SCHEDULER.md §2 asks for:
reserve predicted output.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate

Row = tuple[int, int]
"""(tokens that it has left to say, tokens that it knows)"""


class Peak:
    """`slack`: tokens that each holds beyond what it knows: half a block."""

    __slots__ = ("_after", "_aheads", "_before", "_known", "_slack")

    def __init__(self, rows: Iterable[Row], slack: int) -> None:
        ordered = sorted(rows, reverse=True)
        self._slack = slack
        self._aheads = [-ahead for ahead, _ in ordered]  # ascending
        self._known = [0, *accumulate(known for _, known in ordered)]
        held = [
            self._known[count] + count * (slack + ahead)
            for count, (ahead, _) in enumerate(ordered, 1)
        ]
        self._before = [0, *accumulate(held, max)]
        longer = [each + ahead for each, (ahead, _) in zip(held, ordered, strict=True)]
        self._after = [*accumulate(reversed(longer), max)]
        self._after.reverse()

    @property
    def tokens(self) -> int:
        return self._before[-1]

    def tokens_with(self, ahead: int, known: int) -> int:
        at = bisect_left(self._aheads, -ahead)
        own = self._known[at] + known + (at + 1) * (ahead + self._slack)
        shorter = self._after[at] + known + self._slack if at < len(self._after) else 0
        return max(self._before[at], own, shorter)
