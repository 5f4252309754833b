"""A scheduler behind a wall: what it raises is kept here, and ends what it scheduled, not the process.

Once it has raised nobody knows what it still knows.  So it is asked no more: newcomers are not refused, nothing
is planned, and what it is told is dropped, until it is made anew, empty.  Whoever owns it looks for a `fault`
after each plan and at the end of each step, and ends those that it knew.  What it had learnt goes with it.

Refuses to know: why it raised, what becomes of its requests.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from collections.abc import Sequence as Seq
from typing import Generic, TypeVar

from executor.scheduler.promises import Refusal
from executor.scheduler.protocol import Charge, Limits, Moment, Plan, Scheduler, Turn, W

T = TypeVar("T")


class Idle(Exception):
    """It planned nothing though somebody is here, and nothing is waited for."""


class Walled(Generic[W]):
    """`inner`: the scheduler, as `make` makes it.  `fault`: what it raised since.  `failures`: how often in a row,
    with nobody in between who spoke and ended well."""

    __slots__ = ("_make", "failures", "fault", "inner")

    def __init__(self, make: Callable[[Limits], Scheduler[W]], limits: Limits) -> None:
        self._make = make
        self.failures = 0
        self.begin(limits)

    def begin(self, limits: Limits) -> None:
        """Anew, with nobody here."""
        self.inner = self._make(limits)
        self.fault: Exception | None = None

    @property
    def running(self) -> Seq[W]:
        return self.inner.running

    @property
    def waiting(self) -> Collection[W]:
        return self.inner.waiting

    @property
    def running_count(self) -> int:
        return self.inner.running_count

    @property
    def waiting_count(self) -> int:
        return self.inner.waiting_count

    def add(self, seq: W, now_ns: int) -> None:
        self._ask(lambda: self.inner.add(seq, now_ns), None)

    def returns(self, seq: W, now_ns: int) -> Turn | None:
        return self._ask(lambda: self.inner.returns(seq, now_ns), None)

    def refuses(self, seq: W, moment: Moment) -> Refusal | None:
        return self._ask(lambda: self.inner.refuses(seq, moment), None)

    def turns_away(self, seq: W, retry_ms: int, now_ns: int) -> int:
        return self._ask(lambda: self.inner.turns_away(seq, retry_ms, now_ns), retry_ms)

    def remove(self, seq: W, now_ns: int) -> None:
        self._ask(lambda: self.inner.remove(seq, now_ns), None)
        if self.fault is None and seq.generated:
            self.failures = 0

    def renew(self, limits: Limits) -> None:
        self._ask(lambda: self.inner.renew(limits), None)

    def plan(self, moment: Moment) -> Plan[W]:
        return self._ask(lambda: self.inner.plan(moment), Plan(()))

    def charge(self, bill: Iterable[Charge[W]]) -> None:
        self._ask(lambda: self.inner.charge(bill), None)

    def _ask(self, question: Callable[[], T], otherwise: T) -> T:
        if self.fault is None:
            try:
                return question()
            except Exception as caught:  # noqa: BLE001 — whatever a policy raises
                self.condemn(caught)
        return otherwise

    def condemn(self, fault: Exception) -> None:
        """It cannot be relied on any more."""
        if self.fault is None:
            self.fault = fault
            self.failures += 1
