"""The statistics of the timing audit: pure functions over samples, exact where that can be afforded.

All tests are one-sided: a small value of p says that the second sample, or the differences, lie higher
than chance explains.  Refuses to know what was measured and what follows from it (`timing_audit`).

Sources: Wilcoxon 1945, with zeros as Pratt 1959 (they take ranks and say nothing, so that many equal
pairs do not strengthen the rest); Hodges 1958 for the exact Kolmogorov–Smirnov test; Holm 1979; Efron 1979
for the bootstrap.  SECURITY.md §3.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby
from typing import Final, TypeVar

K = TypeVar("K")

EXACT_PAIRS_MAX: Final = 100
"""Above it the signed ranks' sum is taken as normal, which errs towards larger values of p."""


def signed_rank(differences: Sequence[float], *, exact_max: int = EXACT_PAIRS_MAX) -> float:
    """The p of the Wilcoxon signed-rank test against "the differences lie above zero".  Ties take their mean
    rank; the distribution is the one given those ranks.  1.0 where there is nothing but zeros."""
    doubled, low = [], 1
    ordered = sorted(differences, key=abs)
    sign_of: list[bool] = []
    for _, group in groupby(ordered, key=abs):
        tied = list(group)
        rank2 = 2 * low + len(tied) - 1  # twice the mean of low … low + count - 1
        low += len(tied)
        kept = [value > 0 for value in tied if value != 0]
        doubled += [rank2] * len(kept)
        sign_of += kept
    if not doubled:
        return 1.0
    seen = sum(rank for rank, above in zip(doubled, sign_of, strict=True) if above)
    if len(doubled) <= exact_max:
        return _tail_of_sums(doubled, seen)
    mean = sum(doubled) / 2
    deviation = math.sqrt(sum(rank * rank for rank in doubled)) / 2
    return _normal_tail((seen - 1 - mean) / deviation)  # -1: half a rank, for continuity


def _tail_of_sums(ranks: Sequence[int], seen: int) -> float:
    """The part of all subsets of `ranks` whose sum is at least `seen`.  One long number holds the count of
    each sum in a field of its own, so that adding a rank is one shift and one addition."""
    width = (len(ranks) + 8) // 8 * 8
    counts = 1
    for rank in ranks:
        counts += counts << (rank * width)
    counts >>= seen * width
    field = width // 8
    raw = counts.to_bytes((sum(ranks) - seen + 1) * field, "little")
    above = sum(int.from_bytes(raw[at : at + field], "little") for at in range(0, len(raw), field))
    return float(above / (1 << len(ranks)))


def sign(differences: Sequence[float]) -> float:
    """The p of the exact sign test against "more differences are above zero than below".  Zeros are left out."""
    above = sum(value > 0 for value in differences)
    n = above + sum(value < 0 for value in differences)
    term = total = math.comb(n, above)
    for k in range(above, n):
        term = term * (n - k) // (k + 1)
        total += term
    return float(total / (1 << n))


def ks_statistic(faster: Sequence[float], slower: Sequence[float]) -> float:
    """How far the distribution of `faster` runs ahead of that of `slower`, at most."""
    return _ks_height(faster, slower) / (len(faster) * len(slower))


def ks(faster: Sequence[float], slower: Sequence[float]) -> float:
    """The p of the exact two-sample Kolmogorov–Smirnov test against "`faster` has the smaller values"."""
    n, m = len(faster), len(slower)
    height = _ks_height(faster, slower)
    if height <= 0:
        return 1.0
    if n == m:  # reflection: of all paths those that touch the line
        return float(math.comb(2 * n, n - height // n) / math.comb(2 * n, n))
    return float(1 - _paths_below(n, m, height) / math.comb(n + m, n))


def _ks_height(faster: Sequence[float], slower: Sequence[float]) -> int:
    """The largest lead, times n·m."""
    n, m = len(faster), len(slower)
    steps = sorted([(value, m) for value in faster] + [(value, -n) for value in slower])
    leads = accumulate(step for _, step in steps)
    last_of_value = [
        lead
        for lead, (value, _), after in zip(leads, steps, [*steps[1:], None], strict=True)
        if after is None or after[0] != value
    ]
    return max(0, *last_of_value)


def _paths_below(n: int, m: int, height: int) -> int:
    """Paths from (0, 0) to (n, m) on which i·m − j·n stays under `height`."""
    row = [1] * (m + 1)
    for i in range(n + 1):
        for j in range(m + 1):
            before = (row[j] if i else 0) + (row[j - 1] if j else 0)
            row[j] = 0 if i * m - j * n >= height else before if i or j else 1
    return row[m]


def auc(faster: Sequence[float], slower: Sequence[float]) -> float:
    """The chance that one of `faster` is below one of `slower`; 0.5 where they are alike."""
    merged = sorted([(value, 0) for value in faster] + [(value, 1) for value in slower])
    below = won2 = 0
    for _, group in groupby(merged, key=lambda each: each[0]):
        kinds = [kind for _, kind in group]
        late = sum(kinds)
        early = len(kinds) - late
        won2 += late * (2 * below + early)
        below += early
    return won2 / (2 * len(faster) * len(slower))


def median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    n = len(ordered)
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2


def median_interval(values: Sequence[float], *, level: float = 0.99) -> tuple[float, float]:
    """The percentile bootstrap interval of the median, as infinitely many resamples give it: how often a
    resample's middle value is at most the k-th of ours is a binomial tail (Efron 1979), so nothing need be
    drawn.  Of two middle values the lower bounds below and the higher above, a little wide if anything."""
    ordered = sorted(values)
    n = len(ordered)
    low, high = (n - 1) // 2 + 1, n // 2 + 1

    def place(rank: int, chance: float) -> int:
        return bisect_left(range(1, n), chance, key=lambda k: _binomial_tail(n, k / n, rank))

    return ordered[place(low, (1 - level) / 2)], ordered[place(high, (1 + level) / 2)]


def _binomial_tail(n: int, p: float, least: int) -> float:
    """The chance of at least `least` of n; 0 < p < 1."""
    odds, log_p = math.log(p / (1 - p)), n * math.log(1 - p) + math.lgamma(n + 1)
    return math.fsum(
        math.exp(log_p + k * odds - math.lgamma(k + 1) - math.lgamma(n - k + 1))
        for k in range(least, n + 1)
    )


def deviation(values: Sequence[float]) -> float:
    """σ by the median absolute deviation, which a few stalls do not move."""
    middle = median(values)
    return 1.4826 * median([abs(value - middle) for value in values])


def holm(p_values: Mapping[K, float]) -> dict[K, float]:
    """Adjusted values of p: reject those not above α, and the family errs with probability α at most."""
    adjusted: dict[K, float] = {}
    least = 0.0
    for rank, (name, p) in enumerate(sorted(p_values.items(), key=lambda each: each[1])):
        least = max(least, min(1.0, p * (len(p_values) - rank)))
        adjusted[name] = least
    return adjusted


def _normal_tail(z: float) -> float:
    return math.erfc(z / math.sqrt(2)) / 2
