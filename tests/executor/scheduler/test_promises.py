from __future__ import annotations

from random import Random

import pytest

from executor.cost import Rates
from executor.scheduler.promises import (
    Ahead,
    Experience,
    Refusal,
    Room,
    can_promise,
    first_token_ns,
    left_to_say,
    refusal,
)

MS = 1e6
RATES = Rates(step_ns=10 * MS, token_ns=0.1 * MS, token_context_ns=0.0)
WHOLE = Room(share=1.0, rows=2, step_ns=20 * MS)


def test_alone_it_takes_its_prompt_and_two_steps() -> None:
    assert first_token_ns(100, [], [], 0, WHOLE, RATES) == 2 * 20 * MS + 10 * MS


def test_half_the_machine_takes_twice_as_long_for_prompts() -> None:
    half = Room(share=0.5, rows=2, step_ns=20 * MS)
    assert first_token_ns(100, [], [], 300, half, RATES) == 2 * 20 * MS + 2 * (30 + 10) * MS


def test_it_takes_the_row_that_comes_free_first() -> None:
    """Rows free in 30 and 50 steps; two wait, of 40 and 5 tokens, and 200 prompt tokens (one step) each:
    30 + 1 + 40 = 71, 50 + 1 + 5 = 56, so the newcomer begins after 56 steps."""
    ahead = [Ahead(200, 40), Ahead(200, 5)]
    found = first_token_ns(100, [50, 30], ahead, 0, WHOLE, RATES)
    assert found == pytest.approx((56 + 2) * 20 * MS + 10 * MS)


def test_who_has_more_rows_than_it_is_sure_of_waits_for_the_late_ones() -> None:
    """Those of its rows that end first are not its own to fill."""
    assert first_token_ns(0, [1, 10, 20, 30], [], 0, WHOLE, RATES) == (20 + 2) * 20 * MS


def test_the_step_is_at_least_what_it_costs_when_nothing_was_measured() -> None:
    assert first_token_ns(0, [], [], 0, Room(1.0, 1, 0.0), RATES) == 2 * 10 * MS


def test_who_would_be_late_hears_when_it_would_not() -> None:
    assert refusal(100 * MS, 1.5, 150 * MS, has_backlog=True) is None
    late = refusal(300 * MS, 1.5, 150 * MS, has_backlog=True)
    assert late == Refusal(200)  # then it is 100 ms by the same prediction
    nothing_here = refusal(300 * MS, 1.5, 150 * MS, has_backlog=False)
    assert nothing_here is None, "coming later would not make it earlier"
    assert refusal(151 * MS, 1.0, 150 * MS, has_backlog=True) == Refusal(50)


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


def test_nobody_is_expected_to_end_at_once() -> None:
    assert left_to_say([(10, 4), (10, 10), (10, 12)]) == [6, 1, 1]
