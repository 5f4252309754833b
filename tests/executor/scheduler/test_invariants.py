"""SCHEDULER.md §2's invariants over generated histories.  Elsewhere: 06, 08, 09 and 16 in `test_shares.py`;
15, 17 and 18 in `test_admission.py` and `test_lobby.py`; 20 in `../test_engine_fuzz.py`; 21, which is of the
gateway's rates, in `tests/policies/test_rate.py` and `tests/tenants/test_tempo.py`."""

from __future__ import annotations

import pytest

from executor.scheduler.accounts import terms_of
from tests.executor.fakes import Harness, job
from tests.executor.scheduler.driver import House
from tests.executor.scheduler.histories import (
    booked,
    clocks,
    idle_room,
    play,
    reclaims,
    start_times,
)

FEW = (0, 1, 3, 5, 8, 13)
RECLAIMING = (0, 14, 33, 72, 73, 157)


def books(seed: int) -> House:
    """04 and 05: exactly what was measured of each tenant stands in its account in the end."""
    with booked() as sums:
        house = play(seed)
    due: dict[str, float] = {}
    for each in house.made:
        weight = terms_of(house.limits.workloads, each.workload).weight or 1.0
        due[each.tenant] = due.get(each.tenant, 0.0) + house.by_job_ns[each.ticket] / weight
    for tenant, cost in due.items():
        assert sums[tenant] == pytest.approx(cost, rel=1e-6, abs=1.0)
    assert sum(house.by_job_ns.values()) + house.lost_ns == house.measured_ns
    return house


def leaves_nothing(house: House) -> None:
    fair = house.fair
    for clock in clocks(fair):
        assert (len(clock.tenants), clock.tenants.weight, len(clock.users)) == (0, 0.0, 0)
        assert not clock.tenants._debts
    residency = fair._residency
    assert (residency.rows, residency.committed) == (0, 0)
    assert not residency._rows
    assert not residency._blocks
    assert not fair._waiting
    assert not fair._running
    for band in fair._bands.values():
        assert band.count == len(band.tenants) == len(band.resting) == 0
        assert not band._users
        assert not band._queues


def all_of_them(seed: int) -> None:
    """Every check at once, for the long runs."""
    with reclaims():
        house = play(seed, start_times, idle_room)
    leaves_nothing(house)
    assert all(each.ends == 1 for each in house.made)


def test_01_each_request_ends_once_and_nothing_is_left_of_it() -> None:
    for seed in FEW:
        house = play(seed)
        assert all(each.ends == 1 for each in house.made)
        leaves_nothing(house)


def test_02_10_11_memory_is_conserved_no_decode_skipped_no_step_too_large() -> None:
    """`House` checks these after every step of every history; here: that the histories are hard."""
    houses = [play(seed) for seed in FEW]
    assert sum(each.preemptions > 0 for house in houses for each in house.made) > 3
    assert any(house.free == house.limits.blocks_total for house in houses)
    assert sum(len(house.made) for house in houses) > 80


def test_03_time_goes_on_and_a_start_falls_by_its_own_refund_only() -> None:
    for seed in FEW:
        play(seed, start_times)


def test_04_05_charges_less_refunds_are_what_was_measured() -> None:
    for seed in FEW:
        books(seed)


def test_07_nobody_waits_beside_room_and_time() -> None:
    for seed in (*FEW, 15163, 17313):  # in the last two decodes take what was free
        play(seed, idle_room)


def test_12_only_lower_classes_or_who_is_over_its_share_is_put_out() -> None:
    with reclaims(needed=False) as seen:
        for seed in RECLAIMING:
            play(seed)
    assert sum(seen) > 8, "the histories do not reclaim"


def test_13_no_more_is_put_out_than_is_needed() -> None:
    with reclaims(allowed=False) as seen:
        for seed in RECLAIMING:
            play(seed)
    assert max(seen) > 1, "the histories do not reclaim"


def test_14_a_cancel_gives_all_blocks_back_within_a_step() -> None:
    house = Harness()
    for request in (1, 2, 3):
        house.submit(job(request, range(1, 9), max_new_tokens=20))
    house.step()
    house.step()
    said = len(house.tokens(2))
    for request in (1, 2, 3):
        house.abort(request)
    house.step()
    assert len(house.tokens(2)) == said
    house.assert_empty()


def test_19_the_same_trace_is_decided_the_same() -> None:
    for seed in range(4):
        assert play(seed).plans == play(seed).plans


@pytest.mark.slow
def test_two_thousand_histories() -> None:
    for seed in range(1000, 3000):
        all_of_them(seed)
    for seed in range(3000, 3300):
        books(seed)


@pytest.mark.long
def test_a_hundred_thousand_histories() -> None:
    for seed in range(10_000, 110_000):
        all_of_them(seed)
        if seed % 10 == 0:
            books(seed)
