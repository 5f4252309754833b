"""How many replicas the promises need for a trace: the least number at which enough of each class is in time.

The trace is replayed through fleets of one, two, four, … replicas, all classes together; then, for each
class that is promised something, between the last number that missed and the first that kept.  More
replicas are taken to be no worse; where a trace says otherwise (a lucky point), the answer is a number
from which on all that were tried keep, not the least one.  What was refused, or has not ended at the
horizon, missed; the horizon leaves the longest answer its time on a full machine, or at the slowest pace
that is promised.

Refuses to know: files, how a request came by its class, what a replica costs.  Source: issue 4,
`lockgate plan`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Final

from executor.contract import Workload
from executor.cost import Share
from executor.simulation.fleet import Fleet, Routing
from executor.simulation.machine import Machine
from executor.simulation.metrics_requests import Target
from executor.simulation.traces import Arrival
from executor.simulation.work import NS, Request
from executor.simulation.workloads import ALLOWED_TOKENS, of_trace

_DRAIN_S: Final = 120.0
_TOLD: Final = 100  # times in a replay


class PlanError(ValueError):
    """A trace for which nothing can be planned: what was wrong, what was expected."""


@dataclass(frozen=True, slots=True)
class Sized:
    """`needs`: replicas by class that is promised something; None if `replicas_max` do not keep it.
    `tried`: the part in time by replicas and class.  `too_long`: requests that no replica can hold, of
    any class; they missed."""

    needs: Mapping[str, int | None]
    tried: Mapping[int, Mapping[str, float]]
    too_long: int = 0

    @property
    def replicas(self) -> int | None:
        """Those that keep every promise."""
        found = [each for each in self.needs.values() if each is not None]
        return max(found) if len(found) == len(self.needs) else None

    @property
    def binding(self) -> tuple[str, ...]:
        """The classes that need so many; the others would do with fewer."""
        return tuple(name for name, each in self.needs.items() if each == self.replicas)


def plan_for(
    arrivals: Sequence[Arrival],
    machine: Machine,
    targets: Mapping[str, Target],
    *,
    workloads: tuple[Workload, ...] = (),
    part: float = 0.99,
    replicas_max: int = 64,
    routing: Routing = Routing.LEAST_LOADED,
    allowed_tokens: int = ALLOWED_TOKENS,
    say: Callable[[int, float], None] = lambda _replicas, _part: None,
) -> Sized:
    """`arrivals` in order of time; `targets` by class, "" that of a request with none.  `workloads`: the
    classes' terms, by which replicas schedule and refuse.  `say`: replicas that are being tried, and the
    part of the trace that has arrived there.  PlanError if so many never fit the machine that no number
    is enough, or none is promised anything."""
    if not arrivals:
        raise PlanError("the trace is empty; expected at least one request")
    counts = Counter(each.workload for each in arrivals)
    promised = {name: target for name, target in targets.items() if counts[name]}
    if not promised:
        raise PlanError(
            "no request of the trace is promised anything; expected some of a class that is"
        )
    fitting = _fitting(arrivals, machine, promised, part)
    requests = of_trace(fitting, allowed_tokens=allowed_tokens)
    patience_ns = max(_patience_ns(requests, machine, target) for target in promised.values())
    horizon_ns = requests[-1].at_ns + patience_ns
    tried: dict[int, dict[str, float]] = {}

    def replay(replicas: int) -> None:
        limits = machine.limits(workloads)
        fleet = Fleet(machine, replicas, routing, limits=limits, merge_ns=NS)
        runs = fleet.run(_told(requests, lambda seen: say(replicas, seen)), horizon_ns)
        met = Counter(
            record.kind
            for run in runs
            for record in run.records
            if record.kind in promised and promised[record.kind].met(record)
        )
        tried[replicas] = {name: met[name] / counts[name] for name in promised}

    def bracket(name: str) -> tuple[int, int | None]:
        """The most replicas that miss, 0 if none do, and the fewest above them that keep."""
        missed = max((n for n, parts in tried.items() if parts[name] < part), default=0)
        return missed, min((n for n in tried if n > missed), default=None)

    count = 1
    replay(count)
    while min(tried[count].values()) < part and count < replicas_max:
        count = min(2 * count, replicas_max)
        replay(count)
    for name in promised:
        missed, kept = bracket(name)
        while kept is not None and kept - missed > 1:
            replay((missed + kept) // 2)
            missed, kept = bracket(name)
    needs = {name: bracket(name)[1] for name in promised}
    return Sized(needs, tried, len(arrivals) - len(fitting))


def _fitting(
    arrivals: Sequence[Arrival], machine: Machine, promised: Collection[str], part: float
) -> list[Arrival]:
    """Those that a replica can hold: it refuses the others, however many there are of it."""
    room = machine.kv_blocks * machine.block_tokens
    fitting = [each for each in arrivals if _tokens(each) <= room]
    counts = Counter(each.workload for each in arrivals)
    fit = Counter(each.workload for each in fitting)
    if any(fit[name] < part * counts[name] for name in promised) or not fitting:
        longest = max(map(_tokens, arrivals))
        raise PlanError(
            f"{len(arrivals) - len(fitting)} of {len(arrivals)} requests never fit: the longest needs "
            f"{longest} tokens of KV memory and a replica has {room}; plan for a machine with more "
            "(--kv-tokens)"
        )
    return fitting


def _tokens(each: Arrival) -> int:
    return each.prompt_tokens + each.output_tokens


def _patience_ns(requests: Sequence[Request], machine: Machine, target: Target) -> int:
    """How long after the last arrival somebody may still end in time."""
    room = machine.kv_blocks * machine.block_tokens
    full = [Share(1, room // machine.seqs)] * machine.seqs
    token_s = min(target.tpot_s, machine.step_ns(full) / NS)
    longest = max(each.output_tokens for each in requests)
    patience_s = _DRAIN_S + longest * token_s
    return round((patience_s + (target.ttft_s if isfinite(target.ttft_s) else 0.0)) * NS)


def _told(requests: Sequence[Request], tell: Callable[[float], None]) -> Iterator[Request]:
    every = -(-len(requests) // _TOLD)
    for index, request in enumerate(requests):
        if index % every == 0:
            tell(index / len(requests))
        yield request
