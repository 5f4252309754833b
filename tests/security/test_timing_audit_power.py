"""What the tests would see: the table of SECURITY.md §3.6 by simulation, with the noise it names."""

from __future__ import annotations

import pytest

from security.timing_audit_stats import ks, sign, signed_rank
from tests.security.timing_noise import MACHINE

ALPHA = 0.001
TABLE = (
    (250, 0.5, (0.96, 0.83, 0.54)),
    (500, 0.3, (0.84, 0.66, 0.37)),
    (1000, 0.3, (1.00, 0.97, 0.81)),
    (1000, 0.2, (0.75, 0.60, 0.23)),
    (1000, 0.0, (0.0013, 0.0003, 0.0)),
)
# Pairs, shift in σ of one request, and the power of Wilcoxon, sign and Kolmogorov–Smirnov.


def power(pairs: int, shift: float, runs: int) -> tuple[float, float, float]:
    seen = [0, 0, 0]
    for run in range(runs):
        sample = MACHINE.pairs(pairs, shift, seed=10_000 + run)
        secret = [pair.secret_ns for pair in sample]
        control = [pair.control_ns for pair in sample]
        gaps = [c - s for s, c in zip(secret, control, strict=True)]
        for at, p in enumerate((signed_rank(gaps), sign(gaps), ks(secret, control))):
            seen[at] += p <= ALPHA
    return seen[0] / runs, seen[1] / runs, seen[2] / runs


def test_pairs_see_more_than_two_samples() -> None:
    wilcoxon, signs, two_samples = power(250, 0.5, 40)
    assert wilcoxon > 0.85
    assert wilcoxon > signs > two_samples


@pytest.mark.slow
@pytest.mark.parametrize(("pairs", "shift", "published"), TABLE)
def test_the_published_power(
    pairs: int, shift: float, published: tuple[float, float, float]
) -> None:
    assert power(pairs, shift, 500) == pytest.approx(published, abs=0.06)
