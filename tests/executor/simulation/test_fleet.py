"""Many replicas: who goes where, and what a tenant had elsewhere."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from executor.simulation.fleet import Fleet, Routing, device_ns
from executor.simulation.machine import A10G
from executor.simulation.metrics_requests import Ending
from executor.simulation.work import NS, Request
from executor.simulation.workloads import even, merged

REPLICAS = 3


def load(duration_s: float, wide_per_s: float = 8.0, narrow_per_s: float = 3.0) -> list[Request]:
    """`wide` has a user for each request, `narrow` one for all: its prefix lies at one replica.  Four
    replicas can do 7.5 a second: `narrow` asks for less than its half, 40 % of all."""
    wide = [
        replace(each, user=f"u{number}")
        for number, each in enumerate(even("wide", wide_per_s, duration_s, phase=0.1))
    ]
    return merged([wide, even("narrow", narrow_per_s, duration_s, phase=0.6)])


def narrow_part(routing: Routing, gossip_s: float | None, duration_s: float = 90.0) -> float:
    fleet = Fleet(A10G, 4, routing, None if gossip_s is None else round(gossip_s * NS))
    runs = fleet.run(load(duration_s), round(duration_s * NS))
    had = device_ns(runs, round(duration_s / 3 * NS), round(duration_s * NS))
    return had["narrow"] / sum(had.values())


def light() -> list[Request]:
    return [Request(i * NS // 10, f"t{i % 4}", 16, 4, user=f"u{i}") for i in range(60)]


@pytest.mark.parametrize("routing", Routing)
def test_every_request_ends_at_one_replica(routing: Routing) -> None:
    fleet = Fleet(A10G, REPLICAS, routing, NS // 2)
    runs = fleet.run(light(), 20 * NS)
    ended = [each for run in runs for each in run.outcomes]
    assert Counter(each.request for each in ended) == Counter(light())
    assert {each.ending for each in ended} == {Ending.FINISHED}
    assert all(len(run.outcomes) > 5 for run in runs)


def test_a_user_keeps_to_one_replica_that_is_not_crowded() -> None:
    requests = [replace(each, user="u") for each in light()]
    fleet = Fleet(A10G, REPLICAS, Routing.PREFIX)
    where: dict[str, set[int]] = {}
    for index, run in enumerate(fleet.run(requests, 20 * NS)):
        for each in run.outcomes:
            where.setdefault(each.request.tenant, set()).add(index)
    assert sum(len(places) == 1 for places in where.values()) >= 2


def test_a_fleet_comes_again() -> None:
    one, other = (Fleet(A10G, 2, Routing.PREFIX, NS).run(light(), 10 * NS) for _ in range(2))
    assert repr(one) == repr(other)


def test_intervals_hold_what_steps_held() -> None:
    fine, coarse = (
        Fleet(A10G, 2, Routing.PREFIX, merge_ns=merge).run(light(), 10 * NS) for merge in (None, NS)
    )
    for second in range(10):  # an entry stands at the end of its interval
        span = second * NS + 1, (second + 1) * NS + 1
        assert device_ns(fine, *span) == device_ns(coarse, *span)
    assert sum(len(run.service) for run in coarse) < sum(len(run.service) for run in fine) / 2
    for a, b in zip(fine, coarse, strict=True):
        assert a.device_ns == b.device_ns
        assert [each.record() for each in a.outcomes] == [each.record() for each in b.outcomes]


@pytest.mark.slow
def test_gossip_makes_many_replicas_fair() -> None:
    """Who waits at one replica, mostly, gets less than it asked for without it, though it is within its
    share of all; with it what it asked for, also five seconds late."""
    assert narrow_part(Routing.PREFIX, None) < 0.33
    for gossip_s in (0.1, 1.0, 5.0):
        assert narrow_part(Routing.PREFIX, gossip_s) == pytest.approx(0.4, abs=0.02)


@pytest.mark.slow
def test_where_all_wait_everywhere_gossip_changes_nothing() -> None:
    alone, told = (narrow_part(Routing.LEAST_LOADED, each) for each in (None, 0.1))
    assert alone == pytest.approx(told, abs=0.02)


@pytest.mark.long
def test_64_replicas_for_an_hour() -> None:
    """Some six million steps."""
    duration_s = 3600.0
    requests = load(duration_s, 70.0, 30.0)
    fleet = Fleet(A10G, 64, Routing.PREFIX, NS, merge_ns=10 * NS)
    runs = fleet.run(requests, round(duration_s * NS))
    had = device_ns(runs, 0, round(duration_s * NS))
    ended = sum(len(run.outcomes) for run in runs)
    assert ended > 0.95 * len(requests)
    assert had["narrow"] / sum(had.values()) == pytest.approx(0.3, abs=0.03)
