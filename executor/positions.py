"""When those who wait hear their place: as it changes, but at most ten times a second except for
newcomers and those put back, since a long queue moves as a whole.

Refuses to know: why the queue changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Final

from executor.sequence import Sequence

_EVERY_NS: Final = 100_000_000


class Positions:
    """Owned by the engine."""

    def __init__(self) -> None:
        self._changed = False
        self._due_ns = 0

    def change(self, *, at_once: bool = False) -> None:
        """Somebody came, went or moved.  `at_once`: somebody new is in the queue."""
        self._changed = True
        if at_once:
            self._due_ns = 0

    def news(
        self, waiting: Callable[[], Iterable[Sequence]], now_ns: int
    ) -> Iterator[tuple[Sequence, int]]:
        """Those whose place within their tenant is not what they last heard."""
        if not self._changed or now_ns < self._due_ns:
            return
        self._changed = False
        self._due_ns = now_ns + _EVERY_NS
        for seq, place in places(waiting()):
            if seq.position != place:
                seq.position = place
                yield seq, place


def places(waiting: Iterable[Sequence]) -> Iterator[tuple[Sequence, int]]:
    """Each with its place within its tenant (0 = next); a global place would leak load."""
    ahead: dict[str, int] = {}
    for seq in sorted(waiting, key=attrgetter("ticket")):
        place = ahead.get(seq.tenant, 0)
        ahead[seq.tenant] = place + 1
        yield seq, place
