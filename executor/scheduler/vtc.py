"""Virtual token counters: the published fair scheduler, as its authors run it, to be compared with.

A counter a tenant, charged at admission for the prompt and in each step for what it generated, a token
of output counting twice; the least counter among those who wait goes next, in its own order of arrival;
who comes with nothing waiting is lifted to the least counter of those who wait, or to that of whoever
left last.  Who does not fit stops everybody.  No class, user or measured time enters.

Refuses to know: costs in time, shares of memory.  Source: Sheng et al., "Fairness in Serving Large
Language Models", OSDI 2024, algorithm 2; SCHEDULER.md §1.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable
from collections.abc import Sequence as Seq
from operator import attrgetter
from typing import Final, Generic

from executor.scheduler.batching import Gate
from executor.scheduler.promises import Refusal
from executor.scheduler.protocol import Charge, Limits, Moment, Plan, Turn, W
from executor.scheduler.step import Draft, cheapest

PROMPT_WEIGHT: Final = 1.0
OUTPUT_WEIGHT: Final = 2.0
_ticket = attrgetter("ticket")


class Vtc(Generic[W]):
    __slots__ = ("_counters", "_gate", "_last", "_queues", "_running", "_said", "limits")

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._gate = Gate(limits.batching)
        self._counters: dict[str, float] = {}
        self._queues: dict[str, list[W]] = {}
        self._running: list[W] = []
        self._said: dict[int, int] = {}  # generated tokens that were charged, by ticket
        self._last: str | None = None  # tenant whose queue became empty last

    @property
    def running(self) -> Seq[W]:
        return self._running

    @property
    def waiting(self) -> Collection[W]:
        return [seq for queue in self._queues.values() for seq in queue]

    @property
    def running_count(self) -> int:
        return len(self._running)

    @property
    def waiting_count(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    def add(self, seq: W, now_ns: int) -> None:
        tenant = seq.tenant
        if tenant not in self._queues:
            others = [self._counters[each] for each in self._queues]
            if others:
                floor = min(others)
            else:
                floor = 0.0 if self._last is None else self._counters[self._last]
            self._counters[tenant] = max(self._counters.get(tenant, 0.0), floor)
        insort(self._queues.setdefault(tenant, []), seq, key=_ticket)

    def refuses(self, seq: W, moment: Moment) -> Refusal | None:
        """It promises nothing."""

    def returns(self, seq: W, now_ns: int) -> Turn | None:
        """It keeps no places."""

    def turns_away(self, seq: W, retry_ms: int, now_ns: int) -> int:
        return retry_ms

    def remove(self, seq: W, now_ns: int) -> None:
        said = self._said.pop(seq.ticket, 0)
        at = bisect_left(self._running, seq.ticket, key=_ticket)
        if at < len(self._running) and self._running[at] is seq:
            self._pay(seq, OUTPUT_WEIGHT * (seq.generated - said))
            del self._running[at]
        else:
            self._leave(seq)

    def renew(self, limits: Limits) -> None:
        self.limits = limits

    def plan(self, moment: Moment) -> Plan[W]:
        self._charge_output()
        draft = Draft(self._running, self.waiting, moment, self.limits, self._gate)
        draft.grow(cheapest)
        for seq in draft.begun:
            if not draft.go_on(seq):
                break
        able = set(self._queues)
        while able and draft.open:
            tenant = min(able, key=lambda each: (self._counters[each], each))
            seq = self._queues[tenant][0]
            if not draft.invites(seq):
                able.remove(tenant)
                continue
            if not (draft.fits(seq) and draft.admit(seq)):
                break
            self._leave(seq)
            able &= self._queues.keys()
            insort(self._running, seq, key=_ticket)
            if not seq.preemptions:
                self._pay(seq, PROMPT_WEIGHT * seq.prompt_tokens)
        for seq in draft.preempted:
            self._running.remove(seq)
            insort(self._queues.setdefault(seq.tenant, []), seq, key=_ticket)
        return draft.plan()

    def charge(self, bill: Iterable[Charge[W]]) -> None:
        """Tokens are what counts here."""

    def _charge_output(self) -> None:
        for seq in self._running:
            new = seq.generated - self._said.get(seq.ticket, 0)
            if new:
                self._said[seq.ticket] = seq.generated
                self._pay(seq, OUTPUT_WEIGHT * new)

    def _pay(self, seq: W, tokens: float) -> None:
        self._counters[seq.tenant] += tokens / seq.tenant_weight

    def _leave(self, seq: W) -> None:
        queue = self._queues[seq.tenant]
        at = bisect_left(queue, seq.ticket, key=_ticket)
        assert at < len(queue), "removed twice"
        assert queue[at] is seq, "removed twice"
        del queue[at]
        if not queue:
            del self._queues[seq.tenant]
            self._last = seq.tenant
