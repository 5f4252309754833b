from __future__ import annotations

import pytest

from executor.batch import Batch
from executor.contract import Cause
from executor.scheduler.batching import Batching, BatchRule, Gate, Newcomers
from executor.settings import Policy, Settings
from tests.executor.fakes import Clock, FakeRunner, Harness, job

MS = 1_000_000
POLICIES = tuple(Policy)


class Waiting:
    def __init__(self, ticket: int, since_ms: int = 0) -> None:
        self.ticket = ticket
        self.since_ns = since_ms * MS


def crowd(*tickets: int) -> list[Waiting]:
    return [Waiting(ticket) for ticket in tickets]


def gate_of(kind: Batching, size: int, wait_ms: int = 50) -> Gate:
    return Gate(BatchRule(kind, size, wait_ms))


def test_continuous_lets_in_whoever_there_is_room_for() -> None:
    gate = gate_of(Batching.CONTINUOUS, 2)
    for ticket in range(5):
        assert gate.opens(7, [], 8, 0) == Newcomers(8)
        assert gate.invites(ticket)
        gate.let_in(ticket)
        gate.settle(time_left=True)


def test_a_batch_takes_as_many_steps_to_fill_as_its_prompts_take() -> None:
    gate = gate_of(Batching.STATIC, 3)
    assert gate.opens(0, crowd(1, 2, 3, 4), 8, 0) == Newcomers(3)
    gate.let_in(1)
    gate.settle(time_left=False)
    assert gate.opens(1, crowd(2, 3, 4, 5), 8, 0) == Newcomers(2)
    assert [gate.invites(n) for n in (2, 3, 4, 5)] == [True, True, True, False], "5 came later"
    gate.let_in(4)
    gate.let_in(2)
    assert not gate.invites(3), "it is full"
    gate.settle(time_left=False)
    assert gate.opens(3, crowd(3, 5), 8, 0) == Newcomers(0)
    assert gate.opens(0, crowd(3, 5), 8, 0) == Newcomers(3)
    assert gate.invites(5)


def test_rows_bound_it_too() -> None:
    assert gate_of(Batching.STATIC, 3).opens(0, crowd(1), 2, 0) == Newcomers(2)


def test_it_closes_when_there_is_time_and_nobody_comes_in() -> None:
    """They have gone, or there is no room for them: it does not stay open for who cannot come."""
    gate = gate_of(Batching.STATIC, 4)
    gate.opens(0, crowd(1, 2, 3), 8, 0)
    gate.let_in(1)
    gate.settle(time_left=False)
    assert gate.opens(1, crowd(3), 8, 0) == Newcomers(3), "2 has left; nobody takes its place"
    assert not gate.invites(4)
    gate.settle(time_left=True)
    assert gate.opens(1, crowd(3, 4), 8, 0) == Newcomers(0)
    assert not gate.invites(3)


def test_who_was_put_out_still_belongs_to_it() -> None:
    gate = gate_of(Batching.STATIC, 2)
    gate.opens(0, crowd(1, 2, 3), 8, 0)
    gate.let_in(1)
    gate.let_in(2)
    gate.settle(time_left=True)
    assert gate.opens(1, crowd(2, 3), 8, 0) == Newcomers(1)
    assert (gate.invites(2), gate.invites(3)) == (True, False)
    gate.let_in(2)
    assert gate.opens(2, crowd(3), 8, 0) == Newcomers(0)
    assert gate.opens(0, crowd(3), 8, 0) == Newcomers(2)


def test_dynamic_waits_for_a_full_batch_or_so_long() -> None:
    two = [Waiting(1, 30), Waiting(2, 10)]

    def gate() -> Gate:
        return gate_of(Batching.DYNAMIC, 3)

    assert gate().opens(1, two * 2, 8, 10**15) == Newcomers(0)
    waits = gate()
    assert waits.opens(0, two, 8, 59 * MS) == Newcomers(0, 60 * MS)
    assert not waits.invites(1)
    assert waits.opens(0, two, 8, 60 * MS) == Newcomers(3)
    assert waits.invites(1)
    assert gate().opens(0, two * 2, 8, 11 * MS) == Newcomers(3)
    assert gate().opens(0, two, 2, 11 * MS) == Newcomers(2), "no more rows than that"
    assert gate().opens(0, [], 8, 0) == Newcomers(3), "nobody to wait for"


def rows_of(house: Harness) -> list[int]:
    seen: list[int] = []

    def before(batch: Batch) -> None:
        seen.append(len(batch.rows))

    house.runner.before = before
    return seen


def house_of(policy: Policy, rule: BatchRule) -> Harness:
    settings = Settings(policy=policy, batching=rule, speculation=False, check_invariants=True)
    return Harness(FakeRunner(kv_blocks=200), settings=settings, clock=Clock(MS))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_static_batch_ends_before_the_next_begins(policy: Policy) -> None:
    house = house_of(policy, BatchRule(Batching.STATIC, size=2))
    seen = rows_of(house)
    for request, length in enumerate((3, 6, 4, 4, 2), 1):
        house.submit(job(request, max_new_tokens=length))
    house.run()
    assert seen == [2] * 3 + [1] * 3 + [2] * 4 + [1] * 2
    assert all(house.ended(n).cause is Cause.LENGTH for n in range(1, 6))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_dynamic_batch_begins_full_or_in_time(policy: Policy) -> None:
    house = house_of(policy, BatchRule(Batching.DYNAMIC, size=2, wait_ms=50))
    seen = rows_of(house)
    house.submit(job(1, max_new_tokens=2))
    house.step()
    assert not seen
    assert not house.engine.busy
    wake_ns = house.engine.wake_ns
    assert wake_ns is not None
    house.clock.now_ns = wake_ns
    house.step()
    house.run()
    assert seen == [1, 1]
    house.submit(job(2, max_new_tokens=1))
    house.submit(job(3, max_new_tokens=1))
    house.step()
    assert seen == [1, 1, 2]
    assert house.engine.wake_ns is None


def slow_house_of(policy: Policy, rule: BatchRule, kv_blocks: int = 200) -> Harness:
    """A step has time for one prompt of eight tokens."""
    settings = Settings(
        policy=policy,
        batching=rule,
        speculation=False,
        check_invariants=True,
        step_tokens_max=8,
        chunk_tokens_min=8,
    )
    return Harness(FakeRunner(kv_blocks=kv_blocks), settings=settings, clock=Clock(MS))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_batch_is_as_large_as_it_may_be_however_long_its_prompts_are(policy: Policy) -> None:
    house = slow_house_of(policy, BatchRule(Batching.STATIC, size=3))
    seen = rows_of(house)
    for request in range(1, 5):
        house.submit(job(request, range(8), max_new_tokens=6))
    house.step()
    house.submit(job(5, range(8), max_new_tokens=6))
    house.run()
    assert seen == [1, 2, 3, 3, 3, 3, 2, 1, *(1, 2, 2, 2, 2, 2, 1)]
    assert all(house.ended(n).cause is Cause.LENGTH for n in range(1, 6))


@pytest.mark.parametrize("policy", POLICIES)
def test_who_leaves_while_a_batch_fills_is_not_replaced(policy: Policy) -> None:
    house = slow_house_of(policy, BatchRule(Batching.STATIC, size=3))
    seen = rows_of(house)
    for request in (1, 2, 3):
        house.submit(job(request, range(8), max_new_tokens=6))
    house.step()
    house.abort(2)
    house.submit(job(4, range(8), max_new_tokens=2))
    house.run()
    assert seen == [1, 2, 2, 2, 2, 2, 1, *(1, 1)]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", (Batching.STATIC, Batching.DYNAMIC))
def test_too_little_memory_for_a_batch_keeps_nobody_waiting_for_ever(
    policy: Policy, kind: Batching
) -> None:
    """Six blocks: two prompts of eight at most, and not all that they say."""
    house = slow_house_of(policy, BatchRule(kind, size=4, wait_ms=5), kv_blocks=6)
    seen = rows_of(house)
    for request in range(1, 8):
        house.submit(job(request, range(8), max_new_tokens=12))
    for _ in range(400):
        if not house.inbox and not house.engine.busy and house.engine.wake_ns is None:
            break
        house.step()
    assert all(house.ended(n).cause is Cause.LENGTH for n in range(1, 8))
    assert max(seen) <= 2
    house.assert_empty()
