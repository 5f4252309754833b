"""Many replicas, each step-exact, behind a router; what a tenant had elsewhere is told by gossip.

Every replica schedules for itself.  Without gossip each is fair to those who wait there, and a tenant
that waits everywhere gets more in all than one that waits at one place.  With it, every `gossip_ns` each
replica charges its tenants for what they had at the others since the last time: as if one queue had
served them, but for that delay.  A tenant that has nothing at a replica is not remembered there.

Refuses to know: what figures mean.  Source: SCHEDULER.md §4, L1; D²LPM charges by worker the same way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from math import ceil
from zlib import crc32

from executor.scheduler.fair import Fair
from executor.scheduler.protocol import Limits, Scheduler
from executor.simulation.engine import Engine
from executor.simulation.machine import Machine
from executor.simulation.outcome import Run
from executor.simulation.work import Request, SimWork

_CROWDED = 1.25  # times the mean load: then work leaves the place where its prefix lies


class Routing(StrEnum):
    ROUND_ROBIN = "round-robin"
    LEAST_LOADED = "least-loaded"
    PREFIX = "prefix"
    """A tenant's user always goes to one replica, unless it is crowded: then to the least loaded."""


class Gossiping(Fair[SimWork]):
    """Ours, that can be told what a tenant had elsewhere."""

    @property
    def remembered(self) -> int:
        """Tenants of which it knows anything."""
        return len(self._accounts.tenants)

    def elsewhere(self, tenant: str, device_ns: int) -> None:
        flow = self._accounts.tenants.get(tenant)
        if flow is not None and flow.holds:
            flow.charge(device_ns, flow.weight)


Maker = Callable[[Limits], Scheduler[SimWork]]


class Router:
    """Where a request goes, by what is at each replica (None: that one is lost)."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing
        self._turn = 0

    def place(self, request: Request, loads: Sequence[int | None]) -> int:
        here = [load for load in loads if load is not None]
        assert here, "no replica is left"
        if self._routing is Routing.ROUND_ROBIN:
            self._turn = (self._turn + 1) % len(loads)
            while loads[self._turn] is None:
                self._turn = (self._turn + 1) % len(loads)
            return self._turn
        if self._routing is Routing.PREFIX:
            home = self._home(request, loads)
            if (loads[home] or 0) <= ceil(_CROWDED * (sum(here) + 1) / len(here)):
                return home
        least = min(here)  # of several alike, another each time
        try:
            self._turn = loads.index(least, self._turn + 1)
        except ValueError:
            self._turn = loads.index(least)
        return self._turn

    @staticmethod
    def _home(request: Request, loads: Sequence[int | None]) -> int:
        """A lost one's goes to its neighbour, all others' stay where they are."""
        home = crc32(f"{request.tenant}/{request.user}".encode()) % len(loads)
        while loads[home] is None:
            home = (home + 1) % len(loads)
        return home


class Fleet:
    """`replicas` alike.  `gossip_ns`: None is never.  `make`: a replica's scheduler; only `Gossiping`
    hears of the others."""

    def __init__(
        self,
        machine: Machine,
        replicas: int,
        routing: Routing,
        gossip_ns: int | None = None,
        *,
        make: Maker = Gossiping,
        limits: Limits | None = None,
        merge_ns: int | None = None,
    ) -> None:
        assert replicas >= 1
        assert gossip_ns is None or gossip_ns > 0
        limits = limits or machine.limits()
        self._schedulers = [make(limits) for _ in range(replicas)]
        self.engines = [
            Engine(machine, each, limits, merge_ns=merge_ns) for each in self._schedulers
        ]
        self._told: list[Counter[str]] = [Counter() for _ in range(replicas)]  # device ns by tenant
        self._router = Router(routing)
        self._gossip_ns = gossip_ns

    def run(
        self,
        requests: Iterable[Request],
        until_ns: int,
        say: Callable[[int], None] = lambda _: None,
    ) -> list[Run]:
        """Requests in order of time.  `say`: the time, at each gossip."""
        gossip_ns = self._gossip_ns or until_ns
        next_ns = gossip_ns
        for request in requests:
            if request.at_ns >= until_ns:
                break
            while next_ns <= request.at_ns:
                self._gossip(next_ns)
                say(next_ns)
                next_ns += gossip_ns
            self._advance(request.at_ns)
            place = self._router.place(request, [engine.here for engine in self.engines])
            self.engines[place].offer(request)
        while next_ns <= until_ns:
            self._gossip(next_ns)
            next_ns += gossip_ns
        return [engine.run(until_ns) for engine in self.engines]

    def _advance(self, at_ns: int) -> None:
        for engine in self.engines:
            if engine.now_ns < at_ns:
                engine.run(at_ns)

    def _gossip(self, at_ns: int) -> None:
        """What each tenant had at each replica since the last time goes to all the others."""
        self._advance(at_ns)
        if self._gossip_ns is None:
            return
        had = [self._news(index) for index in range(len(self.engines))]
        whole: Counter[str] = Counter()
        for each in had:
            whole.update(each)
        for scheduler, mine in zip(self._schedulers, had, strict=True):
            if not isinstance(scheduler, Gossiping):
                continue
            for tenant, device_ns in whole.items():
                if others_ns := device_ns - mine[tenant]:
                    scheduler.elsewhere(tenant, others_ns)

    def _news(self, index: int) -> Counter[str]:
        """Counters as a gateway would have them: sums, of which the last ones are known."""
        sums = self.engines[index].seen.device_ns
        found = Counter({t: n for t, had in sums.items() if (n := had - self._told[index][t])})
        self._told[index] = Counter(sums)
        return found


def device_ns(runs: Sequence[Run], from_ns: int, to_ns: int) -> Counter[str]:
    """What each tenant had at all of them."""
    found: Counter[str] = Counter()
    for run in runs:
        for entry in run.service:
            if from_ns <= entry.at_ns < to_ns:
                found[entry.tenant] += entry.device_ns
    return found
