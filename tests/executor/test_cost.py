from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from executor.cost import PESSIMIST, Rates, Share, StepTimes, TimeBudget, attribute, split

REAL = Rates(step_ns=20e6, token_ns=4e5, token_context_ns=60.0)


def step_ns(rows: list[Share], rates: Rates) -> float:
    return rates.step_ns + sum(rates.row_ns(row.new, row.start) for row in rows)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.integers(0, 10**12), st.lists(st.integers(0, 10**12), min_size=1).filter(any))
def test_a_split_adds_up_and_nobody_is_off_by_one(total: int, weights: list[int]) -> None:
    parts = split(total, weights)
    assert sum(parts) == total
    for part, weight in zip(parts, weights, strict=True):
        assert 0 <= part * sum(weights) - total * weight + sum(weights) <= 2 * sum(weights)


def test_the_largest_remainders_get_the_odd_units() -> None:
    assert split(10, [1, 1, 1]) == [4, 3, 3]
    assert split(10, [5, 2, 2]) == [6, 2, 2]
    assert split(1, [1, 2]) == [0, 1]
    assert split(0, [1]) == [0]


def test_a_step_is_shared_by_the_rule_of_the_book() -> None:
    """MONEY.md: the fixed part in equal shares, the rest by what each added."""
    rates = Rates(step_ns=300.0 * 1000, token_ns=1000.0, token_context_ns=0.0)
    rows = [Share(new=1, start=50), Share(new=1, start=9), Share(new=98, start=0)]
    parts = attribute(400_000, rows, rates)
    assert [round(own, -3) for own, _ in parts] == [101_000, 101_000, 198_000]
    assert sum(own + lost for own, lost in parts) == 400_000


def test_lost_work_is_nobodys() -> None:
    rows = [Share(new=10, start=0, lost=10), Share(new=10, start=0), Share(new=10, start=0, lost=4)]
    (gone, whole, half) = attribute(3_000_001, rows, REAL)
    assert gone[0] == 0
    assert gone[1] > 0
    assert whole[1] == 0
    assert abs(half[1] / sum(half) - 0.4) < 1e-3


def test_wrong_guesses_are_nobodys_but_what_is_fixed_stays_with_their_row() -> None:
    rates = Rates(step_ns=600_000.0, token_ns=100_000.0, token_context_ns=0.0)
    guessing, plain = attribute(
        1_100_000, [Share(new=4, start=9, missed=2), Share(new=1, start=9)], rates
    )
    assert [round(part, -3) for part in (*guessing, *plain)] == [500_000, 200_000, 400_000, 0]


def test_no_rates_at_all_still_split() -> None:
    assert attribute(7, [Share(new=1, start=0)] * 2, Rates(0.0, 0.0, 0.0)) == [(4, 0), (3, 0)]


def mixed(rng: Random) -> list[Share]:
    rows = [Share(new=1, start=rng.randrange(2000)) for _ in range(rng.randrange(1, 20))]
    if rng.random() < 0.4:
        rows.append(Share(new=rng.randrange(16, 300), start=rng.randrange(1500)))
    return rows


def test_the_rates_are_learnt() -> None:
    rng, times = Random(1), StepTimes()
    for _ in range(200):
        rows = mixed(rng)
        times.observe(rows, int(step_ns(rows, REAL) * rng.uniform(0.95, 1.05)))
    for _ in range(20):
        rows = mixed(rng)
        assert abs(step_ns(rows, times.rates) / step_ns(rows, REAL) - 1) < 0.15


def test_a_much_faster_machine_is_learnt_too() -> None:
    fast = Rates(step_ns=8e5, token_ns=3e3, token_context_ns=0.5)
    rng, times = Random(1), StepTimes()
    for _ in range(100):
        rows = mixed(rng)
        times.observe(rows, int(step_ns(rows, fast)))
    rows = [Share(new=512, start=100)]
    assert 0.5 < step_ns(rows, times.rates) / step_ns(rows, fast) < 2


def test_a_minute_of_decodes_does_not_forget_what_prompts_cost() -> None:
    rng, times = Random(1), StepTimes()
    for _ in range(100):
        rows = mixed(rng)
        times.observe(rows, int(step_ns(rows, REAL)))
    for i in range(2000):
        rows = [Share(new=1, start=100 + i)] * 4
        times.observe(rows, int(step_ns(rows, REAL) * rng.uniform(0.9, 1.1)))
    rows = [Share(new=256, start=0)]
    assert 0.5 < step_ns(rows, times.rates) / step_ns(rows, REAL) < 2


def test_what_a_step_takes_at_worst_is_learnt_from_the_steps() -> None:
    """One step with prompts in a hundred takes longer; a quiet machine forgets it, decodes teach nothing."""
    rng, times = Random(5), StepTimes()
    exceeded = 0
    for number in range(6000):
        rows = [*mixed(rng), Share(new=64, start=0)]
        took_ns = step_ns(rows, REAL) * rng.lognormvariate(0.0, 0.06)
        said_ns = step_ns(rows, times.rates) * times.rates.late
        exceeded += number >= 1000 and took_ns > said_ns
        times.observe(rows, int(took_ns))
    assert 1.10 < times.rates.late < 1.20  # 2.33 standard deviations: 1.15
    assert 25 <= exceeded <= 100
    worst = times.rates.late
    for _ in range(500):
        times.observe([Share(new=1, start=5)] * 4, int(step_ns([Share(1, 5)] * 4, REAL)))
    assert times.rates.late == worst
    for _ in range(2000):
        rows = [*mixed(rng), Share(new=64, start=0)]
        times.observe(rows, int(step_ns(rows, REAL)))
    assert times.rates.late < 1.02


def test_no_caution_helps_against_a_machine_that_stops() -> None:
    rng, times = Random(6), StepTimes()
    for number in range(2000):
        rows = [*mixed(rng), Share(new=64, start=0)]
        times.observe(rows, int(step_ns(rows, REAL)) * (1 if number % 10 else 20))
        assert 1.0 <= times.rates.late <= 1.25


def test_rates_are_never_negative() -> None:
    rng, times = Random(3), StepTimes()
    for _ in range(500):
        times.observe(mixed(rng), rng.choice([0, 1, 10**6, 10**9]))
        assert min(times.rates.step_ns, times.rates.token_ns, times.rates.token_context_ns) >= 0


def test_a_budget_grants_what_fits_in_the_time() -> None:
    budget = TimeBudget(REAL, 100e6)
    granted = budget.take(1000, 5000)
    assert REAL.row_ns(granted, 1000) <= 100e6 < REAL.row_ns(granted + 2, 1000)
    assert budget.take(0, 50) <= 1


def test_a_budget_is_spent_when_nobody_is_granted_anything() -> None:
    """Asked of every length and place that matters, after each grant until the end."""
    for left_ns, floor in ((-5.0, 16), (100e6, 0), (100e6, 16), (1e9, 0)):
        budget = TimeBudget(REAL, left_ns, floor_tokens=floor, tokens_max=100)
        for _ in range(200):
            nothing = all(budget.would_take(start, 10**6) == 0 for start in (0, 10, 10_000))
            assert not budget.spent or nothing
            if budget.take(0, 7) == 0:
                break
        assert budget.would_take(0, 1) == 0
        assert budget.spent or left_ns == 100e6  # there less than a token's time may be left


def test_a_budget_never_starves_and_never_exceeds() -> None:
    late = TimeBudget(REAL, -5.0, floor_tokens=16)
    assert late.take(0, 10) == 10
    assert late.take(0, 10) == 6
    assert late.take(0, 10) == 0
    free = TimeBudget(Rates(0.0, 0.0, 0.0), 1e9, tokens_max=100)
    assert free.take(0, 80) == 80
    assert free.take(0, 80) == 20
    assert free.take(0, 80) == 0


def test_the_first_chunk_on_an_unknown_machine_is_short() -> None:
    assert 16 <= TimeBudget(PESSIMIST, 200e6 - PESSIMIST.step_ns).take(0, 100_000) <= 256
