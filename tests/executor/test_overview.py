"""What a look is shown: sums are made before the cut, and one tenant's count nobody else."""

from __future__ import annotations

import pytest

from executor.contract import LANES_MAX, Lane
from executor.overview import overview


def lane(tenant: str, workload: str, waiting: int, used: float, due: float) -> Lane:
    return Lane(
        workload=workload,
        tenant=tenant,
        running=1,
        waiting=waiting,
        blocks=2,
        used=used,
        due=due,
        oldest_ms=waiting * 10,
    )


CROWD = [lane(f"t{n:03}", "xy"[n % 2], 1 + n // 2, 0.001, 0.001) for n in range(3 * LANES_MAX)]
QUIET = lane("quiet", "x", 0, 0.0, 0.001)


def test_a_crowd_is_cut_and_its_sums_are_not() -> None:
    shown = overview([QUIET, *CROWD])
    assert (len(shown.lanes), shown.left_out) == (LANES_MAX, len(CROWD) + 1 - LANES_MAX)
    assert shown.lanes[0].waiting == max(each.waiting for each in CROWD)
    assert QUIET not in shown.lanes
    x, y = shown.classes
    assert (x.workload, x.running, x.blocks) == ("x", 1 + len(CROWD) // 2, 2 + len(CROWD))
    assert x.waiting == y.waiting == sum(each.waiting for each in CROWD) // 2
    assert y.oldest_ms == 10 * shown.lanes[0].waiting
    assert x.used + y.used == pytest.approx(0.001 * len(CROWD))


def test_a_tenant_in_a_crowd_sees_its_own_and_no_sums_of_others() -> None:
    shown = overview([*CROWD, QUIET], "quiet")
    assert (shown.tenant, shown.lanes, shown.left_out) == ("quiet", (QUIET,), 0)
    (own,) = shown.classes
    assert (own.workload, own.running, own.waiting, own.blocks) == ("x", 1, 0, 2)
    assert overview(CROWD, "quiet").classes == ()


def test_the_lag_is_that_of_the_one_who_waits_and_is_furthest_behind() -> None:
    here = (lane("a", "x", 1, 0.1, 0.5), lane("a", "y", 0, 0.25, 0.5), lane("b", "x", 0, 0.0, 0.5))
    assert overview(here).lag_max == pytest.approx(0.15)
    assert overview(()).lag_max == 0.0
