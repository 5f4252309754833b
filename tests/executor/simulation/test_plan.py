"""How many replicas a promise needs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from executor.contract import Workload
from executor.simulation.machine import A10G
from executor.simulation.metrics_requests import Target
from executor.simulation.plan import Miss, PlanError, plan_for
from executor.simulation.traces import Arrival

ONE_ROW = replace(A10G, seqs=1)
TARGET = {"": Target(ttft_s=0.5)}


def clockwork(per_s: float, count: int) -> list[Arrival]:
    """Each takes a replica of one row about 0.5 s: a prompt of 100 tokens, 30 steps of 16 ms."""
    return [Arrival(i / per_s, "t", 100, 30) for i in range(count)]


def test_the_least_number_that_keeps_the_promise() -> None:
    sized = plan_for(clockwork(5.0, 40), ONE_ROW, TARGET)
    assert sized.replicas == 3
    assert sized.tried[3][""] >= 0.99 > sized.tried[2][""]
    assert set(sized.tried) == {1, 2, 3, 4}


def test_one_is_enough_for_little() -> None:
    assert plan_for(clockwork(0.5, 5), ONE_ROW, TARGET).tried == {1: {"": 1.0}}


def test_no_number_within_the_bound_may_be_enough() -> None:
    sized = plan_for(clockwork(8.0, 30), ONE_ROW, TARGET, replicas_max=3)
    assert sized.replicas is None
    assert not sized.beyond
    assert sized.tried[3][""] < 0.99
    assert sized.tried[3][""] == pytest.approx(1 - sized.missed[""].total() / 30)
    assert sized.missed[""].keys() == {Miss.LATE}


def test_what_no_number_keeps_is_not_tried() -> None:
    """A prompt of 100 takes 37 ms, a token 16, whoever else is there."""
    sized = plan_for(clockwork(8.0, 30), ONE_ROW, {"": Target(0.02)})
    assert (sized.replicas, sized.tried) == (None, {})
    assert (sized.beyond[""].late, sized.beyond[""].slow) == (30, 0)


def test_why_what_was_missed_was_missed() -> None:
    """Those who come while a prompt is computed wait for it between two tokens; those who are refused
    have no times."""
    two_rows = replace(A10G, seqs=2)
    sized = plan_for(clockwork(8.0, 30), two_rows, {"": Target(60.0, 0.0165)}, replicas_max=1)
    assert sized.missed[""].keys() >= {Miss.SLOW}
    promise = (Workload(name="now", ttft_ms=1000),)
    burst = [Arrival(0.0, "t", 100, 30, workload="now")] * 20
    sized = plan_for(burst, ONE_ROW, {"now": Target(1.0)}, workloads=promise, replicas_max=1)
    assert sized.missed["now"][Miss.REFUSED] > 10


def test_what_can_never_be_served_is_refused() -> None:
    with pytest.raises(PlanError, match="empty"):
        plan_for([], A10G, TARGET)
    with pytest.raises(
        PlanError,
        match=r"1 of 2 requests never fit: the longest needs 10,001 tokens .* has 10,000, however many "
        r"replicas there are; 99 % fit from 10,016 on: .* \(--kv-tokens\)",
    ):
        plan_for([Arrival(0.0, "t", 10, 10), Arrival(1.0, "t", 10_000, 1)], A10G, TARGET)


def test_a_few_that_never_fit_miss_and_the_others_are_planned_for() -> None:
    trace = [*([Arrival(0.0, "t", 10, 10)] * 3), Arrival(0.0, "t", 10_000, 1)]
    sized = plan_for(trace, A10G, TARGET, part=0.75)
    assert (sized.replicas, sized.too_long) == (1, 1)
    assert sized.tried == {1: {"": 0.75}}
    with pytest.raises(PlanError, match="1 of 4 requests never fit"):
        plan_for(trace, A10G, TARGET, part=0.76)


def test_how_far_it_is_is_told_by_number_of_replicas() -> None:
    told: list[tuple[int, float]] = []
    short = [Arrival(0.0, "t", 1, 1)] * 300
    plan_for(short, A10G, {"": Target(0.1)}, replicas_max=2, say=lambda *a: told.append(a))
    assert [part for replicas, part in told if replicas == 1] == [i / 100 for i in range(100)]
    assert {replicas for replicas, _ in told} == {1, 2}


def test_a_long_answer_at_the_end_is_waited_for() -> None:
    """A hundred tokens at 1.6 s."""
    slow = A10G.slower(100)
    last = [Arrival(0.0, "t", 10, 100)]
    assert plan_for(last, slow, {"": Target(10.0)}, replicas_max=1).replicas == 1
    assert plan_for(last, slow, {"": Target(10.0, 2.0)}, replicas_max=1).replicas == 1
    assert plan_for(last, slow, {"": Target(10.0, 1.0)}, replicas_max=1).replicas is None


CLASSES = (
    Workload(name="now", weight=1.0, itl_ms=200),
    Workload(name="soon", weight=1.0, itl_ms=200),
    Workload(name="later", weight=None, floor=0.05),
)


def of_classes(per_s: float, count: int) -> list[Arrival]:
    """In turns; what is for later is promised nothing."""
    return [
        replace(each, workload=CLASSES[number % 3].name)
        for number, each in enumerate(clockwork(per_s, count))
    ]


def test_each_class_has_a_number_of_its_own_and_the_largest_decides() -> None:
    targets = {"now": Target(0.1), "soon": Target(2.0), "unasked": Target(0.0)}
    sized = plan_for(of_classes(5.0, 36), ONE_ROW, targets, workloads=CLASSES)
    assert sized.needs.keys() == {"now", "soon"}
    now, soon = sized.needs["now"], sized.needs["soon"]
    assert now is not None
    assert soon is not None
    assert now > soon > 1
    for name, needs in (("now", now), ("soon", soon)):
        assert sized.tried[needs][name] >= 0.99 > sized.tried[needs - 1][name]
    assert sized.replicas == now
    assert sized.binding == ("now",)


def test_a_class_that_none_can_keep_decides_and_the_others_have_their_number() -> None:
    targets = {"now": Target(0.0), "soon": Target(2.0)}
    sized = plan_for(of_classes(5.0, 24), ONE_ROW, targets, workloads=CLASSES, replicas_max=4)
    assert sized.beyond.keys() == {"now"}
    assert max(sized.tried) < 4, "what no number keeps asked for more"
    assert sized.needs["now"] is None
    assert sized.needs["soon"] in {2, 3}
    assert sized.replicas is None
    assert sized.binding == ("now",)


def test_the_terms_of_the_classes_are_kept_in_each_replica() -> None:
    """A tenant's own work for later stands in the way of what it wants now, unless that has a part."""
    flood = [Arrival(0.0, "ops", 100, 100, workload="later")] * 12
    calls = [Arrival(0.5 + i, "ops", 100, 10, workload="now") for i in range(3)]
    four_rows = replace(A10G, seqs=4)

    def in_time(*workloads: Workload) -> float:
        sized = plan_for(
            [*flood, *calls],
            four_rows,
            {"now": Target(0.4)},
            workloads=workloads,
            replicas_max=1,
        )
        return sized.tried[1]["now"]

    later = Workload(name="later", weight=None, floor=0.05)
    assert in_time(Workload(name="now", reserved=0.3), later) == 1
    assert in_time() < 1


def test_what_is_refused_is_not_in_time() -> None:
    """Of twenty at once whose first token is promised within a second, the machine says at once to whom
    it could not keep that, and those who come later need not wait behind them."""
    burst = [Arrival(0.0, "t", 100, 30, workload="now")] * 20
    later = [Arrival(4.0 + i, "t", 100, 30, workload="now") for i in range(4)]

    def in_time(*workloads: Workload) -> float:
        sized = plan_for(
            [*burst, *later], ONE_ROW, {"now": Target(1.0)}, workloads=workloads, replicas_max=1
        )
        return sized.tried[1]["now"]

    assert in_time() == pytest.approx(2 / 24)
    assert 5 / 24 <= in_time(Workload(name="now", ttft_ms=1000)) < 9 / 24


def test_a_plan_for_nothing_promised_is_refused() -> None:
    with pytest.raises(PlanError, match="no request of the trace is promised anything"):
        plan_for(of_classes(1.0, 3)[2:], A10G, {"now": Target(1.0)}, workloads=CLASSES)
