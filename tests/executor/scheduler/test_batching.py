from __future__ import annotations

import pytest

from executor.batch import Batch
from executor.contract import Cause
from executor.scheduler.batching import Batching, BatchRule, Newcomers, newcomers
from executor.settings import Policy, Settings
from tests.executor.fakes import Clock, FakeRunner, Harness, job

MS = 1_000_000
POLICIES = tuple(Policy)


class Waiting:
    def __init__(self, since_ms: int) -> None:
        self.since_ns = since_ms * MS


def test_continuous_lets_in_whoever_there_is_room_for() -> None:
    rule = BatchRule(Batching.CONTINUOUS, size=2)
    assert newcomers(rule, 7, [], 8, 0) == Newcomers(8)


def test_static_takes_what_is_there_when_the_last_batch_has_ended() -> None:
    rule = BatchRule(Batching.STATIC, size=3)
    assert newcomers(rule, 1, [Waiting(0)] * 9, 8, 10**15) == Newcomers(0)
    assert newcomers(rule, 0, [Waiting(0)], 8, 0) == Newcomers(3)
    assert newcomers(rule, 0, [Waiting(0)], 2, 0) == Newcomers(2)


def test_dynamic_waits_for_a_full_batch_or_so_long() -> None:
    rule = BatchRule(Batching.DYNAMIC, size=3, wait_ms=50)
    two = [Waiting(30), Waiting(10)]
    assert newcomers(rule, 1, two * 2, 8, 10**15) == Newcomers(0)
    assert newcomers(rule, 0, two, 8, 59 * MS) == Newcomers(0, 60 * MS)
    assert newcomers(rule, 0, two, 8, 60 * MS) == Newcomers(3)
    assert newcomers(rule, 0, two * 2, 8, 11 * MS) == Newcomers(3)
    assert newcomers(rule, 0, two, 2, 11 * MS) == Newcomers(2), "no more rows than that"
    assert newcomers(rule, 0, [], 8, 0) == Newcomers(3), "nobody to wait for"


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
