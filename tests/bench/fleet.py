"""`python -m tests.bench.fleet`: many replicas in simulation: fairness with stale counters, aggressors, lost
replicas, clients that come again, reservations, tenants that come and go; and how far fluids are to be
believed.  See README.md beside this file.  Needs ServeGen's clients (--traces)."""

from __future__ import annotations

import argparse
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from resource import RUSAGE_SELF, getrusage
from time import perf_counter, process_time
from typing import Any

from executor.contract import Workload
from executor.scheduler.fcfs import Fcfs
from executor.scheduler.protocol import Limits
from executor.simulation import clients as servegens
from executor.simulation.clients import Client
from executor.simulation.fleet import Fleet, Gossiping, Maker, Routing
from executor.simulation.fluid_outcome import Loss, Patience, Sample
from executor.simulation.fluid_study import (
    CRITICAL,
    Play,
    Played,
    churn,
    floods,
    in_time,
    p,
    part_of_due,
    parts_of_due,
    servegen,
    spread,
    two_sorts,
    within_share,
)
from executor.simulation.machine import A10G
from executor.simulation.metrics import jain
from executor.simulation.metrics_requests import Ending, in_flight_alone
from executor.simulation.work import NS
from executor.simulation.workloads import merged
from tests.bench.server import REPOSITORY
from tests.bench.show import columns

TRACES = REPOSITORY.parent / "shared" / "traces"
WINDOWS, QUANTILES = (
    "servegen_day0_client_windows.csv.gz",
    "servegen_day0_token_quantiles.csv.gz",
)
Rows = Iterator[list[str]]
DRAIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Scale:
    """`small` replicas where a step's decision is dear (overload), `large` where it is not."""

    clients: Sequence[Client]
    small: int
    large: int
    seconds: float
    all: int


def never(gossip_s: float | None) -> str:
    return "never" if gossip_s is None else f"{gossip_s:g} s"


def agree(scale: Scale) -> Rows:
    """Step-exact (L1) and fluid (L2): the same requests on 8 replicas for ten times as long."""
    yield ["", "ended L1", "L2", "first token L1", "L2", "p99 L1", "L2", "CPU s L1", "L2"]
    until_s = 10 * scale.seconds
    requests = list(servegen(scale.clients, 8, 0.9, until_s))
    cases: list[tuple[str, Maker, float | None]] = [
        ("fcfs", Fcfs, None),
        ("fair, gossip 1 s", Gossiping, 1.0),
    ]
    for routing in Routing:
        for name, make, gossip_s in cases:
            gossip_ns = None if gossip_s is None else round(gossip_s * NS)
            began = process_time()
            fleet = Fleet(A10G, 8, routing, gossip_ns, make=make, merge_ns=10 * NS)
            ends = [e for r in fleet.run(requests, round(until_s * NS)) for e in r.outcomes]
            between = process_time()
            fluid = Play(8, routing, gossip_s, make).of(requests, until_s)
            exact = [each.ttft_ns / NS for each in ends if each.ttft_ns is not None]
            felt = fluid.ttft_s()
            yield [
                f"{routing}, {name}",
                f"{len(ends)}",
                f"{len(fluid.felt)}",
                *(f"{sum(each) / len(each):.2f} s" for each in (exact, felt)),
                *(f"{p(each, 99):.1f} s" for each in (exact, felt)),
                f"{between - began:.1f}",
                f"{process_time() - between:.1f}",
            ]


def share(scale: Scale) -> Rows:
    """5 tenants of which every request goes anywhere, 5 with one prefix each, all due the same; 1.5 of all
    is asked for.  The gap is between the ten, over two thirds of the time."""
    yield ["", "gossip", "narrow: of its due", "gap", "of the mean", "K·2U", "costliest request"]
    until_s, replicas = 2 * scale.seconds, scale.small // 2
    requests = two_sorts(replicas, until_s, 5)
    for routing in Routing:
        for gossip_s in (None, 5.0, 1.0, 0.25, 0.05):
            played = Play(replicas, routing, gossip_s, sample_s=until_s / 24).of(requests, until_s)
            found = spread(played, 16)
            yield [
                routing,
                never(gossip_s),
                f"{part_of_due(played, 16, 'n', 5):.2f}",
                f"{found.gap_s:.0f} s",
                f"{found.gap_s / (found.mean_s or 1.0):.0%}",
                f"{2 * replicas * found.cost_max_s:.0f} s",
                f"{found.cost_max_s:.1f} s",
            ]


def zipf(scale: Scale) -> Rows:
    """ServeGen's tenants, five a replica, 1.4 of what the fleet can do: what each had of its max-min part."""
    yield ["", "gossip", "least", "p5", "p25", "Jain", "ended"]
    requests = list(servegen(scale.clients, scale.small, 1.4, scale.seconds))
    cases: list[tuple[Maker, float | None]] = [(Fcfs, None), (Gossiping, None), (Gossiping, 1.0)]
    for routing in Routing:
        for make, gossip_s in cases:
            play = Play(scale.small, routing, gossip_s, make, sample_s=scale.seconds / 6)
            played = play.of(requests, scale.seconds)
            parts = parts_of_due(played, requests)
            name = f"{routing}, {'fcfs' if make is Fcfs else 'fair'}"
            values = (parts[0], p(parts, 5), p(parts, 25), jain(parts))
            yield [name, never(gossip_s), *(f"{v:.2f}" for v in values), f"{len(played.felt)}"]


def aggressors(scale: Scale) -> Rows:
    """1 % of the tenants ask for twice the fleet; the others for 0.6 of it.  Victims: those of them who ask
    for no more than their fair part while the aggressors are there."""
    yield [
        "",
        "gossip",
        "victims p50",
        "p99",
        "worst victim's mean",
        "victims ended",
        "first in flight p99",
    ]
    until_s = scale.seconds
    calm = list(servegen(scale.clients, scale.small, 0.6, until_s))
    both = merged([calm, floods(scale.small, 2.0, until_s, max(1, scale.small // 20))])
    cases: list[tuple[str, Maker, float | None]] = [
        ("alone", Gossiping, None),
        ("fcfs", Fcfs, None),
        ("fair", Gossiping, None),
        ("fair", Gossiping, 1.0),
    ]
    victims: frozenset[str] | None = None
    for routing in (Routing.LEAST_LOADED, Routing.PREFIX):
        for name, make, gossip_s in cases:
            requests = calm if name == "alone" else both
            play = Play(scale.small, routing, gossip_s, make)
            played = play.of(requests, until_s, DRAIN_S)
            victims = victims or within_share(played, both, scale.small * until_s * NS)
            waits = by_tenant(played)
            mine = [wait for tenant in victims & waits.keys() for wait in waits[tenant]]
            first = in_flight_alone(f.record() for f in played.felt if f.request.tenant in victims)
            means = [sum(waits[each]) / len(waits[each]) for each in victims & waits.keys()]
            yield [
                f"{routing}, {name}",
                never(gossip_s),
                f"{p(mine, 50):.2f} s",
                f"{p(mine, 99):.1f} s",
                f"{max(means):.1f} s",
                f"{len(mine) / sum(each.tenant in victims for each in calm):.0%}",
                f"{p([one.ttft_s for one in first if one.ttft_s is not None], 99):.1f} s",
            ]


def by_tenant(played: Played) -> dict[str, list[float]]:
    """First tokens, the aggressors' left out."""
    found: dict[str, list[float]] = {}
    for each in played.felt:
        if each.ttft_ns is not None and not each.request.tenant.startswith("a"):
            found.setdefault(each.request.tenant, []).append(each.ttft_ns / NS)
    return found


def loss(scale: Scale) -> Rows:
    """5 % of the replicas are lost at a third of the time, at a load of 0.85, and come back at two thirds."""
    yield ["", "first token p99 before", "while lost", "after", "sent again", "wasted", "in 10 s"]
    until_s, third_s = scale.seconds, scale.seconds / 3
    requests = list(servegen(scale.clients, scale.large, 0.85, until_s))
    gone = tuple(range(0, scale.large, 20))
    event = Loss(round(third_s * NS), gone, round(2 * third_s * NS))
    cases: list[tuple[str, tuple[Loss, ...], Patience | None]] = [
        ("nothing lost", (), None),
        ("the gateway sends again", (event,), None),
        ("clients come again", (event,), Patience(60 * NS, 10, NS, keeps=False)),
    ]
    for routing in (Routing.LEAST_LOADED, Routing.PREFIX):
        for name, losses, patience in cases:
            play = Play(scale.large, routing, 1.0, losses=losses, patience=patience)
            played = play.of(requests, until_s, DRAIN_S)
            thirds = [
                played.ttft_s(lambda f, i=i: f.request.at_ns // (third_s * NS) == i)  # type: ignore[misc]
                for i in range(3)
            ]
            hit = played.tally.again or sum(each.tries > 1 for each in played.felt)
            yield [
                f"{routing}, {name}",
                *(f"{p(each, 99):.1f} s" for each in thirds),
                f"{hit}" if patience else "-",
                f"{played.tally.wasted_ns / played.tally.busy_ns:.1%}",
                f"{in_time(played, 10.0):.1%}",
            ]


def storm(scale: Scale) -> Rows:
    """1.5 of what the fleet can do for the first half, then 0.4; who has no first token after 4 s comes
    again, five times at most.  With a new ticket half a second later, or at once with its old one."""
    yield ["", "came again", "requests seen / sent", "p50", "p99", "gave up", "wasted", "in 20 s"]
    until_s = 2 * scale.seconds
    half = int(scale.seconds * NS)
    rush = [e for e in servegen(scale.clients, scale.small, 1.5, scale.seconds) if e.at_ns < half]
    calm = [
        each
        for each in servegen(scale.clients, scale.small, 0.4, until_s, seed=2)
        if each.at_ns >= half
    ]
    requests = merged([rush, calm])
    cases: list[tuple[str, Maker, Patience | None]] = [
        ("fair, all are patient", Gossiping, None),
        ("fair, tickets kept", Gossiping, Patience(4 * NS, 6, NS // 2, keeps=True)),
        ("fair, new tickets", Gossiping, Patience(4 * NS, 6, NS // 2, keeps=False)),
        ("fcfs, tickets kept", Fcfs, Patience(4 * NS, 6, NS // 2, keeps=True)),
        ("fcfs, new tickets", Fcfs, Patience(4 * NS, 6, NS // 2, keeps=False)),
    ]
    for name, make, patience in cases:
        play = Play(scale.small, Routing.LEAST_LOADED, 1.0, make, patience=patience)
        played = play.of(requests, until_s, DRAIN_S)
        tally, waits = played.tally, played.ttft_s()
        gone = sum(each.ending is Ending.CANCELLED for each in played.felt)
        yield [
            name,
            f"{tally.again + tally.attached}",
            f"{1 + tally.again / tally.arrived:.2f}",
            f"{p(waits, 50):.2f} s",
            f"{p(waits, 99):.1f} s",
            f"{gone / tally.arrived:.1%}",
            f"{tally.wasted_ns / tally.busy_ns:.1%}",
            f"{in_time(played, 20.0):.1%}",
        ]


def reserve(scale: Scale) -> Rows:
    """Critical work, 5 % of what the fleet can do, beside 1.3 of it: reserved in every replica, or a pool."""
    yield ["", "critical p50", "p99", "in 2 s", "others ended"]
    until_s, all_of = scale.seconds, scale.small
    critical = list(
        servegen(
            scale.clients, all_of, 0.05, until_s, seed=3, prefix="k", tenants=20, workload=CRITICAL
        )
    )
    others = list(servegen(scale.clients, all_of, 1.3, until_s))

    def row(name: str, played: Played, ended: int | None) -> list[str]:
        mine = [f for f in played.felt if f.request.workload == CRITICAL]
        waits = [f.ttft_ns / NS for f in mine if f.ttft_ns is not None]
        quick = sum(wait <= 2.0 for wait in waits) / len(critical)
        return [
            name,
            f"{p(waits, 50):.2f} s",
            f"{p(waits, 99):.2f} s",
            f"{quick:.1%}",
            "-" if ended is None else f"{ended}",
        ]

    for reserved in (None, 0.05, 0.1, 0.2, 0.3):
        classes = () if reserved is None else (Workload(name=CRITICAL, reserved=reserved),)
        play = Play(all_of, Routing.LEAST_LOADED, 1.0, classes=classes)
        played = play.of(merged([critical, others]), until_s, DRAIN_S)
        name = "no class" if reserved is None else f"{reserved:.0%} of each of {all_of}"
        yield row(name, played, sum(f.request.workload != CRITICAL for f in played.felt))
    for part in (0.05, 0.075, 0.1, 0.15, 0.2, 0.3):
        pool = max(1, round(part * all_of))
        played = Play(pool, Routing.LEAST_LOADED, 1.0).of(critical, until_s, DRAIN_S)
        rest = Play(all_of - pool, Routing.LEAST_LOADED, 1.0).of(others, until_s, DRAIN_S)
        yield row(f"a pool of {pool} of {all_of}", played, len(rest.felt))


class Forgotten(list[Any]):
    """Tells each thing that it is given, and keeps none."""

    def __init__(self, tell: Callable[[Any], None] = lambda _: None) -> None:
        super().__init__()
        self._tell = tell

    def append(self, each: Any) -> None:
        self._tell(each)


def tenants(scale: Scale) -> Rows:
    """100,000 new tenants an hour at 4 replicas, two requests each, gone after that.  Guesses: what a
    replica remembers of the last 4,096 users' answers."""
    yield [
        "minute",
        "tenants seen",
        "known at a replica",
        "of whom some wait",
        "guesses",
        "heap MiB",
    ]
    until_s = 20 * scale.seconds
    made: list[Gossiping] = []
    lines: list[list[str]] = []
    tracemalloc.start()
    from_mib = tracemalloc.get_traced_memory()[0] / 2**20

    def make(limits: Limits) -> Gossiping:
        made.append(Gossiping(limits))
        return made[-1]

    def note(sample: Sample) -> None:
        at_s = sample.at_ns / NS
        guesses = sum(len(each._outputs._known) for each in made)
        mib = tracemalloc.get_traced_memory()[0] / 2**20 - from_mib
        seen = (f"{at_s / 60:.1f}", f"{at_s / 0.036:.0f}", f"{sample.tenants}", f"{sample.waiting}")
        lines.append([*seen, f"{guesses}", f"{mib:.2f}"])

    play = Play(4, Routing.LEAST_LOADED, 1.0, make, sample_s=until_s / 8)
    play.samples, play.felt = Forgotten(note), Forgotten()
    play.of(churn(100_000, until_s, Random(1)), until_s)
    tracemalloc.stop()
    yield from lines


def thousand(scale: Scale) -> Rows:
    """The whole: five tenants a replica, a load of 0.9, by prefix, gossip every 0.25 s."""
    yield ["replicas", "tenants", "requests", "events", "took", "events/s", "p50", "p99", "MiB"]
    began = perf_counter()
    play = Play(scale.all, Routing.PREFIX, 0.25)
    played = play.of(servegen(scale.clients, scale.all, 0.9, scale.seconds), scale.seconds)
    took_s, waits = perf_counter() - began, played.ttft_s()
    yield [
        f"{scale.all}",
        f"{5 * scale.all}",
        f"{played.tally.arrived}",
        f"{played.tally.happened}",
        f"{took_s:.0f} s",
        f"{played.tally.happened / took_s:.0f}",
        f"{p(waits, 50):.2f} s",
        f"{p(waits, 99):.1f} s",
        f"{getrusage(RUSAGE_SELF).ru_maxrss / 1024:.0f}",
    ]


PARTS: dict[str, Callable[[Scale], Rows]] = {
    each.__name__: each
    for each in (agree, share, zipf, aggressors, loss, storm, reserve, tenants, thousand)
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.fleet", description=__doc__)
    parser.add_argument("--parts", default=",".join(PARTS), help="comma separated")
    parser.add_argument("--small", type=int, default=40, help="replicas where all is wanted")
    parser.add_argument("--large", type=int, default=100, help="replicas where a few are lost")
    parser.add_argument("--all", type=int, default=1000, help="replicas of the whole")
    parser.add_argument("--seconds", type=float, default=60.0, help="of traffic; some parts more")
    parser.add_argument("--traces", type=Path, default=TRACES, help="where ServeGen's files lie")
    options = parser.parse_args(argv)
    names = options.parts.split(",")
    if unknown := set(names) - PARTS.keys():
        parser.error(f"no part {', '.join(sorted(unknown))}; expected some of {', '.join(PARTS)}")
    try:
        clients = servegens.load(options.traces / WINDOWS, options.traces / QUANTILES, "m-large")
    except (FileNotFoundError, ValueError) as error:
        print(f"tests.bench.fleet: {error}", file=sys.stderr)
        return 2
    scale = Scale(clients, options.small, options.large, options.seconds, options.all)
    for name in names:
        show(name, partial(PARTS[name], scale))
    return 0


def show(name: str, part: Callable[[], Rows]) -> None:
    began = process_time()
    cells = list(part())
    print(f"{name}: {' '.join((PARTS[name].__doc__ or '').split())}")
    print(*columns(cells), sep="\n")
    print(f"({process_time() - began:.0f} s of CPU)\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
