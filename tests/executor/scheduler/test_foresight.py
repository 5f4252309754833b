"""What is learnt of predictions, and what of a long queue a newcomer stands behind."""

from __future__ import annotations

import pytest

from executor.contract import Workload
from executor.scheduler.fair import Fair
from executor.scheduler.foresight import Queue, Waiter
from executor.scheduler.promises import FACTOR_AT_FIRST, Ahead
from tests.executor.scheduler.driver import House, Job, limits

S = 1_000_000_000


def house_of(seqs: int = 1) -> House:
    machine = limits(seqs=seqs, workloads=(Workload(name="", ttft_ms=400),))
    return House(machine, Fair(machine))


def told(house: House, predicted_ns: float, **fields: object) -> Job:
    """One that was let in by that prediction, and waits."""
    house.fair._admission.foresight.watches(
        Job(len(house.made), tenant="a"), predicted_ns, house.now_ns
    )
    return house.add(tenant="a", **fields)


def factor(house: House) -> float:
    return house.fair._admission.foresight.factor(Job(0, tenant="a"), house.now_ns)


@pytest.mark.parametrize("length", (1, 4))
def test_a_first_word_that_came_late_is_learnt_from_also_if_it_was_the_last(length: int) -> None:
    house = house_of()
    told(house, 1.0, length=length)
    house.run()
    assert factor(house) > FACTOR_AT_FIRST


def test_a_single_word_in_time_is_learnt_from() -> None:
    house = house_of()
    told(house, 100.0 * S, length=1)
    house.run()
    assert factor(house) < FACTOR_AT_FIRST


@pytest.mark.parametrize("waited_s", (2, 1))
def test_who_leaves_without_a_word_teaches_only_that_it_was_too_late(waited_s: int) -> None:
    """1 s is predicted, 1.5 s by the factor at first."""
    house = house_of()
    job = told(house, 1.0 * S)
    house.now_ns += waited_s * S
    was = factor(house)
    house.end(job)
    assert (factor(house) > was) is (waited_s == 2)
    assert not house.fair._admission.foresight._guesses


def test_who_has_an_old_place_stands_behind_those_before_it_however_many_wait() -> None:
    queue = Queue()
    for place in reversed(range(1000)):
        queue.push(place, Waiter(place, "u", Ahead(2, 3)))
    for place, near, rest in (
        (0, 0, 0),
        (5, 5, 0),
        (256, 256, 0),
        (300, 256, 44),
        (999, 256, 743),
        (5000, 256, 744),
    ):
        found, others = queue.before(place)
        assert (len(found), others) == (near, Ahead(2 * rest, 3 * rest))


def test_of_a_long_queue_what_is_told_of_the_middle_is_in_proportion_and_of_the_end_exact() -> None:
    queue = Queue()
    for place in range(512):
        queue.push(place, Waiter(place, "u", Ahead(place, 1)))
    assert queue.before(512)[1] == Ahead(sum(range(256, 512)), 256)
    assert queue.before(384)[1] == Ahead(round(sum(range(256, 512)) / 2), 128)
    for place in range(512):
        queue.pop(place)
    assert (len(queue), queue.prompts, queue.answers) == (0, 0, 0)
