from __future__ import annotations

from random import Random

import pytest

from policies.fairness import Flow, Level, Turns


def flow(key: str, start: float) -> Flow[str]:
    return Flow(key, 1.0, start)


def entered(level: Level[str], key: str, weight: float = 1.0) -> Flow[str]:
    one = level.enter(key, weight)
    level.wait(one)
    return one


# Level


def test_who_comes_back_has_no_credit_and_no_debt_forgiven() -> None:
    level: Level[str] = Level()
    a, b = entered(level, "a"), entered(level, "b")
    a.charge(10.0, 1.0)
    level.go(b)
    level.leave(b)
    level.advance(7.0)
    assert entered(level, "b").start == 7.0
    assert a.start == 10.0
    level.go(a)
    level.leave(a)
    assert entered(level, "a").start == 10.0  # b waits, so it is remembered


def test_who_has_something_waiting_keeps_its_claim() -> None:
    level: Level[str] = Level()
    a = entered(level, "a")
    level.advance(5.0)
    level.enter("a", 1.0)
    level.wait(a)
    assert a.start == 0.0
    level.go(a)
    assert (a.waits, level.waiting) == (1, 1)


def test_time_only_goes_on() -> None:
    level: Level[str] = Level()
    level.advance(3.0)
    level.advance(1.0)
    assert level.virtual == 3.0


def test_a_charge_counts_by_weight_and_a_refund_undoes_it() -> None:
    level: Level[str] = Level()
    a = level.enter("a", 4.0)
    a.charge(8.0, 4.0)
    assert a.start == 2.0
    level.enter("a", 1.0)
    a.charge(-8.0, 4.0)
    assert a.start == 0.0


def test_the_weight_is_that_of_the_active_as_said_last() -> None:
    level: Level[str] = Level()
    a = level.enter("a", 1.0)
    level.enter("b", 2.0)
    level.enter("a", 5.0)
    assert (level.weight, level.active, a.holds) == (7.0, 2, 2)
    level.leave(a)
    level.leave(a)
    assert (level.weight, level.active) == (2.0, 1)


@pytest.mark.parametrize("huge", (1e18, 1e300))
def test_a_huge_weight_rounds_no_other_away(huge: float) -> None:
    level: Level[str] = Level()
    level.enter("a", 1.0)
    giant = level.enter("b", huge)
    level.enter("c", 1e-3)
    level.leave(giant)
    assert level.weight == pytest.approx(1.001)


def test_a_debt_is_forgotten_when_time_has_passed_it() -> None:
    level: Level[str] = Level()
    a = entered(level, "a")
    b = entered(level, "b")
    a.charge(4.0, 1.0)
    level.go(a)
    level.leave(a)
    assert level.get("a") is a
    level.advance(3.0)
    assert level.get("a") is a
    level.advance(4.0)
    assert level.get("a") is None
    assert (level.get("b"), len(level)) == (b, 1)


def test_a_debt_is_forgotten_when_nobody_waits_for_anything() -> None:
    level: Level[str] = Level()
    a, b = entered(level, "a"), entered(level, "b")
    a.charge(4.0, 1.0)
    level.go(a)
    level.leave(a)
    level.go(b)
    assert level.get("a") is None
    b.charge(9.0, 1.0)
    level.leave(b)
    assert len(level) == 0


def test_a_debtor_that_came_back_is_remembered_by_what_it_owes_then() -> None:
    level: Level[str] = Level()
    a = entered(level, "a")
    entered(level, "b")
    a.charge(4.0, 1.0)
    level.go(a)
    level.leave(a)
    a = level.enter("a", 1.0)
    level.advance(5.0)  # passes its old debt while it is here
    assert level.get("a") is a
    a.charge(4.0, 1.0)
    level.leave(a)
    level.enter("a", 1.0)
    a.charge(1.0, 1.0)
    level.leave(a)  # twice idle, one entry
    level.advance(8.0)
    assert level.get("a") is a
    level.advance(9.0)
    assert level.get("a") is None


def test_thousands_that_come_once_leave_nothing() -> None:
    level: Level[str] = Level()
    level.enter("stays", 1.0)
    for number in range(10_000):
        one = entered(level, f"t{number}")
        one.charge(3.0, 1.0)
        level.go(one)
        level.leave(one)
    assert (len(level), len(level._debts), level.weight) == (1, 0, 1.0)


def test_nothing_waits_or_leaves_that_is_not_here() -> None:
    level: Level[str] = Level()
    a = level.enter("a", 1.0)
    with pytest.raises(AssertionError):
        level.go(a)
    level.wait(a)
    with pytest.raises(AssertionError):
        level.wait(a)
    with pytest.raises(AssertionError):
        level.leave(a)
    with pytest.raises(AssertionError):
        level.enter("b", 0.0)


# Turns


def test_the_least_start_is_first_and_first_come_on_a_tie() -> None:
    turns: Turns[str] = Turns()
    a, b, c = flow("a", 2.0), flow("b", 1.0), flow("c", 1.0)
    assert turns.first() is None
    for one in (a, b, c, b):
        turns.add(one)
    assert (turns.first(), len(turns), "b" in turns) == (b, 3, True)
    turns.drop("b")
    turns.drop("b")
    assert (turns.first(), "b" in turns) == (c, False)


def test_a_start_that_rose_is_seen_when_it_surfaces() -> None:
    turns: Turns[str] = Turns()
    a, b = flow("a", 1.0), flow("b", 2.0)
    turns.add(a)
    turns.add(b)
    a.start = 3.0
    assert turns.first() is b


def test_a_start_that_fell_needs_a_word() -> None:
    turns: Turns[str] = Turns()
    a, b = flow("a", 5.0), flow("b", 2.0)
    turns.add(a)
    turns.add(b)
    a.start = 1.0
    turns.refresh(a)
    turns.refresh(flow("c", 0.0))  # is not here
    assert turns.first() is a


def test_stale_entries_are_swept_out() -> None:
    turns: Turns[str] = Turns()
    a = flow("a", 0.0)
    turns.add(a)
    for _ in range(1000):
        turns.refresh(a)
    assert len(turns._heap) <= 67
    flows = [flow(str(n), float(n)) for n in range(500)]
    for one in flows:
        turns.add(one)
    for one in flows[:-1]:
        turns.drop(one.key)
    assert len(turns._heap) <= 69
    turns.drop("a")
    assert turns.first() is flows[-1]


def test_it_is_what_a_sorted_list_would_be() -> None:
    rng = Random(1)
    turns: Turns[str] = Turns()
    flows = {key: flow(key, 0.0) for key in "abcdefgh"}
    here: set[str] = set()
    for _ in range(5000):
        one = flows[rng.choice("abcdefgh")]
        match rng.randrange(4):
            case 0:
                turns.add(one)
                here.add(one.key)
            case 1:
                turns.drop(one.key)
                here.discard(one.key)
            case 2:
                one.start += rng.random()
            case _:
                one.start -= rng.random()
                turns.refresh(one)
        first = turns.first()
        assert len(turns) == len(here)
        until, most = one.start, rng.randrange(4)
        close = [start for key in here if (start := flows[key].start) <= until]
        assert [each.start for each in turns.within(until, most)] == sorted(close)[:most]
        assert turns.first() is first
        if first is None:
            assert not here
        else:
            assert first.start == min(flows[key].start for key in here)
