"""Which of those who wait have waited too long: nothing of them is computed any more.

A heap of keys, so that a queue of which somebody is late in every step is not looked through in every step.
Refuses to know: what happens to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import Final

from executor.sequence import Key, Sequence

_AGAIN_NS: Final = 1_000_000_000
_SPARE: Final = 64


class Deadlines:
    """Owned by the engine.  `living`: all its requests, by key; no key is used twice."""

    __slots__ = ("_due", "_living")

    def __init__(self, living: Mapping[Key, Sequence]) -> None:
        self._living = living
        self._due: list[tuple[int, Key]] = []

    def file(self, seq: Sequence) -> None:
        if seq.deadline_ns is None:
            return
        if len(self._due) > 2 * len(self._living) + _SPARE:  # most of them have ended
            self._due = [each for each in self._due if each[1] in self._living]
            heapify(self._due)
        heappush(self._due, (seq.deadline_ns, seq.key))

    def passed(self, now_ns: int) -> Iterator[Key]:
        """Those whose prefill should have begun by now and did not."""
        while self._due and self._due[0][0] <= now_ns:
            _, key = heappop(self._due)
            seq = self._living.get(key)
            if seq is None or seq.high_water:
                continue
            if seq.started:  # by its leader, as long as that lives
                heappush(self._due, (now_ns + _AGAIN_NS, key))
            else:
                yield key
