"""Known answers: by counting all cases here, and the 62 published runs (SECURITY.md §3.7)."""

from __future__ import annotations

import gzip
import math
import random
from collections.abc import Sequence
from itertools import combinations, product
from pathlib import Path

import msgspec
import pytest

from security.timing_audit_stats import (
    auc,
    deviation,
    holm,
    ks,
    ks_statistic,
    median,
    median_interval,
    sign,
    signed_rank,
)

RUNS = Path(__file__).parents[3] / "shared" / "vectors" / "timing-audit" / "gu2025_runs.jsonl.gz"
DIFFERENCES = (
    (3.0, -1.0, 2.0, 5.0, 4.0),
    (1.0, 1.0, -1.0, 2.0, -2.0, 3.0, 0.0),
    (0.0, 0.0, 0.5, 0.25, 0.125, 0.5, -0.5, 4.0, 4.0),
    (-1.0, -2.0, -3.0, -4.0),
    (2.5,),
    (7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.5, 0.25, -0.1),
)


def midranks(values: Sequence[float]) -> list[float]:
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) + 1) / 2
        for value in values
    ]


@pytest.mark.parametrize("differences", DIFFERENCES)
def test_signed_rank_is_what_counting_all_signs_gives(differences: tuple[float, ...]) -> None:
    ranks = midranks([abs(value) for value in differences])
    kept = [(rank, value > 0) for rank, value in zip(ranks, differences, strict=True) if value]
    seen = sum(rank for rank, above in kept if above)
    sums = [
        sum(rank for (rank, _), taken in zip(kept, signs, strict=True) if taken)
        for signs in product((False, True), repeat=len(kept))
    ]
    assert signed_rank(differences) == sum(each >= seen for each in sums) / len(sums)


@pytest.mark.parametrize("differences", DIFFERENCES)
def test_sign_is_what_counting_all_signs_gives(differences: tuple[float, ...]) -> None:
    kept = [value > 0 for value in differences if value]
    all_signs = list(product((0, 1), repeat=len(kept)))
    assert sign(differences) == sum(sum(s) >= sum(kept) for s in all_signs) / len(all_signs)


def test_of_zeros_alone_nothing_follows() -> None:
    assert signed_rank((0.0, 0.0)) == sign((0.0, 0.0)) == 1.0


@pytest.mark.parametrize(
    ("faster", "slower"),
    (
        ((1.0, 2.0, 3.0, 4.0), (2.5, 3.5, 4.5, 5.5)),
        ((1.0, 2.0, 3.0), (2.5, 3.5, 4.5, 5.5, 0.5)),
        ((5.0, 6.0), (1.0, 2.0, 3.0)),
        ((1.0, 2.0, 3.0, 4.0), (10.0, 11.0, 12.0)),
    ),
)
def test_ks_is_what_counting_all_orders_gives(
    faster: tuple[float, ...], slower: tuple[float, ...]
) -> None:
    def lead(places: set[int]) -> float:
        ahead = [
            len([p for p in places if p <= at]) / n
            - len([p for p in range(at + 1) if p not in places]) / m
            for at in range(n + m)
        ]
        return max(0.0, *ahead)

    n, m = len(faster), len(slower)
    merged = sorted([(v, True) for v in faster] + [(v, False) for v in slower])
    seen = lead({at for at, (_, mine) in enumerate(merged) if mine})
    assert ks_statistic(faster, slower) == pytest.approx(seen)
    leads = [lead(set(places)) for places in combinations(range(n + m), n)]
    count = sum(each >= seen - 1e-9 for each in leads)
    assert ks(faster, slower) == pytest.approx(count / len(leads), rel=1e-12)


def test_equal_values_in_both_samples_are_one_step() -> None:
    assert ks_statistic((1.0, 1.0, 2.0), (1.0, 1.0, 2.0)) == 0.0
    assert ks((1.0, 1.0, 2.0), (1.0, 1.0, 2.0)) == 1.0


def test_auc_counts_pairs_and_halves_ties() -> None:
    faster, slower = (1.0, 2.0, 2.0, 5.0), (2.0, 3.0, 0.5)
    won = [(f < s) + (f == s) / 2 for f, s in product(faster, slower)]
    assert auc(faster, slower) == sum(won) / len(won)


def test_holm_steps_down_and_never_turns_back() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005}) == pytest.approx(
        {"d": 0.02, "a": 0.03, "c": 0.06, "b": 0.06}
    )
    assert holm({"a": 0.9, "b": 0.8}) == {"b": 1.0, "a": 1.0}


def test_the_normal_tail_meets_the_exact_one() -> None:
    rng = random.Random(5)
    for shift in (0.0, 0.15, 0.4):
        differences = [rng.gauss(shift, 1.0) for _ in range(90)]
        exact, near = signed_rank(differences), signed_rank(differences, exact_max=0)
        assert math.log10(near) == pytest.approx(math.log10(exact), rel=0.05, abs=0.02)


@pytest.mark.parametrize("n", (41, 60))
def test_the_interval_of_the_median_is_that_of_resampling(n: int) -> None:
    rng = random.Random(7)
    values = [rng.expovariate(1.0) for _ in range(n)]
    drawn = sorted(median(rng.choices(values, k=n)) for _ in range(2000))
    low, high = median_interval(values, level=0.9)
    assert low == pytest.approx(drawn[100], abs=0.05)
    assert high == pytest.approx(drawn[1899], abs=0.05)


def test_the_interval_of_a_few_values_is_within_them() -> None:
    assert median_interval((2.0,)) == (2.0, 2.0)
    assert median_interval((3.0, 1.0)) == (1.0, 3.0)
    assert median_interval((5.0, 1.0, 3.0), level=0.5) == (1.0, 5.0)


def test_a_few_stalls_do_not_move_the_deviation() -> None:
    rng = random.Random(3)
    values = [rng.gauss(0.0, 2.0) for _ in range(1000)] + [500.0] * 30
    assert deviation(values) == pytest.approx(2.0, rel=0.1)


class Field(msgspec.Struct):
    hit_s: list[float]
    miss_s: list[float]
    ks_statistic: float
    ks_pvalue: float


class Run(msgspec.Struct):
    fields: dict[str, Field]


@pytest.mark.skipif(not RUNS.is_file(), reason="the published runs do not lie beside this checkout")
def test_the_published_runs_reproduce() -> None:
    runs = msgspec.json.Decoder(Run).decode_lines(gzip.decompress(RUNS.read_bytes()))
    assert len(runs) == 62
    for run in runs:
        for field in run.fields.values():
            assert ks_statistic(field.hit_s, field.miss_s) == pytest.approx(field.ks_statistic)
            assert ks(field.hit_s, field.miss_s) == pytest.approx(field.ks_pvalue, rel=1e-9)
