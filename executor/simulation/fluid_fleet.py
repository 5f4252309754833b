"""A thousand replicas as fluids behind a router: gossip, clients that lose patience, replicas that fail.

Theory of operation.  One heap of what will happen; at one instant: replicas come and go, requests end,
clients leave or come back, counters are told.  Requests are drawn as they are needed.  A replica is in the
heap with the next thing that happens in it; an entry of which its replica says another time by now is
stale.  What is known of a tenant is what is here of it: nothing is kept of who left.

Whose client has no first token after `wait_ns` comes again, or gives up after `tries`.  With its ticket
kept that finds the request where it is; without, the old one is cancelled and a new one goes to the end of
its user's queue, wherever the router says.  What a lost replica had is sent again at once, by the gateway
(its ticket kept) or by the client.

Refuses to know: figures.  Source: SCHEDULER.md §2 "Retries", §4; issue 4.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any, Final

from executor.scheduler.protocol import Limits
from executor.simulation.fleet import Gossiping, Maker, Router, Routing
from executor.simulation.fluid import Replica, Row, fitted
from executor.simulation.fluid_outcome import Felt, Loss, Patience, Sample, Tally
from executor.simulation.machine import Machine
from executor.simulation.metrics_requests import Ending
from executor.simulation.work import Request, SimWork

_SEED: Final = 1  # of the steps that rates are fitted to


class _Happening(IntEnum):
    LOSE = 0
    RETURN = 1
    FLOW = 2
    PATIENCE = 3
    AGAIN = 4
    GOSSIP = 5
    SAMPLE = 6


@dataclass(slots=True, eq=False)
class _Life:
    """A request until it ends.  `row`: at `replica`; None while its client stays away."""

    request: Request
    ticket: int
    tries: int = 1
    replica: int = -1
    row: Row | None = None
    first_ns: int | None = None
    device_ns: int = 0


@dataclass(slots=True)
class _Queue:
    """Of a tenant: how many wait, at least one since `since_ns`."""

    since_ns: int
    waiting: int = 0


class FluidFleet:
    """As `Fleet`.  `ended` hears of each request, `sampled` every `sample_ns`."""

    def __init__(
        self,
        machine: Machine,
        replicas: int,
        routing: Routing,
        gossip_ns: int | None = None,
        *,
        make: Maker = Gossiping,
        limits: Limits | None = None,
        patience: Patience | None = None,
        losses: Sequence[Loss] = (),
        ended: Callable[[Felt], None] = lambda _: None,
        sampled: Callable[[Sample], None] = lambda _: None,
        sample_ns: int | None = None,
    ) -> None:
        assert replicas >= 1
        self.tally = Tally()
        self._limits = limits or machine.limits()
        self._rates = fitted(machine, self._limits, Random(_SEED))  # noqa: S311  # a simulation
        self._machine, self._make = machine, make
        self._router = Router(routing)
        self._replicas = [self._fresh(0) for _ in range(replicas)]
        self._lives: list[dict[int, _Life]] = [{} for _ in range(replicas)]
        self._loads: list[int | None] = [0] * replicas
        self._due: list[int | None] = [None] * replicas
        self._news: list[Counter[str]] = [Counter() for _ in range(replicas)]
        self._gossip_ns, self._sample_ns = gossip_ns, sample_ns
        self._patience = patience
        self._ended, self._sampled = ended, sampled
        self._agenda: list[tuple[int, _Happening, int, Any]] = []
        self._order, self._tickets = count(), count()
        self._queues: dict[str, _Queue] = {}
        self._away: dict[int, _Life] = {}  # whose client will come again
        self._window: Counter[str] = Counter()
        self._sampled_ns = 0
        for loss in losses:
            self._plan(loss.at_ns, _Happening.LOSE, loss.replicas)
            if loss.back_ns is not None:
                self._plan(loss.back_ns, _Happening.RETURN, loss.replicas)

    def run(self, requests: Iterable[Request], until_ns: int) -> Tally:
        """Requests in order of time."""
        for every_ns, what in (
            (self._gossip_ns, _Happening.GOSSIP),
            (self._sample_ns, _Happening.SAMPLE),
        ):
            if every_ns is not None:
                self._plan(every_ns, what, every_ns)
        for request in requests:
            if request.at_ns >= until_ns:
                break
            self._happen(request.at_ns)
            self.tally.arrived += 1
            self.tally.happened += 1
            self._send(_Life(request, next(self._tickets)), request.at_ns)
        self._happen(until_ns)
        self._collect(until_ns)
        for replica in self._replicas:
            self._close(replica)
        self.tally.left = sum(map(len, self._lives)) + len(self._away)
        return self.tally

    @property
    def remembered(self) -> int:
        """Tenants of which anything is known anywhere, counted at each replica."""
        schedulers = (each.scheduler for each in self._replicas)
        return sum(each.remembered for each in schedulers if isinstance(each, Gossiping))

    def _fresh(self, now_ns: int) -> Replica:
        scheduler = self._make(self._limits)
        return Replica(self._machine, self._limits, scheduler, self._rates, now_ns)

    def _plan(self, at_ns: int, what: _Happening, of: Any) -> None:
        heappush(self._agenda, (at_ns, what, next(self._order), of))

    def _happen(self, until_ns: int) -> None:
        """All that happens until then, then included."""
        agenda = self._agenda
        while agenda and agenda[0][0] <= until_ns:
            at_ns, what, _, of = heappop(agenda)
            if what is _Happening.FLOW:
                if self._due[of] == at_ns:
                    self.tally.happened += 1
                    self._due[of] = None
                    self._advance(of, at_ns)
                    self._decide(of, at_ns)
                continue
            self.tally.happened += 1
            match what:
                case _Happening.PATIENCE:
                    life, tries = of
                    self._lose_patience(life, tries, at_ns)
                case _Happening.AGAIN:
                    del self._away[of.ticket]
                    self._send(of, at_ns)
                case _Happening.GOSSIP:
                    self._gossip(at_ns)
                    self._plan(at_ns + of, what, of)
                case _Happening.SAMPLE:
                    self._sample(at_ns)
                    self._plan(at_ns + of, what, of)
                case _Happening.LOSE:
                    self._lose(of, at_ns)
                case _Happening.RETURN:
                    for index in of:
                        self._loads[index] = 0

    # A replica

    def _advance(self, index: int, now_ns: int) -> None:
        for row in self._replicas[index].advance(now_ns):
            life = self._lives[index][row.work.ticket]
            self._take_out(life)
            self._end(life, Ending.FINISHED, now_ns)

    def _decide(self, index: int, now_ns: int) -> None:
        replica = self._replicas[index]
        for row in replica.decide():
            self._waits(row.work.tenant, 1 if row.waits else -1, now_ns)
        due_ns = replica.next_ns()
        if due_ns is not None and due_ns != self._due[index]:
            self._plan(due_ns, _Happening.FLOW, index)
        self._due[index] = due_ns

    def _waits(self, tenant: str, more: int, now_ns: int) -> None:
        queue = self._queues.get(tenant)
        if queue is None:
            queue = self._queues[tenant] = _Queue(now_ns)
        queue.waiting += more
        if not queue.waiting:
            del self._queues[tenant]

    def _take_out(self, life: _Life) -> None:
        """It is at its replica no longer."""
        assert life.row is not None
        load = self._loads[life.replica]
        assert load is not None
        self._loads[life.replica] = load - 1
        del self._lives[life.replica][life.ticket]
        life.first_ns = life.row.first_ns if life.first_ns is None else life.first_ns
        life.device_ns = life.row.charged_ns
        life.row = None

    # A request

    def _send(self, life: _Life, now_ns: int) -> None:
        request = life.request
        index = life.replica = self._router.place(request, self._loads)
        self._advance(index, now_ns)
        work = SimWork(request, life.ticket, now_ns)
        life.row = self._replicas[index].add(work, request.output_tokens)
        self._lives[index][life.ticket] = life
        self._loads[index] = (self._loads[index] or 0) + 1
        self._waits(request.tenant, 1, now_ns)
        self._decide(index, now_ns)
        self._wait_for(life, now_ns)

    def _wait_for(self, life: _Life, now_ns: int) -> None:
        if self._patience is not None and life.first_ns is None:
            self._plan(now_ns + self._patience.wait_ns, _Happening.PATIENCE, (life, life.tries))

    def _lose_patience(self, life: _Life, tries: int, now_ns: int) -> None:
        assert self._patience is not None
        if life.row is None or life.tries != tries:
            return
        self._advance(life.replica, now_ns)
        if life.row is None or life.row.first_ns is not None:
            return
        if self._patience.keeps and tries < self._patience.tries:
            life.tries += 1
            self.tally.attached += 1
            self._wait_for(life, now_ns)
            return
        index = life.replica
        self._cancel(life, now_ns)
        self._decide(index, now_ns)
        self._come_again(life, now_ns)

    def _cancel(self, life: _Life, now_ns: int) -> None:
        row = life.row
        assert row is not None
        self._replicas[life.replica].drop(row)
        self.tally.wasted_ns += row.cost_ns
        if row.waits:
            self._waits(life.request.tenant, -1, now_ns)
        self._take_out(life)

    def _come_again(self, life: _Life, now_ns: int) -> None:
        """As a new one, if its client has not had enough."""
        assert self._patience is not None
        if life.tries >= self._patience.tries:
            self._end(life, Ending.CANCELLED, now_ns)
            return
        life.tries += 1
        life.ticket = next(self._tickets)
        self._away[life.ticket] = life
        self.tally.again += 1
        self._plan(now_ns + self._patience.pause_ns, _Happening.AGAIN, life)

    def _end(self, life: _Life, ending: Ending, now_ns: int) -> None:
        felt = Felt(
            life.request, ending, life.first_ns, now_ns, life.replica, life.tries, life.device_ns
        )
        self._ended(felt)

    # All replicas

    def _lose(self, replicas: Sequence[int], now_ns: int) -> None:
        lost: list[_Life] = []
        for index in replicas:
            self._advance(index, now_ns)
            here = list(self._lives[index].values())
            for life in here:
                self._cancel(life, now_ns)
            lost += here
            self._hear(index)
            self._close(self._replicas[index])
            self._replicas[index] = self._fresh(now_ns)
            self._loads[index] = self._due[index] = None
        for life in sorted(lost, key=lambda each: each.ticket):
            if self._patience is None or self._patience.keeps:
                self._send(life, now_ns)
            else:
                self._come_again(life, now_ns)

    def _close(self, replica: Replica) -> None:
        self.tally.busy_ns += replica.busy_ns
        self.tally.wasted_ns += replica.lost_ns
        self.tally.preemptions += replica.preemptions

    def _hear(self, index: int) -> None:
        """What its tenants had there since it was last heard of."""
        replica = self._replicas[index]
        if self._sample_ns is not None:
            self._window.update(replica.had)
        if self._gossip_ns is not None:
            self._news[index].update(replica.had)
        replica.had.clear()

    def _collect(self, now_ns: int) -> None:
        for index, load in enumerate(self._loads):
            if load:
                self._advance(index, now_ns)
                self._replicas[index].settle()
            self._hear(index)

    def _gossip(self, now_ns: int) -> None:
        self._collect(now_ns)
        whole: Counter[str] = Counter()
        for news in self._news:
            whole.update(news)
        for replica, news, lives in zip(self._replicas, self._news, self._lives, strict=True):
            scheduler = replica.scheduler
            if isinstance(scheduler, Gossiping):
                for tenant in {life.request.tenant for life in lives.values()}:
                    if others_ns := whole[tenant] - news[tenant]:
                        scheduler.elsewhere(tenant, others_ns)
            news.clear()

    def _sample(self, now_ns: int) -> None:
        self._collect(now_ns)
        since_ns = self._sampled_ns
        backlogged = frozenset(t for t, q in self._queues.items() if q.since_ns <= since_ns)
        self._sampled(Sample(now_ns, self._window, backlogged, len(self._queues), self.remembered))
        self._window, self._sampled_ns = Counter(), now_ns
