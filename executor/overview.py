"""From all lanes to what one look is shown of them: one tenant's or everybody's, summed up before the cut.

Pure.  Refuses to know: sequences, the policy, names behind the pseudonyms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from executor.contract import LANES_MAX, ClassSum, Lane, Overview


def overview(everybody: Iterable[Lane], tenant: str | None = None) -> Overview:
    """What a tenant is shown counts nobody else, its sums included."""
    lanes = [lane for lane in everybody if tenant is None or lane.tenant == tenant]
    lanes.sort(key=lambda lane: (-lane.waiting, -lane.running, lane.workload, lane.tenant))
    return Overview(
        tenant=tenant,
        lanes=tuple(lanes[:LANES_MAX]),
        left_out=max(0, len(lanes) - LANES_MAX),
        classes=_sums(lanes),
        lag_max=lag_max(lanes),
    )


def _sums(lanes: Iterable[Lane]) -> tuple[ClassSum, ...]:
    by_class: defaultdict[str, list[Lane]] = defaultdict(list)
    for lane in lanes:
        by_class[lane.workload].append(lane)
    return tuple(
        ClassSum(
            workload=workload,
            running=sum(lane.running for lane in group),
            waiting=sum(lane.waiting for lane in group),
            blocks=sum(lane.blocks for lane in group),
            used=sum(lane.used for lane in group),
            oldest_ms=max(lane.oldest_ms for lane in group),
        )
        for workload, group in sorted(by_class.items())
    )


def lag_max(lanes: Sequence[Lane]) -> float:
    """How far the tenant that is furthest behind its due part is behind it, of those who wait."""
    used: defaultdict[str, float] = defaultdict(float)
    due: dict[str, float] = {}
    for lane in lanes:
        used[lane.tenant] += lane.used
        if lane.waiting:
            due[lane.tenant] = lane.due
    return max(0.0, *(part - used[tenant] for tenant, part in due.items()), 0.0)
