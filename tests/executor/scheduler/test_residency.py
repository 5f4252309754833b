"""What is told for all at once is what is told for each."""

from __future__ import annotations

from collections.abc import Callable

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
