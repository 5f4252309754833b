"""Whose room it is, and for how long (P5, TTL)."""

from __future__ import annotations

import pytest

from executor.contract import (
    Quota,
    Quotas,
)
from tests.executor.fakes import Clock, job
from tests.executor.labelled import (
    HOUR_MS,
    PROMPT,
    ask,
    cached,
    house_of,
    labelled,
    unlike,
    warm,
)
from tests.executor.test_engine import greedy

# P5: whose room


@pytest.mark.parametrize(("mine", "theirs"), (("a", "b"), ("b", "a")))
def test_no_owner_evicts_anothers(mine: str, theirs: str) -> None:
    house = house_of()
    ask(house, labelled(1, PROMPT, owner=theirs))
    for n in range(2, 12):
        ask(house, unlike(n, n, owner=mine))
    assert house.engine.gauges.cache_evictions > 0
    assert ask(house, labelled(20, PROMPT, owner=theirs)) == 16


def test_a_quota_is_never_exceeded() -> None:
    house = house_of(Quota(owner="a", part=3 / 32, pinned=0.0), Quota(owner="b", part=0.5))
    ask(house, labelled(1, PROMPT))
    assert house.engine.gauges.kept_blocks == 3
    assert ask(house, labelled(2, PROMPT)) == 12
    for n in range(3, 9):
        ask(house, unlike(n, n))
        assert house.engine.gauges.kept_blocks == 3


def test_parts_over_one_are_scaled_alike_and_who_is_not_named_keeps_nothing() -> None:
    house = house_of(Quota(owner="a", part=3.0, pinned=0.0), Quota(owner="b", part=1.0, pinned=0.0))
    house.step()
    owners = house.engine.keeper.cache._owners
    assert (owners["a"].kept_max, owners["b"].kept_max) == (24, 8)
    assert ask(house, labelled(1, PROMPT, owner="c")) == ask(house, labelled(2, PROMPT, owner="c"))
    assert house.engine.gauges.kept_blocks == 0


@pytest.mark.parametrize("part", (float("nan"), float("inf"), -1.0))
def test_what_is_no_part_is_none(part: float) -> None:
    house = house_of(Quota(owner="a", part=part), Quota(owner="b", part=1.0, pinned=part))
    house.step()
    owners = house.engine.keeper.cache._owners
    assert (owners["a"].kept_max, owners["a"].pinned_max) == (0, 0)
    assert (owners["b"].kept_max, owners["b"].pinned_max) == (32, 0)


def test_a_smaller_quota_is_obeyed_at_once() -> None:
    house = house_of()
    house.submit(warm(1))
    for n in (2, 3):
        house.submit(unlike(n, n))
    house.run()
    assert house.engine.gauges.kept_blocks == 11
    house.order(Quotas(quotas=(Quota(owner="a", part=2 / 32, pinned=0.5),)))
    house.step()
    assert house.engine.gauges.kept_blocks <= 2
    house.assert_empty()


def test_the_least_recently_used_goes_first_and_not_one_that_is_read() -> None:
    house = house_of(Quota(owner="a", part=8 / 32, pinned=0.0))
    ask(house, labelled(1, PROMPT))
    ask(house, unlike(2, 5))
    house.submit(labelled(3, PROMPT, max_new_tokens=3))  # reads the older of the two
    house.step()
    ask(house, unlike(4, 6))
    assert ask(house, labelled(5, PROMPT)) == 16
    assert ask(house, unlike(6, 5)) < 16
    house.assert_empty()


def test_an_entry_that_is_read_is_not_evicted_however_many_come() -> None:
    house = house_of(Quota(owner="a", part=4 / 32, pinned=0.0))
    house.submit(labelled(1, PROMPT, max_new_tokens=60))
    for n in range(2, 8):
        house.step()
        house.submit(unlike(n, n))
    house.run()
    assert house.tokens(1) == greedy(PROMPT, 60)
    assert house.engine.gauges.cache_evictions <= 4  # once it has ended


def test_what_runs_has_its_room_however_much_is_kept() -> None:
    """The pool is full; a request that needs all the rest runs, and evicts nothing."""
    house = house_of(Quota(owner="a", part=1.0, pinned=0.0))
    for n in range(1, 12):
        ask(house, unlike(n, n))
    assert house.engine.gauges.kept_blocks == 32
    evictions = house.engine.gauges.cache_evictions
    long = job(20, range(32), max_new_tokens=95, share=(("b", 1.0),))
    house.submit(long)
    house.run()
    last = house.ended(20)
    assert (last.generated, last.preemptions) == (95, 0)
    assert house.engine.gauges.cache_evictions == evictions


# Time


@pytest.mark.parametrize(
    ("idle_ms", "absolute_ms", "waits_ms", "found"),
    (
        (1000, HOUR_MS, (900, 900, 900), 16),
        (1000, HOUR_MS, (900, 1001), 0),
        (HOUR_MS, 1000, (600, 600), 0),
        (HOUR_MS, 1000, (300, 300), 16),
    ),
)
def test_time_is_the_engines_and_is_asked_at_each_look_up(
    idle_ms: int, absolute_ms: int, waits_ms: tuple[int, ...], found: int
) -> None:
    house = house_of(clock=Clock(tick_ns=1000))
    ask(house, labelled(1, PROMPT, idle_ms=idle_ms, absolute_ms=absolute_ms))
    house.engine.keeper.cache._due.clear()  # no sweeper
    for n, wait_ms in enumerate(waits_ms, 2):
        house.clock.now_ns += wait_ms * 1_000_000
        last = ask(house, labelled(n, PROMPT, idle_ms=idle_ms, absolute_ms=absolute_ms))
    assert last == found


def test_what_has_ended_is_swept_and_wiped_though_nobody_asks() -> None:
    house = house_of()
    ask(house, labelled(1, PROMPT, idle_ms=1000))
    house.clock.now_ns += 2_000_000_000
    house.step()
    assert house.engine.gauges.kept_blocks == 0
    house.assert_empty()


def test_what_ends_while_it_is_read_is_read_to_the_end_and_then_wiped() -> None:
    house = house_of()
    house.submit(labelled(1, PROMPT, max_new_tokens=20, absolute_ms=10))
    house.step()
    house.clock.now_ns += 20_000_000
    house.submit(labelled(2, PROMPT, absolute_ms=10))
    house.step()
    house.run()
    assert cached(house, 2) == 0
    assert house.tokens(1) == greedy(PROMPT, 20)
    house.clock.now_ns += 20_000_000
    house.step()
    assert house.engine.gauges.kept_blocks == 0
    house.assert_empty()
