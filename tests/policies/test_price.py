"""Money to the last nano-USD: what is billed, and that it never exceeds what was reserved."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.facts import Meters, Price
from policies.price import (
    Charge,
    Line,
    Meter,
    PriceList,
    affordable_output,
    charge,
    for_class,
    in_usd,
    worst_case,
    worst_case_input,
)
from policies.verdict import Allow, Deny, Reason

EXAMPLE = Price("m@0", "m", 0, 200_000_000, 50_000_000, 200_000_000, 600_000_000, 0.5)
PROPERTY = settings(max_examples=120, deadline=None, derandomize=True)

units = st.one_of(st.integers(0, 3 * 10**6), st.integers(0, 10**18))
prices = st.builds(
    Price,
    id=st.just("p"),
    model=st.just("m"),
    effective_s=st.just(0),
    input=units,
    cached_input=units,
    cache_write=units,
    output=units,
)
counts = st.one_of(st.integers(0, 12), st.integers(0, 10**12))


def test_a_clerk_with_a_calculator_agrees() -> None:
    """1,000 prompt tokens at $0.20 and 250 output at $0.60 a million: $0.000200 and $0.000150."""
    bill = charge(EXAMPLE, Meters(input=1000, output=250))
    assert bill == Charge(
        "m@0",
        (
            Line(Meter.INPUT, 1000, 200_000_000, 200_000),
            Line(Meter.OUTPUT, 250, 600_000_000, 150_000),
        ),
        350_000,
    )


def test_whole_prices_reserve_exactly_what_is_used_in_full() -> None:
    assert worst_case(EXAMPLE, 1000, 250) == 350_000
    assert worst_case(EXAMPLE, 1000, 250, n=4) == 200_000 + 4 * 150_000


def test_nothing_used_is_nothing_billed() -> None:
    assert charge(EXAMPLE, Meters()) == Charge("m@0", (), 0)


@pytest.mark.parametrize(
    ("tokens", "unit", "expected"), ((1, 499_999, 0), (1, 500_000, 1), (3, 500_000, 2), (1, 1, 0))
)
def test_halves_round_up(tokens: int, unit: int, expected: int) -> None:
    price = Price("p", "m", 0, unit, unit, unit, unit)
    assert charge(price, Meters(output=tokens)).total_nano_usd == expected


def test_three_meters_of_halves_stay_within_the_reservation() -> None:
    """0.5 nano-USD a token: one token on each input meter is billed 3, where one line would be 2."""
    price = Price("p", "m", 0, 500_000, 500_000, 500_000, 0)
    assert charge(price, Meters(1, 1, 1, 0)).total_nano_usd == 3
    assert worst_case(price, 3, 0) == 3


def test_the_reservation_is_no_larger_than_it_must_be() -> None:
    """Against every way in which few tokens can fall over the meters."""
    for unit, tokens in product((1, 333_333, 500_000, 999_999, 1_000_001, 2_500_000), range(7)):
        price = Price("p", "m", 0, unit, unit, unit, 0)
        dearest = max(
            charge(price, Meters(a, b, tokens - a - b)).total_nano_usd
            for a in range(tokens + 1)
            for b in range(tokens + 1 - a)
        )
        up = -(-tokens * unit // 10**6)
        assert dearest <= worst_case_input(price, tokens) <= max(dearest, up) + 1


@PROPERTY
@given(prices, counts, counts, counts, counts, st.integers(1, 128))
def test_no_settlement_exceeds_its_reservation(
    price: Price, fresh: int, cached: int, written: int, output: int, n: int
) -> None:
    meters = Meters(fresh, cached, written, output)
    reserved = worst_case(price, fresh + cached + written, -(-output // n), n)
    assert charge(price, meters).total_nano_usd <= reserved


@PROPERTY
@given(prices, counts, counts)
def test_each_line_is_the_exact_product_rounded_half_up(
    price: Price, fresh: int, output: int
) -> None:
    for line in charge(price, Meters(input=fresh, output=output)).lines:
        exact = Decimal(line.tokens * line.unit_price).scaleb(-6)
        assert line.nano_usd == int(exact.quantize(Decimal(1), ROUND_HALF_UP))


@PROPERTY
@given(prices, counts, st.integers(0, 10**9), st.integers(1, 8), st.integers(0, 10**24))
def test_what_is_affordable_fits_and_one_more_token_does_not(
    price: Price, prompt: int, wanted: int, n: int, room: int
) -> None:
    most = affordable_output(price, prompt, wanted, n, room)
    if most is None:
        assert worst_case(price, prompt, 0, n) > room
        return
    assert worst_case(price, prompt, most, n) <= room
    assert most == wanted or worst_case(price, prompt, most + 1, n) > room


def test_batch_is_a_price_of_its_own() -> None:
    batch = for_class(EXAMPLE, "batch")
    assert (batch.id, batch.input, batch.output) == ("m@0/batch", 100_000_000, 300_000_000)
    assert for_class(EXAMPLE, "interactive") is EXAMPLE
    assert for_class(EXAMPLE, None) is EXAMPLE
    assert for_class(batch, "batch") is batch
    third = Price("p", "m", 0, 3, 3, 3, 5, 0.1)
    assert for_class(third, "batch").output == int(Fraction(5, 10) + Fraction(1, 2))


def test_the_newest_effective_price_applies() -> None:
    old = Price("old", "m", 100, 1, 1, 1, 1)
    new = Price("new", "m", 200, 2, 2, 2, 2)
    prices = PriceList((new, old))
    assert prices.at("m", 99) == Deny(Reason.UNPRICED)
    assert prices.at("m", 100) == Allow(old)
    assert prices.at("m", 199) == Allow(old)
    assert prices.at("m", 200) == Allow(new)
    assert prices.at("other", 200) == Deny(Reason.UNPRICED)


def test_a_contradictory_list_is_refused_with_every_fault() -> None:
    with pytest.raises(ValueError) as caught:
        PriceList(
            (
                Price("a", "m", 0, 1, 1, 1, 1),
                Price("a", "m", 0, -1, 1, 1, 1, 0.0),
            )
        )
    for word in ("used twice", "same moment", "must be within", "batch_factor"):
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("nano_usd", "told"),
    ((0, "0.000000000"), (1, "0.000000001"), (-1, "-0.000000001"), (-(10**9), "-1.000000000")),
)
def test_an_amount_is_told_exactly(nano_usd: int, told: str) -> None:
    assert in_usd(nano_usd) == told
    assert Decimal(told) * 10**9 == nano_usd
