"""When those who wait hear their place within their tenant: newcomers and those put back at once, the others
as it changes but at most ten times a second, since a long queue moves as a whole.

What one tenant sends makes nobody look through another's queue.
Refuses to know: why the queue changed, who comes next in it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter
from typing import Final

from executor.sequence import Sequence

_EVERY_NS: Final = 100_000_000
_place: Final = attrgetter("place")


class Positions:
    """Owned by the engine."""

    __slots__ = ("_due_ns", "_lines", "_moved", "_new")

    def __init__(self) -> None:
        self._lines: dict[str, list[Sequence]] = {}  # by tenant, in order of place
        self._new: list[Sequence] = []
        self._moved: set[str] = set()
        self._due_ns = 0

    @property
    def count(self) -> int:
        return sum(len(line) for line in self._lines.values())

    def join(self, seq: Sequence) -> None:
        """It waits in the queue, for the first time or again."""
        line = self._lines.setdefault(seq.tenant, [])
        if line and line[-1].place > seq.place:
            self._moved.add(seq.tenant)
        insort(line, seq, key=_place)
        seq.position = None
        self._new.append(seq)

    def leave(self, seq: Sequence) -> None:
        """It waits no longer.  Nothing if it did not."""
        line = self._lines.get(seq.tenant, [])
        at = bisect_left(line, seq.place, key=_place)
        if at == len(line) or line[at] is not seq:
            return
        del line[at]
        if line:
            self._moved.add(seq.tenant)
        else:
            del self._lines[seq.tenant]

    def news(self, now_ns: int) -> Iterator[tuple[Sequence, int]]:
        """Those whose place is not what they last heard; 0 is next.  A global place would leak load."""
        new, self._new = self._new, []
        for seq in new:
            line = self._lines.get(seq.tenant, [])
            at = bisect_left(line, seq.place, key=_place)
            if at < len(line) and line[at] is seq:
                yield from self._tell(seq, at)
        if not self._moved or now_ns < self._due_ns:
            return
        moved, self._moved = self._moved, set()
        self._due_ns = now_ns + _EVERY_NS
        for tenant in sorted(moved):
            for place, seq in enumerate(self._lines.get(tenant, ())):
                yield from self._tell(seq, place)

    @staticmethod
    def _tell(seq: Sequence, place: int) -> Iterator[tuple[Sequence, int]]:
        if seq.position != place:
            seq.position = place
            yield seq, place
