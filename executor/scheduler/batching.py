"""When newcomers may join: three policies, of which one is for serving and two are for comparing with.

- continuous: whenever there is room (Orca, OSDI 2022).
- dynamic: when nothing runs, and `size` wait or the oldest has waited `wait_ms`.
- static: the same without the wait: whoever is there when the last batch has ended.

Theory of operation.  A batch opens when nothing runs.  It is of those who wait then, `size` of them at most,
in the policy's order, and takes as many steps to fill as their prompts take.  The first step that has time
left and lets nobody in closes it: they are all in, or have gone, or there is no room for the others.  Then
nobody joins until all have ended; who was put out meanwhile still belongs to it and may come back.

Refuses to know: who should join first, room, time.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, Protocol


class Batching(StrEnum):
    CONTINUOUS = "continuous"
    DYNAMIC = "dynamic"
    STATIC = "static"


@dataclass(frozen=True, slots=True)
class BatchRule:
    kind: Batching = Batching.CONTINUOUS
    size: int = 16
    wait_ms: int = 50

    def __post_init__(self) -> None:
        assert self.size >= 1
        assert self.wait_ms >= 0


ALWAYS: Final = BatchRule()


class Newcomers(NamedTuple):
    """How many may join now at most; `wake_ns`: if none, when that may be different with no news."""

    most: int
    wake_ns: int | None = None


class Waits(Protocol):
    @property
    def ticket(self) -> int: ...

    @property
    def since_ns(self) -> int: ...


class Gate:
    """Of one scheduler, asked once a step."""

    __slots__ = ("_batch", "_left", "_newest", "_rule")

    def __init__(self, rule: BatchRule) -> None:
        self._rule = rule
        self._batch: set[int] = set()  # tickets of those who came in since it opened
        self._left = 0  # places in it
        self._newest = -1  # the last ticket that was there when it opened

    def opens(self, running: int, waiting: Collection[Waits], rows: int, now_ns: int) -> Newcomers:
        """`rows`: the most that may run at once."""
        rule = self._rule
        if rule.kind is Batching.CONTINUOUS:
            return Newcomers(rows)  # rows that are free bound it too, and somebody may be put out
        if running:
            back = sum(each.ticket in self._batch for each in waiting)
            return Newcomers(self._left + back)
        self._batch, self._left = set(), 0
        size = min(rule.size, rows)
        if rule.kind is Batching.DYNAMIC and 0 < len(waiting) < size:
            due_ns = min(each.since_ns for each in waiting) + rule.wait_ms * 1_000_000
            if now_ns < due_ns:
                return Newcomers(0, due_ns)
        self._left = size
        self._newest = max((each.ticket for each in waiting), default=-1)
        return Newcomers(size)

    def invites(self, ticket: int) -> bool:
        """Whether this one may join now, if anybody may."""
        if self._rule.kind is Batching.CONTINUOUS or ticket in self._batch:
            return True
        return self._left > 0 and ticket <= self._newest

    def let_in(self, ticket: int) -> None:
        if self._rule.kind is not Batching.CONTINUOUS and ticket not in self._batch:
            self._batch.add(ticket)
            self._left -= 1

    def settle(self, *, time_left: bool) -> None:
        """The step is planned.  `time_left`: more prompts could have been computed in it."""
        if time_left:
            self._left = 0
