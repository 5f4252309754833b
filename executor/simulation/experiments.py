"""What an experiment is: a workload that every contender gets alike, figures, and bars that they are
held against.  The experiments themselves: `experiments_sharing` (who gets how much) and
`experiments_waiting` (who feels what).

A contender is a way to make a scheduler; those marked `published` are the published loop with an oracle
(see `published`), there to be compared with.  An experiment is pure: same contender, same figures.

Refuses to know: files, how tables look.  Source: SCHEDULER.md §3.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final

from executor.contract import Workload
from executor.scheduler.fair import Fair, Tuning
from executor.scheduler.fcfs import Fcfs
from executor.scheduler.protocol import Limits, Scheduler
from executor.scheduler.vtc import Vtc
from executor.simulation.engine import Engine, simulate
from executor.simulation.machine import A10G, Machine
from executor.simulation.metrics import Service
from executor.simulation.metrics_requests import Ending, percentile
from executor.simulation.outcome import Outcome, Run
from executor.simulation.published import Counters, Published
from executor.simulation.work import NS, Request, SimWork
from executor.simulation.workloads import foretold

Figures = Mapping[str, float]
"""Units at the end of the names."""


@dataclass(frozen=True, slots=True)
class Contender:
    name: str
    make: Callable[[Limits], Scheduler[SimWork]]
    published: bool = False


def tuned(tuning: Tuning, name: str = "fair") -> Contender:
    return Contender(name, lambda limits: Fair[SimWork](limits, tuning))


FCFS: Final = Contender("fcfs", Fcfs[SimWork])
VTC: Final = Contender("vtc", Vtc[SimWork])
FAIR: Final = tuned(Tuning())
PUBLISHED_FCFS: Final = Contender(
    "fcfs*", lambda limits: Published[SimWork](limits, None), published=True
)
PUBLISHED_VTC: Final = Contender(
    "vtc*", lambda limits: Published[SimWork](limits, Counters()), published=True
)
CONTENDERS: Final = {each.name: each for each in (FCFS, VTC, FAIR, PUBLISHED_FCFS, PUBLISHED_VTC)}


@dataclass(frozen=True, slots=True)
class Bar:
    """`holds` looks at the figures by contender's name; KeyError if one is missing that it needs."""

    what: str
    holds: Callable[[Mapping[str, Figures]], bool]

    def verdict(self, found: Mapping[str, Figures]) -> bool | None:
        """None: it cannot be said, since a contender is missing."""
        try:
            return self.holds(found)
        except KeyError:
            return None


@dataclass(frozen=True, slots=True)
class Experiment:
    """`published`: the published twins take part too; `beside`: others that always do.  `reported`: what
    papers say of it."""

    name: str
    what: str
    run: Callable[[Contender], Figures]
    bars: tuple[Bar, ...] = ()
    published: bool = False
    reported: str = ""
    beside: tuple[Contender, ...] = ()

    def contenders(self, names: Collection[str]) -> list[Contender]:
        named = (
            each
            for each in CONTENDERS.values()
            if each.name.rstrip("*") in names and (self.published or not each.published)
        )
        return [*named, *self.beside]


def play(
    contender: Contender,
    requests: Sequence[Request],
    *,
    machine: Machine = A10G,
    workloads: tuple[Workload, ...] = (),
    until_s: float | None = None,
    step_ms_max: int = 200,
    prefixes: bool = False,
    probed: tuple[float, ...] = (),
    back: float = 1.0,
) -> Run:
    """One run.  The published loop counts memory by the token and knows what will be said."""
    limits = machine.limits(workloads, step_ms_max=step_ms_max, prefixes=prefixes)
    if contender.published:
        requests = foretold(requests)
        tokens = limits.blocks_total * limits.block_tokens
        limits = replace(limits, block_tokens=1, blocks_total=tokens)
    engine = Engine(machine, contender.make(limits), limits, probed=probed, back=back)
    return simulate(engine, requests, None if until_s is None else round(until_s * NS))


# What experiments read from a run


def of_tenants(run: Run, tenants: Collection[str]) -> list[Outcome]:
    return [each for each in run.outcomes if each.request.tenant in tenants]


def ttfts_s(outcomes: Sequence[Outcome]) -> list[float]:
    return [each.ttft_ns / NS for each in outcomes if each.ttft_ns is not None]


def pauses_s(outcomes: Sequence[Outcome]) -> list[float]:
    return [pause / NS for each in outcomes for pause in each.pauses_ns()]


def tail(values: Sequence[float], percent: float = 99) -> float:
    return percentile(values, percent) if values else 0.0


def mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0


def tokens_per_s(run: Run, until_s: float | None = None) -> float:
    """Computed for the first time, by the step."""
    end_s = run.end_ns / NS if until_s is None else until_s
    whole = sum(each.prompt + each.output for each in run.service if each.at_ns <= end_s * NS)
    return whole / end_s


def finished(run: Run) -> int:
    return sum(each.ending is Ending.FINISHED for each in run.outcomes)


def course(
    log: Sequence[Service], one: str, other: str, from_s: float, to_s: float, every_s: float
) -> list[tuple[float, float]]:
    """W_one − W_other since `from_s`, every so often."""
    points = []
    level, at_s, index = 0.0, from_s + every_s, 0
    while at_s <= to_s:
        while index < len(log) and log[index].at_s < at_s:
            entry = log[index]
            index += 1
            if entry.at_s >= from_s and entry.tenant in (one, other):
                level += entry.amount if entry.tenant == one else -entry.amount
        points.append((at_s, level))
        at_s += every_s
    return points


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the least squares line."""
    middle_x, middle_y = fmean(x for x, _ in points), fmean(y for _, y in points)
    above = sum((x - middle_x) * (y - middle_y) for x, y in points)
    return above / sum((x - middle_x) ** 2 for x, _ in points)
