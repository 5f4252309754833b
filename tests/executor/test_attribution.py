"""Who pays for a measured step: the rule beside the definition of a Shapley value, worked out in full.

Source: MONEY.md §2 ("GPU rule"), §5 case 40; Shapley 1953: what a player adds, averaged over all orders
in which the players could have come.
"""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import permutations

import pytest

from executor.cost import Rates, Share, attribute

RATES = Rates(step_ns=2e6, token_ns=41_000.0, token_context_ns=3.0, sequence_ns=90_000.0)


def step_ns(rows: tuple[Share, ...], rates: Rates) -> Fraction:
    """What a step of these rows takes: what is fixed, once for whoever is there, and each row's own."""
    if not rows:
        return Fraction(0)
    own = sum(Fraction(rates.row_ns(row.new, row.start)) for row in rows)
    return Fraction(rates.step_ns) + own


def shapley_ns(rows: tuple[Share, ...], rates: Rates) -> list[Fraction]:
    """By the definition: every order, and what each adds to those before it."""
    places = range(len(rows))
    added = [Fraction(0)] * len(rows)
    orders = list(permutations(places))
    for order in orders:
        before: tuple[Share, ...] = ()
        for place in order:
            after = (*before, rows[place])
            added[place] += step_ns(after, rates) - step_ns(before, rates)
            before = after
    return [each / len(orders) for each in added]


def some_rows(dice: random.Random, most: int) -> tuple[Share, ...]:
    """Prompts in chunks beside decodes."""
    return tuple(
        Share(dice.choice((1, 1, 1, dice.randrange(2, 600))), dice.randrange(0, 4000))
        for _ in range(dice.randrange(1, most + 1))
    )


@pytest.mark.parametrize("seed", range(40))
def test_the_rule_is_the_shapley_value(seed: int) -> None:
    rows = some_rows(random.Random(seed), 6)
    expected = shapley_ns(rows, RATES)
    total_ns = round(step_ns(rows, RATES))
    found = attribute(total_ns, rows, RATES)
    for (own_ns, lost_ns), value in zip(found, expected, strict=True):
        assert lost_ns == 0
        assert abs(own_ns - value) <= len(rows) + 1  # whole nanoseconds, a unit of weight each


def test_a_long_prompt_does_not_pay_for_the_whole_step() -> None:
    """By tokens it would pay 98.5 %, and a decode 0.048 %."""
    rows = (Share(2048, 0), *(Share(1, 500) for _ in range(31)))
    found = [own_ns for own_ns, _ in attribute(10**9, rows, Rates(0.2e9, 300_000.0, 10.0))]
    by_tokens = 2048 / (2048 + 31)
    assert by_tokens > 0.985
    assert 0.7 < found[0] / 10**9 < 0.8
    assert found[1] / 10**9 > 10 * (1 - by_tokens) / 31


@pytest.mark.slow
def test_a_hundred_thousand_steps_add_up_to_the_nanosecond() -> None:
    """With recompute, wrong guesses, and rates that know nothing."""
    dice = random.Random(20261130)
    rates = (RATES, Rates(0.0, 0.0, 0.0), Rates(5e6, 1e6, 100.0))
    for number in range(100_000):
        most = 256 if number % 100 == 0 else 12
        rows = [
            row._replace(
                lost=dice.randrange(0, row.new + 1) if dice.random() < 0.1 else 0,
                missed=dice.randrange(0, row.new) if dice.random() < 0.1 else 0,
            )
            for row in some_rows(dice, most)
        ]
        rows = [row._replace(lost=min(row.lost, row.new - row.missed)) for row in rows]
        total_ns = dice.choice((0, 1, dice.randrange(1, 10**6), dice.randrange(1, 10**11)))
        parts = attribute(total_ns, rows, rates[number % 3])
        assert sum(own + lost for own, lost in parts) == total_ns, number
        assert all(own >= 0 and lost >= 0 for own, lost in parts), number
