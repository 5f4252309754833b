"""Start-time fair queueing: whose turn it is among those who share something, by weight.

Theory of operation.  Each flow has a start time S, advanced by cost / weight as it is served; the
smallest S goes first.  A level's virtual time v is the start time of whoever was served last.  A flow
that comes, or comes back, starts at max(S, v): idleness earns nothing, and a debt is not forgotten
while others wait.  A flow that is gone and owes nothing (S ≤ v) is not kept, so thousands cost nothing
while they are idle.  For any two backlogged flows |W_f/w_f − W_g/w_g| ≤ l_f/w_f + l_g/w_g, where l is
the largest single cost; no capacity need be known for it.

Refuses to know: what is served, in which unit, who the flows are, time.
Source: Goyal, Vin and Cheng, "Start-time Fair Queueing", SIGCOMM 1996; SCHEDULER.md §1.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True, eq=False)
class Flow(Generic[K]):
    """One of those who share.  `holds`: how many things it has here; at 0 it is idle."""

    key: K
    weight: float
    start: float
    holds: int = 0


class Level(Generic[K]):
    """The flows below one node.  Each operation costs O(log flows), amortised."""

    __slots__ = ("_debts", "_flows", "_order", "active", "virtual", "weight")

    def __init__(self) -> None:
        self.virtual = 0.0
        self.active = 0
        self.weight = 0.0  # of all that are active
        self._flows: dict[K, Flow[K]] = {}
        self._debts: list[tuple[float, int, K]] = []  # of the idle, until v has passed them
        self._order = count()

    def __len__(self) -> int:
        """Flows that are remembered: the active, and the idle that owe."""
        return len(self._flows)

    def get(self, key: K) -> Flow[K] | None:
        return self._flows.get(key)

    def enter(self, key: K, weight: float, start: float | None = None) -> Flow[K]:
        """One more thing of `key` is here.  The weight said last counts from now on.  A flow that is not
        remembered begins at `start`, or now."""
        assert weight > 0
        flow = self._flows.get(key)
        if flow is None:
            flow = self._flows[key] = Flow(key, weight, self.virtual if start is None else start)
        if flow.holds:
            self.weight -= flow.weight
        else:
            self.active += 1
        flow.weight = weight
        self.weight += weight
        flow.holds += 1
        return flow

    def lift(self, flow: Flow[K]) -> None:
        """It waits to be served, after a while in which it did not: no credit for that while."""
        flow.start = max(flow.start, self.virtual)

    def advance(self, start: float) -> None:
        """Who started at `start` is being served, and nobody who waits is before that."""
        if start > self.virtual:
            self.virtual = start
            self._forget()

    def charge(self, flow: Flow[K], cost: float) -> None:
        """Negative: a refund of what was charged before."""
        flow.start += cost / flow.weight

    def leave(self, flow: Flow[K]) -> None:
        """One thing less."""
        assert flow.holds > 0
        flow.holds -= 1
        if flow.holds:
            return
        self.active -= 1
        self.weight = self.weight - flow.weight if self.active else 0.0
        if not self.active:
            self._rest()
        elif flow.start <= self.virtual:
            del self._flows[flow.key]
        else:
            heappush(self._debts, (flow.start, next(self._order), flow.key))

    def _rest(self) -> None:
        """Nobody is here, so nobody keeps anybody waiting and nobody owes: at the end of a busy period
        v is the largest finish."""
        self.virtual = max(self.virtual, *(flow.start for flow in self._flows.values()))
        self._flows.clear()
        self._debts.clear()

    def _forget(self) -> None:
        while self._debts and self._debts[0][0] <= self.virtual:
            key = heappop(self._debts)[2]
            flow = self._flows.get(key)
            if flow is not None and not flow.holds and flow.start <= self.virtual:
                del self._flows[key]


class Turns(Generic[K]):
    """Those that wait at a level, least start time first; first come first on a tie.

    A start time may rise unseen (the entry is corrected when it surfaces); where one falls, `refresh`."""

    __slots__ = ("_heap", "_order", "_seen")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Flow[K]]] = []
        self._seen: dict[
            K, int
        ] = {}  # the number of each one's entry in the heap; others are stale
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
        if len(self._heap) > 2 * len(self._seen) + 64:
            self._heap = [each for each in self._heap if self._seen.get(each[2].key) == each[1]]
            self._heap.sort(key=lambda each: each[:2])

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

    def take(self) -> Flow[K] | None:
        """The first, removed."""
        flow = self.first()
        if flow is not None:
            heappop(self._heap)
            del self._seen[flow.key]
        return flow

    def _push(self, flow: Flow[K]) -> None:
        self._seen[flow.key] = number = next(self._order)
        heappush(self._heap, (flow.start, number, flow))
