"""What is told for all at once is what is told for each."""

from __future__ import annotations

from collections.abc import Callable, Collection

import pytest

from executor.scheduler.lanes import Entry
from executor.scheduler.peak import Peak
from executor.scheduler.residency import Residency
from tests.executor.scheduler.driver import House, Job
from tests.executor.scheduler.histories import play


def test_who_could_lose_is_told_as_for_each() -> None:
    seen = {True: 0, False: 0}

    def check(house: House) -> Callable[[str, Job | None], None]:
        def watch(op: str, job: Job | None) -> None:
            fair = house.fair
            whole, rules = fair._accounts.tenants.weight, fair._residency
            told = rules.could_lose(fair._running.values(), whole)
            for one in fair._running.values():
                share = rules.share(one.tenant.weight, whole)
                alone = rules.runs(one.tenant.key) == 1
                small = one.committed_blocks <= share * fair._limits.blocks_total
                expected = rules.is_over(one.tenant.key, share) and not (alone and small)
                assert (one.tenant.key in told) is expected
                seen[expected] += 1

        return watch

    for seed in range(8):
        play(seed, check)
    assert min(seen.values()) > 100


def test_the_peak_that_a_step_keeps_is_that_of_all_who_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = Residency._peak_without
    asked = [0, 0]  # at all, and where it had been asked before

    def judge(rules: Residency[Job], gone: Collection[Entry[Job]]) -> Peak:
        was = rules._peak
        found = kept(rules, gone)
        staying = [one for one in rules._running.values() if one not in gone]
        fresh = Peak(map(rules._row, staying), rules.limits.block_tokens // 2)
        assert found.tokens == fresh.tokens
        assert found.tokens_with(9, 9) == fresh.tokens_with(9, 9)
        asked[was is not None] += 1
        return found

    monkeypatch.setattr(Residency, "_peak_without", judge)
    for seed in range(14):
        play(seed)
    assert min(asked) > 10
