"""First come, first served: the baseline that every claim is measured against.

Nobody overtakes, whoever they are and whatever they ask for; a preempted sequence returns to its old
place.  Refuses to know: tenants, costs.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from operator import attrgetter
from typing import Generic

from executor.scheduler.batching import Gate
from executor.scheduler.promises import Refusal
from executor.scheduler.protocol import Charge, Limits, Moment, Plan, Turn, W
from executor.scheduler.step import Draft, cheapest

_ticket = attrgetter("ticket")


class Fcfs(Generic[W]):
    """Both queues in order of arrival."""

    __slots__ = ("_gate", "_running", "_waiting", "limits")

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._gate = Gate(limits.batching)
        self._running: list[W] = []
        self._waiting: list[W] = []

    @property
    def running(self) -> Seq[W]:
        return self._running

    @property
    def waiting(self) -> Seq[W]:
        return self._waiting

    @property
    def running_count(self) -> int:
        return len(self._running)

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def add(self, seq: W, now_ns: int) -> None:
        insort(self._waiting, seq, key=_ticket)

    def refuses(self, seq: W, moment: Moment) -> Refusal | None:
        """It promises nothing."""

    def returns(self, seq: W, now_ns: int) -> Turn | None:
        """It keeps no places."""

    def turns_away(self, seq: W, retry_ms: int, now_ns: int) -> int:
        return retry_ms

    def remove(self, seq: W, now_ns: int) -> None:
        if not _take(self._running, seq):
            found = _take(self._waiting, seq)
            assert found, "removed twice"

    def plan(self, moment: Moment) -> Plan[W]:
        draft = Draft(self._running, self._waiting, moment, self.limits, self._gate)
        draft.grow(cheapest)
        for seq in draft.begun:
            if not draft.go_on(seq):
                break
        for seq in self._order(draft):
            if not draft.open:
                break
            if draft.invites(seq) and not (draft.fits(seq) and draft.admit(seq)):
                break
        decided = draft.plan()
        for seq in decided.preempted:
            self.remove(seq, moment.now_ns)
            insort(self._waiting, seq, key=_ticket)
        for seq in decided.admitted:
            self.remove(seq, moment.now_ns)
            insort(self._running, seq, key=_ticket)
        return decided

    def _order(self, draft: Draft[W]) -> Seq[W]:
        """Of those who wait."""
        return self._waiting

    def renew(self, limits: Limits) -> None:
        self.limits = limits

    def charge(self, bill: Iterable[Charge[W]]) -> None:
        """First come, first served owes nobody."""


def _take(queue: list[W], seq: W) -> bool:
    at = bisect_left(queue, seq.ticket, key=_ticket)
    if at == len(queue) or queue[at] is not seq:
        return False
    del queue[at]
    return True
