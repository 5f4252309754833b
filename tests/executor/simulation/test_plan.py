"""How many replicas a promise needs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from executor.simulation.machine import A10G
from executor.simulation.metrics_requests import Target
from executor.simulation.plan import plan_for
from executor.simulation.traces import Arrival

ONE_ROW = replace(A10G, seqs=1)
TARGET = Target(ttft_s=0.5)


def clockwork(per_s: float, count: int) -> list[Arrival]:
    """Each takes a replica of one row about 0.5 s: a prompt of 100 tokens, 30 steps of 16 ms."""
    return [Arrival(i / per_s, "t", 100, 30) for i in range(count)]


def test_the_least_number_that_keeps_the_promise() -> None:
    sized = plan_for(clockwork(5.0, 60), ONE_ROW, TARGET)
    assert sized.replicas == 3
    assert sized.tried[3] >= 0.99 > sized.tried[2]
    assert set(sized.tried) == {1, 2, 3, 4}


def test_one_is_enough_for_little() -> None:
    assert plan_for(clockwork(0.5, 5), ONE_ROW, TARGET).tried == {1: 1.0}


def test_no_number_within_the_bound_may_be_enough() -> None:
    sized = plan_for(clockwork(8.0, 60), ONE_ROW, TARGET, replicas_max=3)
    assert sized.replicas is None
    assert sized.tried[3] < 0.99


def test_what_can_never_be_served_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        plan_for([], A10G, TARGET)
    with pytest.raises(
        ValueError, match="1 of 2 requests never fit: the longest needs 10001 tokens"
    ):
        plan_for([Arrival(0.0, "t", 10, 10), Arrival(1.0, "t", 10_000, 1)], A10G, TARGET)


def test_how_far_it_is_is_told_by_number_of_replicas() -> None:
    told: list[tuple[int, float]] = []
    short = [Arrival(0.0, "t", 1, 1)] * 300
    plan_for(short, A10G, Target(0.0), replicas_max=2, say=lambda *a: told.append(a))
    assert [part for replicas, part in told if replicas == 1] == [i / 100 for i in range(100)]
    assert {replicas for replicas, _ in told} == {1, 2}


def test_a_long_answer_at_the_end_is_waited_for() -> None:
    """A hundred tokens at 1.6 s."""
    slow = A10G.slower(100)
    last = [Arrival(0.0, "t", 10, 100)]
    assert plan_for(last, slow, Target(10.0), replicas_max=1).replicas == 1
    assert plan_for(last, slow, Target(10.0, 2.0), replicas_max=1).replicas == 1
    assert plan_for(last, slow, Target(10.0, 1.0), replicas_max=1).replicas is None
