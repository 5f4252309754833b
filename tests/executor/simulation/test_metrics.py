"""Each number of fairness by hand, on cases small enough for a pencil; then the laws they obey."""

from __future__ import annotations

from random import Random

import pytest

from executor.simulation.metrics import (
    Backlog,
    Difference,
    Service,
    attained,
    backlogs,
    difference,
    differences,
    due,
    gap,
    jain,
    max_min_share,
    served,
    work_conservation,
    worst_gap,
)

# a: 10 at 0 s, 20 at 1 s, 30 at 2 s; b: 5 at 1 s, 40 evenly from 1 s to 5 s (10 each second).
LOG = [
    Service(0.0, "a", 10.0),
    Service(1.0, "a", 20.0),
    Service(2.0, "a", 30.0),
    Service(1.0, "b", 5.0),
    Service(1.0, "b", 40.0, over_s=4.0),
]


def test_service_in_a_window() -> None:
    assert served(LOG, (0.0, 2.0)) == {"a": 30.0, "b": 15.0}
    assert served(LOG, (2.0, 3.5)) == {"a": 30.0, "b": 15.0}
    assert served(LOG, (4.5, 9.0)) == {"a": 0.0, "b": 5.0}
    assert served(LOG, (-1.0, 9.0)) == {"a": 60.0, "b": 45.0}


def test_waits_that_touch_are_one_backlog() -> None:
    waits = [
        ("a", 3.0, 5.0),
        ("a", 0.0, 2.0),
        ("a", 1.0, 3.0),
        ("a", 1.5, 2.0),
        ("b", 1.0, 1.0),
        ("a", 7.0, 8.0),
    ]
    assert backlogs(waits) == [Backlog("a", 0.0, 5.0), Backlog("a", 7.0, 8.0)]


def test_gap_counts_only_who_waited_throughout() -> None:
    """To 2 s: a 30, b 15, c 0; b has weight ½, so 30 against 30.  c waits from 1 s on: no part."""
    waiting = [Backlog("a", 0.0, 9.0), Backlog("b", 0.0, 9.0), Backlog("c", 1.0, 9.0)]
    assert gap(LOG, waiting, (0.0, 2.0)) == 15.0
    assert gap(LOG, waiting, (0.0, 2.0), {"b": 0.5}) == 0.0
    assert gap(LOG, waiting, (1.0, 2.0)) == 20.0
    assert gap(LOG, waiting[1:], (0.0, 2.0)) == 0.0
    assert gap(LOG, [waiting[0], Backlog("b", 0.0, 1.9)], (0.0, 2.0)) == 0.0


def test_the_worst_window_is_found() -> None:
    """D = W_a − W_b: +4 (0 s), then −3 and −5 (1, 2 s), then +6 and −6 at once (3 s), then +1.
    From its high 4 to its low −4: 8, the window [1, 3)."""
    log = [
        Service(at_s, tenant, amount)
        for at_s, tenant, amount in (
            (0.0, "a", 4.0),
            (1.0, "b", 3.0),
            (2.0, "b", 5.0),
            (3.0, "a", 6.0),
            (3.0, "b", 6.0),
            (4.0, "a", 1.0),
        )
    ]
    both = [Backlog("a", 0.0, 9.0), Backlog("b", 0.0, 9.0)]
    assert worst_gap(log, both) == 8.0
    assert worst_gap(log, [both[0], Backlog("b", 0.0, 2.0)]) == 4.0
    assert worst_gap(log, both, {"b": 2.0}) == 4.0  # 4, 2.5, 0, 3, 4: from 4 to 0 or back
    assert worst_gap(log, [Backlog("a", 0.0, 2.0), Backlog("b", 2.0, 9.0)]) == 0.0


def test_vtc_s_difference() -> None:
    """10 s.  Best served: a with 100.  b got 40 of 60 asked: short by 20 (asked) of 60 (best).
    c got 90 of 300: 10 (best).  d got 30 while it asked for nothing new: 30 (old work).
    a itself: 0.  60 in 10 s is 6."""
    asked = [Service(1.0, "a", 100.0), Service(1.0, "b", 60.0), Service(9.0, "c", 300.0)]
    given = [Service(2.0, name, got) for name, got in zip("abcd", (100, 40, 90, 30), strict=True)]
    assert differences(asked, given, [(0.0, 10.0), (10.0, 20.0)]) == [6.0, 0.0]
    assert difference([6.0, 0.0]) == Difference(most=6.0, mean=3.0, variance=9.0)


def test_due_is_the_water_level() -> None:
    """100 for asks of 10, 30, 80, 80: 10 and 30 are met, 60 for two: 30 each.  With weight 2 for the
    last: 20 and 40."""
    asks = {"a": 10.0, "b": 30.0, "c": 80.0, "d": 80.0}
    assert due(asks, 100.0) == {"a": 10.0, "b": 30.0, "c": 30.0, "d": 30.0}
    assert due(asks, 100.0, {"d": 2.0}) == pytest.approx(
        {"a": 10.0, "b": 22.5, "c": 22.5, "d": 45.0}
    )
    assert due(asks, 1000.0) == asks
    assert due({}, 5.0) == {}


def test_jain_and_the_worst_off() -> None:
    """a got 10 of 10, b 15 of 30, c 60 of 30: x = 1, ½, 2; (3½)² / (3·5¼) = 7/9."""
    x = attained({"a": 10.0, "b": 15.0, "c": 60.0}, {"a": 10.0, "b": 30.0, "c": 30.0, "d": 0.0})
    assert x == {"a": 1.0, "b": 0.5, "c": 2.0}
    assert jain(x.values()) == pytest.approx(7 / 9)
    assert max_min_share(x.values()) == 0.5
    assert jain([3.0, 0.0, 0.0, 0.0]) == 0.25
    assert jain([0.0, 0.0]) == jain([]) == max_min_share([]) == 1.0


def test_work_conservation() -> None:
    """Work from 0 to 10 and 20 to 30; busy 2–6, 5–8, 5½–7 and 15–25: 6 + 5 of 20."""
    busy = [(15.0, 25.0), (2.0, 6.0), (5.0, 8.0), (5.5, 7.0)]
    assert work_conservation(busy, [(0.0, 10.0), (20.0, 30.0)]) == pytest.approx(11 / 20)
    assert work_conservation(busy, [(15.0, 16.0)]) == 1.0
    assert work_conservation(busy, []) == 1.0
    assert work_conservation([], [(0.0, 1.0)]) == 0.0


def history(rng: Random) -> list[Service]:
    return [
        Service(rng.randint(0, 20) * 0.5, rng.choice("abcd"), float(rng.randint(1, 50)))
        for _ in range(rng.randint(0, 40))
    ]


@pytest.mark.parametrize("seed", range(20))
def test_laws(seed: int) -> None:
    rng = Random(seed)
    log = history(rng)
    weights = {name: float(rng.randint(1, 4)) for name in "abcd"}
    waiting = [Backlog(name, 0.0, 11.0) for name in "abcd"]
    # Windows that adjoin lose nothing and count nothing twice, spread entries included.
    spread = [*log, *(Service(s.at_s, s.tenant, s.amount, rng.random() * 9 + 0.1) for s in log)]
    whole, cut = served(spread, (0.0, 20.0)), rng.random() * 10
    first, second = served(spread, (0.0, cut)), served(spread, (cut, 20.0))
    assert {name: first[name] + second[name] for name in whole} == pytest.approx(whole)
    # A gap is symmetric, never negative, moves with weights, and no window's passes the worst.
    window = (cut / 2, cut)
    here = gap(log, waiting, window, weights)
    assert here == gap(log[::-1], waiting[::-1], window, weights) >= 0.0
    assert gap(log, waiting, window, {n: 2 * w for n, w in weights.items()}) == here / 2
    assert worst_gap(log, waiting, weights) >= here - 1e-9
    # Jain lies in [1/n, 1] and does not care about the unit.
    shares = [rng.random() for _ in range(rng.randint(1, 9))]
    assert 1 / len(shares) - 1e-12 <= jain(shares) <= 1 + 1e-12
    assert jain([7 * share for share in shares]) == pytest.approx(jain(shares))
    # Nobody is due more than it asked for; capacity is used up or all are content; what is missing
    # to one is never more, by weight, in another's hands.
    asks, capacity = {n: float(rng.randint(0, 50)) for n in "abcd"}, float(rng.randint(0, 120))
    parts = due(asks, capacity, weights)
    assert all(parts[n] <= asks[n] for n in asks)
    assert sum(parts.values()) == pytest.approx(min(capacity, sum(asks.values())))
    level = max(parts[n] / weights[n] for n in asks)
    assert all(parts[n] == asks[n] or parts[n] / weights[n] > level - 1e-9 for n in asks)
    # Who asked for what it got is short of nothing.
    assert differences(log, log, [(0.0, 11.0)]) == [0.0]
