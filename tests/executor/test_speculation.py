from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.cost import Rates, Share, StepTimes
from executor.speculation import HOPE_MAX, PURSE_NS, Hope, Outcome, Purse

pytestmark = pytest.mark.slow  # the whole run's: the fast subset stays below half a minute

SMALL = Rates(step_ns=8e6, token_ns=4e5, token_context_ns=20.0)
MINUTE_NS = 60e9

Holds = Callable[[int, int, bool], bool]
"""(step, which guess, whether it is run) → whether it holds."""


def step_ns(rows: list[Share], rates: Rates) -> float:
    return rates.step_ns + sum(rates.row_ns(row.new, row.start) for row in rows)


def live(
    truth: Rates, rows: int, holds: Holds, until_ns: float, noise: Random | None = None
) -> tuple[float, float, int]:
    """Rows that always have six guesses, until the time is up: (measured, the same tokens without
    guesses, guesses run).  The rates are learnt on the way, as the engine does."""
    purse, times = Purse(), StepTimes()
    hopes = [Hope() for _ in range(rows)]
    at = [100] * rows
    measured_ns = plain_ns = 0.0
    run, step = 0, 0
    while measured_ns < until_ns:
        step += 1
        rates = times.rates
        purse.begin(rates, rows)
        granted = [purse.grant(at[i], hopes[i].rate, 6) for i in range(rows)]
        assert not any(granted) or purse.allowance_ns >= 0
        shares = [Share(new=1 + granted[i], start=at[i]) for i in range(rows)]
        took_ns = step_ns(shares, truth) * (noise.uniform(0.9, 1.1) if noise else 1.0)
        expected_ns = step_ns([Share(new=1, start=start) for start in at], rates)
        one_ns = step_ns([Share(new=1, start=start) for start in at], truth)
        outcomes = []
        for i in range(rows):
            held = 0
            while held < granted[i] and holds(step, held, True):
                held += 1
            for guess in range(min(granted[i], held + 1)):
                hopes[i].saw(guess < held)
            if not granted[i]:
                hopes[i].saw(holds(step, 0, False))
            outcomes.append(Outcome(at[i], granted[i], held))
            plain_ns += (1 + held) * one_ns / rows
            at[i] = 100 + (at[i] - 99 + held) % 2000
        purse.settle(int(took_ns), expected_ns, outcomes)
        times.observe(shares, int(took_ns))
        measured_ns += took_ns
        run += sum(granted)
    return measured_ns, plain_ns, run


MACHINES = st.builds(Rates, st.floats(5e6, 5e7), st.floats(1e4, 5e6), st.floats(0, 300))


@settings(max_examples=12, deadline=None, derandomize=True, database=None)
@given(MACHINES, st.integers(1, 16), st.integers(0, 2**32), st.sampled_from((0, 1, 2, 3)))
def test_whatever_the_guesses_are_worth_time_is_hardly_longer(
    truth: Rates, rows: int, seed: int, kind: int
) -> None:
    """They hold whenever they are not run, or sometimes, or for a while and then not."""
    rng = Random(seed)
    adversary: list[Holds] = [
        lambda _step, _guess, run: not run,
        lambda _step, guess, _run: guess == 0 and rng.random() < 0.5,
        lambda step, _guess, _run: step % 40 < 20,
        lambda step, _guess, run: not run or (step // 5 % 2 == 0 and rng.random() < 0.9),
    ]
    measured_ns, plain_ns, _ = live(truth, rows, adversary[kind], MINUTE_NS / 10, rng)
    assert measured_ns <= 1.02 * plain_ns


def test_hopeless_guesses_cost_a_percent_of_a_minute_and_good_ones_pay() -> None:
    measured_ns, plain_ns, run = live(SMALL, 1, lambda _step, _guess, run: not run, MINUTE_NS)
    assert measured_ns <= 1.011 * plain_ns
    assert run > 100, "it was fooled as often as the purse allowed"
    measured_ns, plain_ns, _ = live(SMALL, 1, lambda *_: True, MINUTE_NS / 10)
    assert measured_ns < 0.4 * plain_ns


def test_in_a_busy_batch_a_token_costs_its_part_and_nothing_is_run() -> None:
    purse = Purse()
    purse.allowance_ns = PURSE_NS
    assert purse.begin(SMALL, 1)
    assert purse.grant(100, HOPE_MAX, 6) == 6
    busy = Rates(step_ns=8e6, token_ns=4e6, token_context_ns=0.0)
    assert not purse.begin(busy, 64)
    assert purse.grant(100, HOPE_MAX, 6) == 0


def test_in_steps_so_short_that_looking_would_show_nobody_looks() -> None:
    purse = Purse()
    fast = Rates(step_ns=8e6, token_ns=1e3, token_context_ns=0.0)
    assert purse.begin(fast, 16)
    assert not purse.begin(fast, 32)


def test_less_hope_fewer_guesses() -> None:
    purse = Purse()
    purse.allowance_ns = PURSE_NS
    purse.begin(SMALL, 4)
    counts = [purse.grant(100, rate, 6) for rate in (0.95, 0.6, 0.3, 0.05)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == 6
    assert counts[-1] == 0


def test_an_empty_purse_buys_nothing_and_a_full_one_no_more_than_is_in_it() -> None:
    purse = Purse()
    assert purse.begin(SMALL, 1)
    assert purse.grant(100, HOPE_MAX, 6) == 0
    purse.allowance_ns = 1e6
    purse.begin(SMALL, 1)
    assert purse.grant(100, HOPE_MAX, 6) == 2
    assert purse.grant(100, HOPE_MAX, 6) == 0


def test_guesses_dearer_than_the_line_says_get_their_price() -> None:
    """Seven rows go through other kernels than one: the truth is far from the fitted line."""
    purse = Purse()
    for _ in range(50):
        purse.begin(SMALL, 1)
        purse.settle(int(16e6), 8.4e6, [Outcome(100, 2, 0)])
    assert purse.price > 8
    assert purse.allowance_ns < 0


def test_an_accident_in_one_step_is_not_held_against_guesses_for_long() -> None:
    purse = Purse()
    purse.allowance_ns = 1e6
    purse.begin(SMALL, 1)
    purse.settle(int(5e9), 8.4e6, [Outcome(100, 2, 0)])
    assert -8.4e6 <= purse.allowance_ns < 0


def test_hope_is_sobered_within_a_few() -> None:
    hope = Hope()
    assert hope.rate > 0.5
    for _ in range(6):
        hope.saw(False)
    assert hope.rate < 0.15
    for _ in range(40):
        hope.saw(True)
    assert hope.rate > 0.9
