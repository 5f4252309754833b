"""Start-time fair queueing: whose turn it is among those who share something, by weight.

Theory of operation.  Each flow has a start time S, advanced by cost / weight as it is served; the
smallest S goes first.  A level's virtual time v is the start time of whoever was served last.  A flow
that comes, or comes back, starts at max(S, v): idleness earns nothing, and a debt is not forgotten
while others wait.  A flow that is gone and owes nothing (S ≤ v) is not kept, nor is any that is gone
while nobody waits, since its debt keeps nobody waiting: thousands cost nothing while they are idle.
For any two backlogged flows |W_f/w_f − W_g/w_g| ≤ l_f/w_f + l_g/w_g, where l is the largest single cost;
no capacity need be known for it.

Refuses to know: what is served, in which unit, who the flows are, time.
Source: Goyal, Vin and Cheng, "Start-time Fair Queueing", SIGCOMM 1996; SCHEDULER.md §1.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
_UNIT: Final = 1 << 32  # of a weight: sums of them must not drift


@dataclass(slots=True, eq=False)
class Flow(Generic[K]):
    """One of those who share.  `holds`: how many things it has here; at 0 it is idle.  `waits`: how many
    of them wait.  `owes`: it is among those of whom a debt is remembered."""

    key: K
    weight: float
    start: float
    holds: int = 0
    waits: int = 0
    owes: bool = False

    def charge(self, cost: float, weight: float) -> None:
        """Negative: a refund of what was charged before, by the same weight."""
        self.start += cost / weight


class Level(Generic[K]):
    """The flows below one node.  Each operation costs O(log flows), amortised."""

    __slots__ = ("_debts", "_flows", "_order", "_units", "active", "virtual", "waiting")

    def __init__(self) -> None:
        self.virtual = 0.0
        self.active = 0
        self.waiting = 0  # flows of which something waits
        self._units = (
            0  # the weight of all that are active, in whole parts: nothing is rounded away
        )
        self._flows: dict[K, Flow[K]] = {}
        self._debts: list[tuple[float, int, Flow[K]]] = []  # of the idle, until v has passed them
        self._order = count()

    def __len__(self) -> int:
        """Flows that are remembered: the active, and the idle that owe."""
        return len(self._flows)

    @property
    def weight(self) -> float:
        """Of all that are active."""
        return self._units / _UNIT

    def get(self, key: K) -> Flow[K] | None:
        return self._flows.get(key)

    def enter(self, key: K, weight: float) -> Flow[K]:
        """One more thing of `key` is here.  The weight said last counts from now on."""
        flow = self._flows.get(key)
        if flow is None:
            flow = self._flows[key] = Flow(key, weight, self.virtual)
        if flow.holds:
            self._units -= _units(flow.weight)
        else:
            self.active += 1
        flow.weight = weight
        self._units += _units(weight)
        flow.holds += 1
        return flow

    def wait(self, flow: Flow[K]) -> None:
        """One thing of it waits.  No credit for a while in which nothing did."""
        assert flow.waits < flow.holds
        if not flow.waits:
            self.waiting += 1
            flow.start = max(flow.start, self.virtual)
        flow.waits += 1

    def go(self, flow: Flow[K]) -> None:
        """One thing of it waits no longer."""
        assert flow.waits > 0
        flow.waits -= 1
        if not flow.waits:
            self.waiting -= 1
            if not self.waiting:
                self._forget()

    def advance(self, start: float) -> None:
        """Who started at `start` is being served, and nobody who waits is before that."""
        if start > self.virtual:
            self.virtual = start
            self._forget()

    def leave(self, flow: Flow[K]) -> None:
        """One thing less."""
        assert flow.holds > 0
        flow.holds -= 1
        if flow.holds:
            return
        assert not flow.waits
        self.active -= 1
        self._units -= _units(flow.weight)
        self._settle(flow)

    def _settle(self, flow: Flow[K]) -> None:
        """It is idle: remembered only if it owes while somebody waits."""
        if flow.owes:
            return
        if self.waiting and flow.start > self.virtual:
            flow.owes = True
            heappush(self._debts, (flow.start, next(self._order), flow))
        else:
            del self._flows[flow.key]

    def _forget(self) -> None:
        """Debts that v has passed; all of them if nobody waits."""
        while self._debts and (not self.waiting or self._debts[0][0] <= self.virtual):
            flow = heappop(self._debts)[2]
            flow.owes = False
            if not flow.holds:
                self._settle(flow)  # it may owe more by now


def _units(weight: float) -> int:
    assert weight > 0
    over, under = weight.as_integer_ratio()
    return max(1, over * _UNIT // under)


class Turns(Generic[K]):
    """Those that wait at a level, least start time first; first come first on a tie.

    A start time may rise unseen (the entry is corrected when it surfaces); where one falls, `refresh`."""

    __slots__ = ("_heap", "_order", "_seen")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Flow[K]]] = []
        self._seen: dict[K, int] = {}  # the number of each one's entry; others are stale
        self._order = count()

    def __len__(self) -> int:
        return len(self._seen)

    def __contains__(self, key: K) -> bool:
        return key in self._seen

    def add(self, flow: Flow[K]) -> None:
        if flow.key not in self._seen:
            self._push(flow)

    def drop(self, key: K) -> None:
        """Nothing if it is not here."""
        self._seen.pop(key, None)
        self._tidy()

    def refresh(self, flow: Flow[K]) -> None:
        """Its start time fell."""
        if flow.key in self._seen:
            self._push(flow)

    def first(self) -> Flow[K] | None:
        heap, seen = self._heap, self._seen
        while heap:
            start, number, flow = heap[0]
            if seen.get(flow.key) != number:
                heappop(heap)
            elif flow.start != start:
                heappop(heap)
                self._push(flow)
            else:
                return flow
        return None

    def within(self, start: float, most: int) -> list[Flow[K]]:
        """Of those that start no later than `start` the first, `most` of them, in order."""
        taken: list[tuple[float, int, Flow[K]]] = []
        while len(taken) < most and (flow := self.first()) is not None and flow.start <= start:
            taken.append(heappop(self._heap))
        for each in taken:
            heappush(self._heap, each)
        return [flow for _, _, flow in taken]

    def _push(self, flow: Flow[K]) -> None:
        self._seen[flow.key] = number = next(self._order)
        heappush(self._heap, (flow.start, number, flow))
        self._tidy()

    def _tidy(self) -> None:
        """Stale entries never outnumber the others by much."""
        if len(self._heap) > 2 * len(self._seen) + 64:
            self._heap = [each for each in self._heap if self._seen.get(each[2].key) == each[1]]
            heapify(self._heap)
