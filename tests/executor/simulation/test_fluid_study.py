"""The study's traffic is what it says, its figures equal sums done by hand."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

import pytest

from executor.simulation.fluid_outcome import Felt, Sample, Tally
from executor.simulation.fluid_study import (
    PLAIN_PER_S,
    Play,
    Played,
    churn,
    floods,
    in_time,
    part_of_due,
    parts_of_due,
    spread,
    two_sorts,
    within_share,
)
from executor.simulation.machine import A10G
from executor.simulation.metrics_requests import Ending
from executor.simulation.work import NS, Request


def felt(tenant: str, first_s: float | None, device_s: float = 0.0) -> Felt:
    first_ns = None if first_s is None else round(first_s * NS)
    request = Request(0, tenant, 100, 10)
    return Felt(request, Ending.FINISHED, first_ns, 9 * NS, 0, 1, round(device_s * NS))


def sample(at_s: int, waits: str, **had_s: int) -> Sample:
    had = Counter({tenant: seconds * NS for tenant, seconds in had_s.items()})
    return Sample(at_s * NS, had, frozenset(waits), len(waits), 0)


SAMPLES = (
    sample(10, "ab", a=50),
    sample(20, "abc", a=4, b=2, c=1),
    sample(30, "ab", a=3, b=1, c=1),
)


def test_a_spread_is_of_those_who_waited_all_the_time() -> None:
    found = spread(Played([felt("a", 1.0, 2.5)], SAMPLES, Tally(), 1), 2)
    assert (found.tenants, found.least_s, found.mean_s, found.most_s) == (2, 3.0, 5.0, 7.0)
    assert (found.gap_s, found.over_s, found.cost_max_s) == (4.0, 20.0, 2.5)


def test_a_part_of_what_is_due() -> None:
    """a and b are due half of ten each; of the last two samples b had three of twelve."""
    played = Played([], SAMPLES, Tally(), 1)
    assert part_of_due(played, 2, "b", 1) == pytest.approx(3 / 6)


def test_who_asks_for_less_is_due_that() -> None:
    """Capacity 12 s; small asked for 2 s and had it, a and b for more than the 5 s that are due, a had 7."""
    had = sample(10, "", a=7, b=3, s=2)
    played = Played([felt("s", 1.0, 2.0)], [had], Tally(), 1)
    prompt = round(20 * NS / A10G.token_ns)
    requests = [felt("s", 1.0).request, Request(0, "a", prompt, 1), Request(0, "b", prompt, 1)]
    assert parts_of_due(played, requests) == pytest.approx([0.6, 1.0, 1.0])
    assert within_share(played, requests, 12 * NS) == {"s"}
    assert within_share(played, requests, 99 * NS) == {"s", "a", "b"}


def test_in_time_counts_all_that_arrived() -> None:
    some = [felt("a", 1.0), felt("a", 3.0), felt("a", None)]
    assert in_time(Played(some, [], Tally(arrived=4), 1), 2.0) == 0.25


def test_traffic_is_as_large_as_it_says() -> None:
    requests = two_sorts(20, 60.0, 5)
    count = Counter(each.tenant[0] for each in requests)
    assert count["n"] == pytest.approx(20 * PLAIN_PER_S * 60 / 2, rel=0.1)
    assert count["w"] == pytest.approx(20 * PLAIN_PER_S * 60, rel=0.1)
    assert len({each.user for each in requests if each.tenant == "n1"}) == 1
    assert len(floods(10, 2.0, 60.0, 2)) == pytest.approx(1200 * PLAIN_PER_S, abs=4)


def test_tenants_come_twice_and_go() -> None:
    requests = list(churn(100_000, 40.0, Random(1)))
    count = Counter(each.tenant for each in requests)
    assert len(count) == pytest.approx(100_000 / 90, rel=0.1)
    assert set(count.values()) == {1, 2}
    assert all(a.at_ns <= b.at_ns for a, b in pairwise(requests))


def test_what_is_left_may_end() -> None:
    requests = [Request(i * NS // 10, "t", 100, 50) for i in range(40)]
    assert Play(1).of(requests, 2.0).tally.left > 0
    drained = Play(1).of(requests, 2.0, 30.0)
    assert (drained.tally.arrived, drained.tally.left, len(drained.felt)) == (20, 0, 20)
