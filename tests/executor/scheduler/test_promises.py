from __future__ import annotations

from random import Random

import pytest

from executor.cost import Rates
from executor.scheduler.promises import (
    JITTER,
    MARGIN,
    RETRY_MS_MAX,
    RETRY_MS_MIN,
    Ahead,
    Experience,
    Own,
    Room,
    can_promise,
    coarse,
    first_token_ns,
    late_by_ns,
    rows_now,
    told_ms,
)

MS = 1e6
RATES = Rates(step_ns=10 * MS, token_ns=0.1 * MS, token_context_ns=0.0)
TWO = Room(share=1.0, rows=2.0, tokens=1e9, step_ns=20 * MS)
NEW = Ahead(100, 50)


def test_alone_it_takes_its_prompt_and_two_steps() -> None:
    assert first_token_ns(NEW, Own(), TWO, RATES) == 2 * 20 * MS + 10 * MS


def test_half_the_machine_takes_twice_as_long_for_prompts() -> None:
    half = Room(share=0.5, rows=2.0, tokens=1e9, step_ns=20 * MS)
    found = first_token_ns(NEW, Own(begun_tokens=300), half, RATES)
    assert found == 2 * 20 * MS + 2 * (30 + 10) * MS


def test_it_takes_the_row_that_comes_free_first() -> None:
    """Rows free in 30 and 50 steps; two wait, of 40 and 5 tokens, and 200 prompt tokens each, for which both
    rows stand still a step: 30 + 2 + 40 = 72, 50 + 2 + 5 = 57, so the newcomer begins after 57 steps."""
    own = Own([(50, 0), (30, 0)], [Ahead(200, 40), Ahead(200, 5)])
    assert first_token_ns(NEW, own, TWO, RATES) == pytest.approx((57 + 2) * 20 * MS + 10 * MS)


def test_who_has_more_rows_than_it_is_sure_of_waits_for_the_late_ones() -> None:
    """Those of its rows that end first are not its own to fill."""
    own = Own([(left, 0) for left in (1, 10, 20, 30)])
    assert first_token_ns(Ahead(0, 1), own, TWO, RATES) == (20 + 2) * 20 * MS


def test_what_waits_beyond_those_looked_at_counts_in_sum() -> None:
    own = Own([(50, 0), (30, 0)], rest=Ahead(0, 1000))
    assert first_token_ns(Ahead(0, 1), own, TWO, RATES) == (30 + 1000 / 2 + 2) * 20 * MS


def test_rows_are_those_whose_whole_length_its_memory_bears() -> None:
    room = Room(share=0.5, rows=9.0, tokens=600.0, step_ns=20 * MS)
    assert rows_now(NEW, Own(), room) == 4
    assert rows_now(NEW, Own([(250, 200)], [NEW]), room) == 2
    assert rows_now(Ahead(5000, 1), Own(), room) == 1, "one is always sure"
    assert rows_now(Ahead(1, 1), Own(), room) == 9, "no more than there are"


def test_who_would_be_late_hears_when_it_would_not() -> None:
    assert late_by_ns(100 * MS, 1.5, 150 * MS) == 0.0
    assert (
        late_by_ns(300 * MS, 1.5, 150 * MS) == 200 * MS
    )  # then it is 100 ms by the same prediction


def test_what_is_told_is_coarse_jittered_and_the_same_for_the_same_seed() -> None:
    waits = [told_ms(10_000 * MS, seed) for seed in range(2000)]
    assert waits == [told_ms(10_000 * MS, seed) for seed in range(2000)]
    assert {*waits} == {10_000, 12_500, 16_000}, "few numbers"
    assert 10_500 < sum(waits) / len(waits) < 14_000
    assert told_ms(0.0, 3) == RETRY_MS_MIN
    assert told_ms(1e18, 3) == RETRY_MS_MAX
    for seed in range(200):
        exact = 1234.0 * MARGIN
        assert exact * (1 - JITTER) <= told_ms(1234 * MS, seed) <= exact * (1 + JITTER) * 1.28


def test_jitter_reaches_both_ends_and_neighbours_differ() -> None:
    wide = [told_ms(1_000_000 * MS / MARGIN / 9, seed) for seed in range(50)]
    assert {100_000, 125_000, 160_000} == {*wide}
    assert len({tuple(wide[at : at + 2]) for at in range(49)}) > 5


@pytest.mark.parametrize(
    ("wait_ms", "told"), ((50, 50), (51, 64), (99, 100), (101, 125), (6401, 8000))
)
def test_notches(wait_ms: float, told: int) -> None:
    assert coarse(wait_ms) == told


def test_a_prompt_that_takes_longer_alone_is_promised_nothing() -> None:
    assert can_promise(400, 50, RATES)
    assert not can_promise(401, 50, RATES)


def test_the_factor_covers_ninety_nine_of_a_hundred() -> None:
    rng, learnt = Random(1), Experience()
    late = 0
    for count in range(20_000):
        taken = rng.lognormvariate(0, 0.3)
        if count > 2_000:
            late += taken > learnt.factor(0)
        learnt.saw(1.0, taken, 0)
    assert 0.005 < late / 18_000 < 0.015
    for _ in range(10_000):
        learnt.saw(1.0, 100.0, 0)
    assert learnt.factor(0) == 6.0
    for _ in range(10_000):
        learnt.saw(1.0, 0.0, 0)
    assert learnt.factor(0) == 0.5


def test_what_was_learnt_in_a_bad_minute_fades() -> None:
    learnt = Experience()
    for _ in range(100):
        learnt.saw(1.0, 100.0, 0)
    assert learnt.factor(0) == 6.0
    assert 1.5 < learnt.factor(60_000_000_000) < 1.7
    assert learnt.factor(-1) == 6.0, "a clock that steps back fades nothing"
