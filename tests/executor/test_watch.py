"""Looking is bounded: in time, however many look, and in what is remembered of those who went."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from executor.watch import Watch


def seq(tenant: str, since_ns: int = 0) -> Any:
    return SimpleNamespace(
        workload="x", tenant=tenant, tenant_weight=1.0, since_ns=since_ns, blocks=[1]
    )


def test_looking_takes_a_small_part_of_the_time() -> None:
    watch, now, looks = Watch(), [0], [0]

    def waiting() -> list[Any]:
        looks[0] += 1
        now[0] += 1_000_000  # each look takes a millisecond
        return [seq("a", since_ns=0), seq("b", since_ns=now[0])]

    while now[0] < 1_000_000_000:
        lanes = watch.lanes(lambda: [seq("a")], waiting, lambda: now[0])
        assert {lane.tenant: (lane.running, lane.waiting) for lane in lanes} == {
            "a": (1, 1), "b": (0, 1),
        }  # fmt: skip
        now[0] += 100_000
    assert 15 <= looks[0] <= 20
    assert 950 <= lanes[0].oldest_ms <= 1_000


def test_a_look_that_costs_nothing_is_always_new() -> None:
    watch = Watch()
    for count in (1, 2, 0):
        lanes = watch.lanes(lambda: (), lambda n=count: [seq("a")] * n, lambda: 5)  # type: ignore[misc]
        assert sum(lane.waiting for lane in lanes) == count
