"""What requests felt, by hand: each case small enough for a pencil."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest

from executor.simulation.metrics import Service
from executor.simulation.metrics_requests import (
    Ending,
    Kept,
    Record,
    Retry,
    Stall,
    Target,
    Tokens,
    asked,
    attainment,
    given,
    goodput,
    in_flight_alone,
    isolation,
    percentile,
    promises,
    stall,
    tokens_per_s,
    waste,
)

# Arrived at 10, dispatched at 10.5, first token at 11, eleven tokens until 16: TTFT 1, TPOT 0.5.
SERVED = Record("a", 10.0, 100, 11, 16.0, Ending.FINISHED, 10.5, 11.0, "interactive")
REFUSED = replace(SERVED, ending=Ending.OVER_SHARE, ended_s=10.0, first_token_s=None)


def test_times_of_a_request() -> None:
    assert (SERVED.ttft_s, SERVED.tpot_s, SERVED.cost()) == (1.0, 0.5, 122.0)
    assert (REFUSED.ttft_s, REFUSED.tpot_s) == (None, None)
    assert replace(SERVED, output_tokens=1, ended_s=11.0).tpot_s == 0.0


def test_logs_of_requests() -> None:
    assert asked([SERVED, REFUSED]) == [Service(10.0, "a", 122.0)] * 2
    assert given([SERVED, REFUSED]) == [Service(11.0, "a", 122.0, over_s=5.0)]
    assert tokens_per_s([SERVED, REFUSED, SERVED], 37.0) == 6.0


def test_nearest_rank() -> None:
    hundred = [float(value) for value in range(100, 0, -1)]
    assert [percentile(hundred, p) for p in (7, 50, 99, 99.5, 100)] == [7, 50, 99, 100, 100]
    assert [percentile([3.0, 1.0], p) for p in (1, 50, 51)] == [1.0, 1.0, 3.0]
    thousand = [float(value) for value in range(1, 1001)]
    assert percentile(thousand, 99.9) == 999.0
    assert percentile(thousand[:625], 91.04) == 569.0  # in floats 91.04·625/100 is above 569
    assert isolation([2.0, 6.0], [1.0, 4.0]) == 1.5


@pytest.mark.parametrize("seed", range(5))
def test_a_percentile_is_a_value_with_enough_below_it(seed: int) -> None:
    rng = Random(seed)
    values = [rng.random() for _ in range(rng.randint(1, 60))]
    for percent in (1, 10, 33, 50, 90, 99, 100):
        found = percentile(values, percent)
        assert found in values
        assert sum(value <= found for value in values) * 100 >= percent * len(values)
        assert sum(value < found for value in values) * 100 < percent * len(values)


def test_pauses_of_others_while_something_long_runs() -> None:
    """In [10, 20): the pause 9→12 reaches in, 12→13 lies in, 19→25 reaches out; 7→9 and 25→26 not.
    The other stream pauses from 5 to 30."""
    streams = [[7.0, 9.0, 12.0, 13.0, 19.0, 25.0, 26.0], [5.0, 30.0], [1.0]]
    assert stall(streams[:1], 10.0, 20.0) == Stall(p99_s=6.0, max_s=6.0)
    assert stall(streams, 10.0, 20.0) == Stall(p99_s=25.0, max_s=25.0)
    assert stall([[1.0, 2.0], [20.0, 21.0]], 10.0, 20.0) is None
    many = [[float(at), at + 1.0] for at in range(99)] + [[0.0, 50.0]]
    assert stall(many, 0.0, 100.0) == Stall(p99_s=1.0, max_s=50.0)


def test_first_in_flight() -> None:
    """1–5 alone; 3 and 4½ not; refused at 6 holds nothing; 7–9 alone; 9 again, as the last has just ended."""
    spans = ((1.0, 5.0), (3.0, 4.0), (4.5, 4.7), (7.0, 9.0), (9.0, 12.0))
    records = [replace(SERVED, arrived_s=a, ended_s=e) for a, e in spans]
    refused = replace(REFUSED, arrived_s=6.0, ended_s=99.0)
    other = replace(SERVED, tenant="b", arrived_s=3.5)
    alone = in_flight_alone([*records, refused, other])
    assert [(r.tenant, r.arrived_s) for r in alone] == [
        ("a", 1.0),
        ("b", 3.5),
        ("a", 7.0),
        ("a", 9.0),
    ]
    assert len(in_flight_alone([SERVED, SERVED])) == 1


def test_attainment_counts_all_that_was_offered() -> None:
    slow = replace(SERVED, first_token_s=12.5)
    jerky = replace(SERVED, ended_s=17.0)
    four = [SERVED, slow, jerky, REFUSED]
    assert attainment(four, Target(1.0, 0.5)) == 0.25
    assert attainment(four, Target(2.5, 0.6)) == 0.75
    assert attainment(four, Target(math.inf)) == 0.75
    assert attainment([replace(SERVED, ending=Ending.EXPIRED)], Target(math.inf)) == 0.0
    assert attainment([], Target(1.0)) == 1.0


def test_goodput_stops_at_the_first_miss() -> None:
    assert goodput({4.0: 0.90, 1.0: 1.0, 2.0: 0.97, 8.0: 0.40}) == 4.0
    assert goodput({1.0: 1.0, 2.0: 0.89, 4.0: 0.95}) == 1.0
    assert goodput({1.0: 0.5}) is None
    assert goodput({}) is None


def test_waste() -> None:
    assert waste(Tokens(200, recomputed=5, after_cancel=2, expired_after_prefill=3)) == 0.05
    assert waste(Tokens(0)) == 0.0


def test_retry_after() -> None:
    """Said 5 s, would have been taken after 4: 1 s too much, a quarter of it."""
    retry = Retry(promised_s=5.0, achieved_s=4.0)
    assert retry.error_s == 1.0
    assert retry.within(0.25)
    assert not retry.within(0.24)
    assert Retry(2.0, 4.0).error_s == -2.0


def test_promises() -> None:
    target = {"interactive": Target(ttft_s=2.0, tpot_s=0.6)}

    def ends(ending: Ending, ended_s: float, first_s: float | None) -> Record:
        return replace(SERVED, ending=ending, ended_s=ended_s, first_token_s=first_s)

    def verdict(record: Record) -> tuple[int, int]:
        kept = promises([record], target).get(("interactive", "a"), Kept())
        return kept.kept, kept.broken

    assert verdict(SERVED) == (1, 0)
    assert verdict(ends(Ending.FINISHED, 30.0, 11.0)) == (0, 1)
    assert verdict(REFUSED) == (0, 0)
    assert verdict(ends(Ending.NO_ROOM, 10.0, None)) == (0, 1)
    assert verdict(ends(Ending.EXPIRED, 12.0, None)) == (0, 1)
    assert verdict(ends(Ending.CANCELLED, 11.9, None)) == (0, 0)
    assert verdict(ends(Ending.CANCELLED, 12.1, None)) == (0, 1)
    assert verdict(ends(Ending.CANCELLED, 12.1, 11.9)) == (1, 0)
    assert verdict(ends(Ending.CANCELLED, 15.0, 12.1)) == (0, 1)
    assert verdict(replace(SERVED, kind="batch")) == (0, 0)
    two = [SERVED, replace(SERVED, tenant="b"), replace(SERVED, first_token_s=15.0), REFUSED]
    assert promises(two, target) == {
        ("interactive", "a"): Kept(promised=2, kept=1),
        ("interactive", "b"): Kept(promised=1, kept=1),
    }
