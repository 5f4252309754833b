"""All who wait and have not run: who among them may not queue yet, for a grammar or a sibling, and who has
to go when there are too many, wherever it stands.

Refuses to know: the queue, the model, what who goes is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Final

from executor.contract import Cause
from executor.grammar.seats import Seats
from executor.scheduler.lobby import Bounds, Lobby
from executor.sequence import Key, Sequence, held_bytes
from executor.siblings import Siblings

_FULL: Final = "as many requests wait already as may"


class Foyer:
    """Owned by the engine, which also talks to `seats` itself: those are of whoever runs, too."""

    def __init__(self, seats: Seats, block_tokens: int, bounds: Bounds) -> None:
        self._seats = seats
        self._siblings = Siblings(block_tokens)
        self._lobby: Lobby[Sequence] = Lobby(bounds)

    @property
    def outside(self) -> Iterator[Sequence]:
        """Those who may not queue yet."""
        return chain(self._seats.pending, self._siblings.held)

    @property
    def outside_count(self) -> int:
        return len(self._seats.pending) + self._siblings.held_count

    @property
    def count(self) -> int:
        """Those who have not run, in the queue or not."""
        return self._lobby.count

    def displaces(self, seq: Sequence) -> list[Sequence]:
        """Who would have to go for a newcomer; it alone if it is the one."""
        return self._lobby.displaces(seq, held_bytes(seq.job))

    def file(self, seq: Sequence, known: Mapping[Key, Sequence]) -> bool:
        """A newcomer.  Whether it may queue as far as grammars are concerned."""
        self._lobby.enter(seq, held_bytes(seq.job))
        self._siblings.file(seq, known)
        return not self._seats.file(seq)

    def hold(self, seq: Sequence) -> bool:
        """Whether it may not queue yet for its sibling's sake."""
        return self._siblings.hold(seq)

    def ready(self) -> Iterator[Sequence]:
        """Those whose sibling held them back and does no more."""
        return self._siblings.ready()

    def began(self, seq: Sequence, now_ns: int) -> None:
        """It runs: it is never sent away any more."""
        self._lobby.starts(seq, now_ns)

    def forget(self, seq: Sequence) -> bool:
        """It ended.  True if it stood in no queue."""
        self._lobby.leave(seq)
        pending = self._seats.forget(seq)
        return self._siblings.forget(seq) or pending

    def refused(self, seq: Sequence) -> tuple[Cause, str, int]:
        """Who is to blame for that it finds no place, or has to go, and when there will be one: its own
        tenant, unless nothing of that is here."""
        cause = Cause.BACKLOG if self._lobby.knows(seq.tenant) else Cause.OVERLOADED
        return cause, _FULL, self._lobby.retry_ms(seq)
