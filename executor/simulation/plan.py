"""How many replicas a promise needs for a trace: the least number at which enough requests are in time.

The trace is replayed through fleets of one, two, four, … replicas, then between the last that missed and
the first that kept.  More replicas are taken to be no worse; where a trace says otherwise (a lucky
point), the answer is a number that keeps, not the least one.  What has not ended at the horizon missed;
the horizon leaves the longest answer its time on a full machine, or at the slowest pace that is promised.

Refuses to know: files, what a replica costs.  Source: issue 4, `lockgate plan`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from executor.cost import Share
from executor.simulation.fleet import Fleet, Routing
from executor.simulation.machine import Machine
from executor.simulation.metrics_requests import Target
from executor.simulation.traces import Arrival
from executor.simulation.work import NS, Request
from executor.simulation.workloads import ALLOWED_TOKENS, of_trace

_DRAIN_S: Final = 120.0
_TOLD: Final = 100  # times in a replay


@dataclass(frozen=True, slots=True)
class Sized:
    """`replicas`: None if `replicas_max` do not keep it.  `tried`: the part in time by replicas."""

    replicas: int | None
    tried: Mapping[int, float]


def plan_for(
    arrivals: Sequence[Arrival],
    machine: Machine,
    target: Target,
    *,
    part: float = 0.99,
    replicas_max: int = 64,
    routing: Routing = Routing.LEAST_LOADED,
    allowed_tokens: int = ALLOWED_TOKENS,
    say: Callable[[int, float], None] = lambda _replicas, _part: None,
) -> Sized:
    """`arrivals` in order of time.  `say`: replicas that are being tried, and the part of the trace that
    has arrived there.  ValueError if some never fit the machine."""
    if not arrivals:
        raise ValueError("the trace is empty; expected at least one request")
    room = machine.kv_blocks * machine.block_tokens
    long = [each for each in arrivals if each.prompt_tokens + each.output_tokens > room]
    if long:
        longest = max(each.prompt_tokens + each.output_tokens for each in long)
        raise ValueError(
            f"{len(long)} of {len(arrivals)} requests never fit: the longest needs {longest} tokens of "
            f"KV memory and a replica has {room}; plan for a machine with more"
        )
    requests = of_trace(arrivals, allowed_tokens=allowed_tokens)
    horizon_ns = requests[-1].at_ns + _patience_ns(requests, machine, target)
    tried: dict[int, float] = {}

    def keeps(replicas: int) -> bool:
        fleet = Fleet(machine, replicas, routing, merge_ns=NS)
        runs = fleet.run(_told(requests, lambda seen: say(replicas, seen)), horizon_ns)
        met = sum(target.met(record) for run in runs for record in run.records)
        tried[replicas] = met / len(requests)
        return tried[replicas] >= part

    missed, count = 0, 1
    while not keeps(count):
        missed = count
        if count == replicas_max:
            return Sized(None, tried)
        count = min(2 * count, replicas_max)
    while count - missed > 1:
        middle = (count + missed) // 2
        if keeps(middle):
            count = middle
        else:
            missed = middle
    return Sized(count, tried)


def _patience_ns(requests: Sequence[Request], machine: Machine, target: Target) -> int:
    """How long after the last arrival somebody may still end in time."""
    room = machine.kv_blocks * machine.block_tokens
    full = [Share(1, room // machine.seqs)] * machine.seqs
    token_s = min(target.tpot_s, machine.step_ns(full) / NS)
    longest = max(each.output_tokens for each in requests)
    return round((target.ttft_s + _DRAIN_S + longest * token_s) * NS)


def _told(requests: Sequence[Request], tell: Callable[[float], None]) -> Iterator[Request]:
    every = -(-len(requests) // _TOLD)
    for index, request in enumerate(requests):
        if index % every == 0:
            tell(index / len(requests))
        yield request
