"""How many replicas the promises need for a trace: the least number at which enough of each class is in time.

The trace is replayed through fleets of one, two, four, … replicas, all classes together; then, for each
class that is promised something, between the last number that missed and the first that kept.  More
replicas are taken to be no worse; where a trace says otherwise (a lucky point), the answer is a number
from which on all that were tried keep, not the least one.  A promise that a request does not keep on a
replica of its own (`alone`) is not looked for among more of them.  What was refused, or has not ended at the
horizon, missed; the horizon leaves the longest answer its time on a full machine, or at the slowest pace
that is promised.

Refuses to know: files, how a request came by its class, what a replica costs.  Source: issue 4,
`lockgate plan`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from math import isfinite
from typing import Final

from executor.contract import Workload
from executor.cost import Share
from executor.simulation.alone import Alone, at_least, beyond
from executor.simulation.fleet import Fleet, Routing
from executor.simulation.machine import Machine
from executor.simulation.metrics_requests import REFUSED, Record, Target
from executor.simulation.outcome import Run
from executor.simulation.traces import Arrival
from executor.simulation.work import NS, Request
from executor.simulation.workloads import ALLOWED_TOKENS, of_trace

REPLICAS_MAX: Final = 1024  # that anybody may ask to be tried
_DRAIN_S: Final = 120.0
_TOLD: Final = 100  # times in a replay


class PlanError(ValueError):
    """A trace for which nothing can be planned: what was wrong, what was expected."""


class Miss(Enum):
    """Why a request was not in time, the first that holds."""

    REFUSED = auto()
    LATE = auto()
    """Its first token, if any came."""
    SLOW = auto()


@dataclass(frozen=True, slots=True)
class Sized:
    """`needs`: replicas by class that is promised something; None if `replicas_max` do not keep it.
    `tried`: the part in time by replicas and class.  `too_long`: requests that no replica can hold, of
    any class; they missed.  `beyond`: of the classes that no number of replicas keeps, why.  `missed`: by
    class that was looked for and not found, of those that fit, at the most replicas."""

    needs: Mapping[str, int | None]
    tried: Mapping[int, Mapping[str, float]]
    too_long: int = 0
    beyond: Mapping[str, Alone] = field(default_factory=dict)
    missed: Mapping[str, Counter[Miss]] = field(default_factory=dict)

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
    too_long = len(arrivals) - len(fitting)
    unkept = beyond(arrivals, machine, promised, part)
    sought = [name for name in promised if name not in unkept]
    tried: dict[int, dict[str, float]] = {}
    if not sought:
        return Sized(dict.fromkeys(promised), tried, too_long, unkept)
    requests = of_trace(fitting, allowed_tokens=allowed_tokens)
    patience_ns = max(_patience_ns(requests, machine, target) for target in promised.values())
    horizon_ns = requests[-1].at_ns + patience_ns

    def replay(replicas: int) -> Mapping[str, Counter[Miss]]:
        limits = machine.limits(workloads)
        fleet = Fleet(machine, replicas, routing, limits=limits, merge_ns=NS)
        runs = fleet.run(_told(requests, lambda seen: say(replicas, seen)), horizon_ns)
        misses = _misses(requests, runs, promised)
        tried[replicas] = {
            name: (fit[name] - misses[name].total()) / counts[name] for name in promised
        }
        return misses

    def bracket(name: str) -> tuple[int, int | None]:
        """The most replicas that miss, 0 if none do, and the fewest above them that keep."""
        missed = max((n for n, parts in tried.items() if parts[name] < part), default=0)
        return missed, min((n for n in tried if n > missed), default=None)

    fit = Counter(each.workload for each in fitting)
    count = 1
    misses = replay(count)
    while any(tried[count][name] < part for name in sought) and count < replicas_max:
        count = min(2 * count, replicas_max)
        misses = replay(count)
    for name in sought:
        missed, kept = bracket(name)
        while kept is not None and kept - missed > 1:
            replay((missed + kept) // 2)
            missed, kept = bracket(name)
    needs = {name: bracket(name)[1] if name in sought else None for name in promised}
    unfound = {name: misses[name] for name in sought if needs[name] is None}
    return Sized(needs, tried, too_long, unkept, unfound)


def _misses(
    requests: Sequence[Request], runs: Sequence[Run], promised: Mapping[str, Target]
) -> Mapping[str, Counter[Miss]]:
    """By class that is promised something.  What has not ended at the horizon is late: who waits still has
    no first token, and the horizon leaves the others their time."""
    found: dict[str, Counter[Miss]] = {name: Counter() for name in promised}
    ended: Counter[str] = Counter()
    for record in (record for run in runs for record in run.records):
        ended[record.kind] += 1
        if record.kind in promised and (miss := _miss(record, promised[record.kind])) is not None:
            found[record.kind][miss] += 1
    for name, count in Counter(each.workload for each in requests).items():
        if name in promised:
            found[name][Miss.LATE] += count - ended[name]
    return found


def _miss(record: Record, target: Target) -> Miss | None:
    if target.met(record):
        return None
    if record.ending in REFUSED:
        return Miss.REFUSED
    late = record.ttft_s is None or record.ttft_s > target.ttft_s
    return Miss.LATE if late else Miss.SLOW


def _fitting(
    arrivals: Sequence[Arrival], machine: Machine, promised: Collection[str], part: float
) -> list[Arrival]:
    """Those that a replica can hold: it refuses the others, however many there are of it."""
    fitting = [each for each in arrivals if each.tokens <= machine.room_tokens]
    counts = Counter(each.workload for each in arrivals)
    fit = Counter(each.workload for each in fitting)
    if any(fit[name] < part * counts[name] for name in promised) or not fitting:
        needed = max(
            at_least(
                [each.tokens for each in arrivals if each.workload == name], part, counts[name]
            )
            for name in promised
        )
        enough = -(-int(needed) // machine.block_tokens) * machine.block_tokens
        raise PlanError(
            f"{len(arrivals) - len(fitting):,} of {len(arrivals):,} requests never fit: the longest needs "
            f"{max(each.tokens for each in arrivals):,} tokens of KV memory and a replica has "
            f"{machine.room_tokens:,}, however many replicas there are; {part * 100:g} % fit from "
            f"{enough:,} on: plan for a machine with so many (--kv-tokens)"
        )
    return fitting


def _patience_ns(requests: Sequence[Request], machine: Machine, target: Target) -> int:
    """How long after the last arrival somebody may still end in time."""
    full = [Share(1, machine.room_tokens // machine.seqs)] * machine.seqs
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
