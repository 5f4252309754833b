"""What many replicas do to fairness and to those who wait: SCHEDULER.md §4's study, as functions.

Traffic: ServeGen's clients at a time of day (Gamma and Weibull gaps, ten-minute windows), volumes by Zipf,
five tenants a replica, lengths cut to what the machine holds; or, for shares that can be said beforehand,
two sorts of tenant of which one has all its work under one prefix.  `load` counts in `SATURATED_PER_S` of
such requests a replica.

Refuses to know: files, tables, how long anything takes here.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from executor.contract import Workload
from executor.simulation.clients import Client, arrivals, resample
from executor.simulation.fleet import Gossiping, Maker, Routing
from executor.simulation.fluid_fleet import FluidFleet
from executor.simulation.fluid_outcome import Felt, Loss, Patience, Sample, Tally
from executor.simulation.machine import A10G
from executor.simulation.metrics import attained, due
from executor.simulation.metrics_requests import percentile
from executor.simulation.work import NS, Request
from executor.simulation.workloads import even, merged, poisson

SATURATED_PER_S: Final = 1.2  # of ServeGen's requests, by an A10G of which everything is wanted
PLAIN_PER_S: Final = 1.9  # of requests of 256 and 256 tokens
TENANTS: Final = 5  # a replica
PROMPT_MAX: Final = 8000
OUTPUT_MAX: Final = 1000
CRITICAL: Final = "critical"
EVENING_S: Final = 71_700.0  # five minutes before eight: a ten-minute window ends in most runs
_AT_TEN: Final = 0.77  # of a day's mean, what the clients of m-large send in the evening


@dataclass(frozen=True, slots=True)
class Played:
    felt: Sequence[Felt]
    samples: Sequence[Sample]
    tally: Tally
    replicas: int

    def ttft_s(self, which: Callable[[Felt], bool] = lambda _: True) -> list[float]:
        """Of those that got a first token."""
        return [f.ttft_ns / NS for f in self.felt if f.ttft_ns is not None and which(f)]


@dataclass(slots=True)
class Play:
    """A fleet and what befalls it."""

    replicas: int
    routing: Routing = Routing.LEAST_LOADED
    gossip_s: float | None = None
    make: Maker = Gossiping
    classes: tuple[Workload, ...] = ()
    patience: Patience | None = None
    losses: Sequence[Loss] = ()
    sample_s: float | None = None
    samples: list[Sample] = field(default_factory=list)
    felt: list[Felt] = field(default_factory=list)

    def of(self, requests: Iterable[Request], until_s: float, drain_s: float = 0.0) -> Played:
        """Requests until then; what is left may end in `drain_s` more."""
        fleet = FluidFleet(
            A10G,
            self.replicas,
            self.routing,
            _ns(self.gossip_s),
            make=self.make,
            limits=A10G.limits(self.classes),
            patience=self.patience,
            losses=self.losses,
            ended=self.felt.append,
            sampled=self.samples.append,
            sample_ns=_ns(self.sample_s),
        )
        whole = (each for each in requests if each.at_ns < until_s * NS)
        tally = fleet.run(whole, round((until_s + drain_s) * NS))
        return Played(self.felt, self.samples, tally, self.replicas)


def _ns(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * NS)


def _rng(seed: int) -> Random:
    return Random(seed)  # noqa: S311  # a simulation


# Traffic


def servegen(
    clients: Sequence[Client],
    replicas: int,
    load: float,
    until_s: float,
    *,
    seed: int = 1,
    prefix: str = "",
    tenants: int | None = None,
    workload: str = "",
) -> Iterator[Request]:
    """Drawn as it is asked for."""
    per_s = load * replicas * SATURATED_PER_S / _AT_TEN
    sources = resample(clients, tenants or TENANTS * replicas, per_s, _rng(seed))
    for each in arrivals(sources, until_s, EVENING_S):
        output = min(each.output_tokens, OUTPUT_MAX)
        yield Request(
            round(each.at_s * NS),
            prefix + each.tenant,
            min(each.prompt_tokens, PROMPT_MAX),
            output,
            max_new_tokens=max(1024, output),
            workload=workload,
        )


def two_sorts(replicas: int, until_s: float, each: int = 10) -> list[Request]:
    """`each` wide tenants, of which every request has a prefix of its own, ask for twice what is due to
    them; as many narrow ones, of which all have the same prefix, for just that.  Together 1.5 of all."""
    due_per_s = replicas * PLAIN_PER_S / (2 * each)
    narrow = [poisson(f"n{i}", due_per_s, until_s, _rng(i)) for i in range(each)]
    wide = [
        [
            replace(one, user=f"u{number}")
            for number, one in enumerate(poisson(f"w{i}", 2 * due_per_s, until_s, _rng(each + i)))
        ]
        for i in range(each)
    ]
    return merged([*narrow, *wide])


def floods(replicas: int, load: float, until_s: float, count: int) -> list[Request]:
    """`count` aggressors, together `load`, evenly."""
    per_s = load * replicas * PLAIN_PER_S / count
    return merged(even(f"a{i}", per_s, until_s, phase=0.1 + 0.8 * i / count) for i in range(count))


def churn(per_hour: int, until_s: float, rng: Random) -> Iterator[Request]:
    """New tenants all the time, each with two small requests ten seconds apart."""
    at_s, number = 0.0, 0
    second: deque[Request] = deque()
    while at_s < until_s:
        at_s += rng.expovariate(per_hour / 3600)
        while second and second[0].at_ns <= at_s * NS:
            yield second.popleft()
        one = Request(round(at_s * NS), f"c{number}", rng.randint(16, 100), rng.randint(2, 20))
        second.append(replace(one, at_ns=one.at_ns + 10 * NS))
        number += 1
        yield one


# Figures


@dataclass(frozen=True, slots=True)
class Spread:
    """Of tenants that waited all the time: device seconds over `over_s`.  `cost_max_s`: of one request."""

    tenants: int
    least_s: float
    mean_s: float
    most_s: float
    over_s: float
    cost_max_s: float

    @property
    def gap_s(self) -> float:
        return self.most_s - self.least_s


def spread(played: Played, last: int) -> Spread:
    """Over the `last` samples."""
    samples = played.samples[-last:]
    whole = frozenset.intersection(*(each.backlogged for each in samples))
    had: Counter[str] = Counter()
    for each in samples:
        had.update({tenant: each.device_ns[tenant] for tenant in whole})
    amounts = [had[tenant] / NS for tenant in whole] or [0.0]
    over_s = (samples[-1].at_ns - played.samples[-last - 1].at_ns) / NS
    cost_max_s = max((each.device_ns for each in played.felt), default=0) / NS
    return Spread(
        len(whole), min(amounts), sum(amounts) / len(amounts), max(amounts), over_s, cost_max_s
    )


def asked(played: Played, requests: Iterable[Request]) -> dict[str, float]:
    """Device time by tenant: what a request that did not end would have cost is taken from those that
    did, by its tokens."""
    ended_ns = sum(each.device_ns for each in played.felt)
    prompts_ns = A10G.token_ns * sum(each.request.prompt_tokens for each in played.felt)
    outputs = sum(each.request.output_tokens for each in played.felt)
    output_ns = max(0.0, ended_ns - prompts_ns) / max(1, outputs)
    found: dict[str, float] = {}
    for each in requests:
        cost_ns = A10G.token_ns * each.prompt_tokens + output_ns * each.output_tokens
        found[each.tenant] = found.get(each.tenant, 0.0) + cost_ns
    return found


def parts_of_due(played: Played, requests: Iterable[Request]) -> list[float]:
    """By tenant, what it had of the max-min fair part of all, ascending; 1 at most."""
    had: Counter[str] = Counter()
    for sample in played.samples:
        had.update(sample.device_ns)
    parts = attained(had, due(asked(played, requests), sum(had.values())))
    return sorted(min(1.0, part) for part in parts.values())


def within_share(played: Played, requests: Iterable[Request], capacity_ns: float) -> frozenset[str]:
    """Tenants that ask for no more than their max-min part of the capacity."""
    wants = asked(played, requests)
    parts = due(wants, capacity_ns)
    return frozenset(tenant for tenant, want in wants.items() if want <= parts[tenant])


def part_of_due(played: Played, last: int, sort: str, each: int = 10) -> float:
    """What tenants whose names begin so had of what is due to them: an equal part of all."""
    had: Counter[str] = Counter()
    for sample in played.samples[-last:]:
        had.update(sample.device_ns)
    mine = sum(amount for tenant, amount in had.items() if tenant.startswith(sort))
    return mine / (sum(had.values()) / (2 * each)) / each


def p(values: Sequence[float], percent: float) -> float:
    return percentile(values, percent) if values else float("nan")


def in_time(played: Played, ttft_s: float) -> float:
    """Of all that arrived."""
    met = sum(each.ttft_ns is not None and each.ttft_ns <= ttft_s * NS for each in played.felt)
    return met / played.tally.arrived
