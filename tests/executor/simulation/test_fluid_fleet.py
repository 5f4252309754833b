"""Many fluids behind a router: nothing is lost, nothing is remembered, and L1 agrees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from executor.simulation.fleet import Fleet, Router, Routing
from executor.simulation.fluid_fleet import FluidFleet
from executor.simulation.fluid_outcome import Felt, Loss, Patience, Sample, Tally
from executor.simulation.machine import A10G
from executor.simulation.metrics_requests import Ending
from executor.simulation.work import NS, Request
from executor.simulation.workloads import even, merged, poisson

REPLICAS, TENANTS, SECONDS = 20, 100, 6


def traffic(per_s: float = 0.4, seconds: float = SECONDS) -> list[Request]:
    """Of each tenant so many; a replica can do two a second of them."""
    return merged(
        poisson(f"t{i}", per_s, seconds, Random(i), prompt=(10, 600), output=(5, 80))
        for i in range(TENANTS)
    )


def run(
    requests: Sequence[Request],
    routing: Routing = Routing.PREFIX,
    gossip_ns: int | None = NS // 4,
    *,
    replicas: int = REPLICAS,
    until_s: float = 60.0,
    patience: Patience | None = None,
    losses: Sequence[Loss] = (),
    samples: list[Sample] | None = None,
) -> tuple[list[Felt], Tally]:
    felt: list[Felt] = []
    fleet = FluidFleet(
        A10G,
        replicas,
        routing,
        gossip_ns,
        patience=patience,
        losses=losses,
        ended=felt.append,
        sampled=lambda each: None if samples is None else samples.append(each),
        sample_ns=None if samples is None else NS,
    )
    return felt, fleet.run(requests, round(until_s * NS))


def ends_once(felt: Sequence[Felt], requests: Sequence[Request]) -> bool:
    return Counter(each.request for each in felt) == Counter(requests)


@pytest.mark.parametrize("routing", Routing)
def test_every_request_ends_once_and_all_time_has_an_owner(routing: Routing) -> None:
    requests, samples = traffic(), list[Sample]()
    felt, tally = run(requests, routing, samples=samples)
    assert ends_once(felt, requests)
    assert {each.ending for each in felt} == {Ending.FINISHED}
    assert all(each.first_ns is not None and each.request.at_ns < each.first_ns for each in felt)
    assert (tally.arrived, tally.left, tally.again) == (len(requests), 0, 0)
    assert len({each.replica for each in felt}) == REPLICAS
    had = sum(sum(each.device_ns.values()) for each in samples)
    assert had + tally.wasted_ns == pytest.approx(tally.busy_ns, abs=3 * len(requests))


def test_a_run_comes_again_and_another_is_another() -> None:
    one, other = (run(traffic(seconds=2.0)) for _ in range(2))
    assert one == other
    assert run(traffic(seconds=2.0), Routing.ROUND_ROBIN) != one


def test_nothing_is_left_of_tenants_that_left() -> None:
    """600 tenants, each with two requests, within 12 s: never more of them are known than are there."""
    samples: list[Sample] = []
    requests = [
        Request(i * 20_000_000 + j * 7_000_000, f"c{i}", 40, 4) for i in range(600) for j in (0, 1)
    ]
    requests.sort(key=lambda each: each.at_ns)
    felt, _ = run(requests, samples=samples, replicas=4, until_s=20.0)
    assert len(felt) == 1200
    assert max(each.tenants for each in samples) < 100
    assert (samples[-1].tenants, samples[-1].waiting, samples[-1].device_ns) == (0, 0, {})


LOST = (Loss(2 * NS, (3, 4), 4 * NS),)


def test_what_a_lost_replica_had_is_done_elsewhere() -> None:
    requests = traffic()
    felt, tally = run(requests, losses=LOST)
    assert ends_once(felt, requests)
    assert {each.ending for each in felt} == {Ending.FINISHED}
    assert tally.wasted_ns > 0
    assert not [e for e in felt if e.replica in {3, 4} and 2 * NS < e.ended_ns <= 4 * NS]
    assert [e for e in felt if e.replica in {3, 4} and e.ended_ns > 4 * NS]


def test_a_client_that_must_come_again_is_told_of_the_loss() -> None:
    felt, tally = run(traffic(), losses=LOST, patience=Patience(60 * NS, 2, NS // 2, keeps=False))
    again = [each for each in felt if each.tries == 2]
    assert tally.again == len(again) > 0
    assert {each.ending for each in felt} == {Ending.FINISHED}


def crowd() -> list[Request]:
    """One replica, sixty at once, for which it needs ten seconds."""
    return [Request(i, f"t{i % 10}", 300, 60) for i in range(60)]


def test_a_kept_ticket_makes_coming_again_harmless() -> None:
    keeps, anew = (
        run(crowd(), replicas=1, until_s=120.0, patience=Patience(NS, 20, NS // 2, keeps=keeps))
        for keeps in (True, False)
    )
    calm = run(crowd(), replicas=1, until_s=120.0)
    assert [each[:5] for each in keeps[0]] == [each[:5] for each in calm[0]]
    assert (keeps[1].again, anew[1].attached) == (0, 0)
    assert keeps[1].attached > 100
    assert anew[1].again > 100
    order, other = ([each.request for each in felt] for felt in (calm[0], anew[0]))
    assert order != other


def test_who_has_had_enough_gives_up_once() -> None:
    for keeps in (True, False):
        samples: list[Sample] = []
        patience = Patience(2 * NS, 2, NS, keeps=keeps)
        felt, tally = run(crowd(), replicas=1, until_s=20.0, patience=patience, samples=samples)
        assert (samples[-1].waiting, samples[-1].tenants) == (0, 0)
        assert ends_once(felt, crowd())
        gone = [each for each in felt if each.ending is Ending.CANCELLED]
        assert {(each.first_ns, each.tries) for each in gone} == {(None, 2)}
        last_ns = (4 if keeps else 5) * NS
        assert all(each.ended_ns == each.request.at_ns + last_ns for each in gone)
        assert 0 < len(gone) < 100
        assert tally.left == 0


def test_who_waits_all_the_time_is_said_to() -> None:
    samples: list[Sample] = []
    requests = [
        *crowd(),
        *(Request(k * NS + NS // 2, "brief", 10, 2) for k in range(6)),
    ]
    run(requests, replicas=1, until_s=8.0, samples=samples)
    assert all(each.backlogged == {f"t{i}" for i in range(10)} for each in samples[1:5])
    assert all(each.device_ns["brief"] > 0 for each in samples[1:5])


def test_a_lost_one_s_work_goes_to_its_neighbour_and_no_other_moves() -> None:
    router, free = Router(Routing.PREFIX), [0] * 8
    requests = [Request(0, f"t{i}", 1, 1) for i in range(100)]
    homes = [router.place(each, free) for each in requests]
    lost: list[int | None] = [0, 0, 0, None, 0, 0, 0, 0]
    moved = [router.place(each, lost) for each in requests]
    assert moved == [4 if home == 3 else home for home in homes]
    assert homes.count(3) > 5
    crowded: list[int | None] = [9 if i == homes[0] else 0 for i in range(8)]
    assert router.place(requests[0], crowded) != homes[0]


def test_turns_leave_out_who_is_lost_and_the_least_loaded_take_turns() -> None:
    request = Request(0, "t", 1, 1)
    router = Router(Routing.ROUND_ROBIN)
    assert [router.place(request, [5, None, 0, 7]) for _ in range(5)] == [2, 3, 0, 2, 3]
    router = Router(Routing.LEAST_LOADED)
    assert [router.place(request, [1, 0, 1, None, 0]) for _ in range(3)] == [1, 4, 1]


def narrow_part(gossip_ns: int | None, seconds: float = 45.0) -> float:
    """As in `test_fleet`: one tenant everywhere, one mostly at one replica of four."""
    wide = [
        replace(each, user=f"u{i}") for i, each in enumerate(even("wide", 8.0, seconds, phase=0.1))
    ]
    requests = merged([wide, even("narrow", 3.0, seconds, phase=0.6)])
    samples: list[Sample] = []
    run(requests, Routing.PREFIX, gossip_ns, replicas=4, until_s=seconds, samples=samples)
    had = Counter[str]()
    for each in samples[int(seconds / 3) :]:
        had.update(each.device_ns)
    return had["narrow"] / sum(had.values())


def test_one_replica_has_nothing_to_hear() -> None:
    """Its own work is not charged again, whoever had how much of it."""
    requests = [Request(i, f"t{i % 5}", 60 * (1 + i % 5), 40) for i in range(60)]
    assert (
        run(requests, gossip_ns=NS // 4, replicas=1)[0]
        == run(requests, gossip_ns=None, replicas=1)[0]
    )


def test_gossip_makes_many_replicas_fair() -> None:
    assert narrow_part(None) < 0.33
    assert narrow_part(NS) == pytest.approx(0.4, abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("routing", Routing)
def test_the_exact_fleet_agrees(routing: Routing) -> None:
    """Eight replicas, crowded, two minutes: who ended, the time that was busy, first tokens."""
    requests = traffic(0.16, 120.0)
    until_ns = 120 * NS
    runs = Fleet(A10G, 8, routing, NS, merge_ns=NS).run(requests, until_ns)
    exact = [each for run in runs for each in run.outcomes]
    felt, tally = run(requests, routing, NS, replicas=8, until_s=120.0)
    assert len(felt) == pytest.approx(len(exact), rel=0.02)
    assert tally.busy_ns == pytest.approx(sum(run.busy_ns for run in runs), rel=0.02)
    mean_ns = sum(each.ttft_ns or 0 for each in exact) / len(exact)
    fluid_ns = sum((e.first_ns or 0) - e.request.at_ns for e in felt) / len(felt)
    assert fluid_ns == pytest.approx(mean_ns, rel=0.2)
