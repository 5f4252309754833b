"""Random histories of users, documents, registrations, revocations, purges and evictions: P1 to P7 after
every step (`cache_world` judges)."""

from __future__ import annotations

import pytest

from tests.executor.cache_world import play


def test_sixty_histories() -> None:
    taken = hidden = evicted = revoked = 0
    for seed in range(60):
        witness, house = play(seed)
        gauges = house.engine.gauges
        taken += witness.taken
        hidden += witness.hidden
        evicted += gauges.cache_evictions
        revoked += len(house.answers)
        assert gauges.cache_mismatches == 0
    assert min(taken, hidden, evicted, revoked) > 10


@pytest.mark.slow
def test_thousands_of_histories() -> None:
    preempted = sum(play(seed)[1].engine.gauges.preemptions for seed in range(1_000, 4_000))
    assert preempted > 100


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_a_hundred_thousand_histories(part: int) -> None:
    for seed in range(100_000 + part * 10_000, 110_000 + part * 10_000):
        play(seed)
