"""Who holds the executors and who waits for them, with the names that only the gateway knows.

An executor has seen pseudonyms; the names behind them are worked out from the directory, so nothing is
remembered.  A tenant sees its own lanes and nothing that another tenant moves: neither its part of the
device nor the part that is due to it, which would count the others (DESIGN.md, settled question 5).
"""

from __future__ import annotations

from dataclasses import dataclass

from executor.contract import ExecutorLost, Lane
from gateway.house import House

UNKNOWN = "?"  # work of a tenant that has left the directory


@dataclass(frozen=True, slots=True)
class Row:
    model: str
    tenant: str
    lane: Lane


@dataclass(frozen=True, slots=True)
class Seen:
    """`silent`: models whose executor is not there, or did not say so in time."""

    rows: tuple[Row, ...] = ()
    silent: tuple[str, ...] = ()


async def look(house: House, tenant: str | None = None) -> Seen:
    """All lanes, or one tenant's."""
    names = house.directory.tenants() if tenant is None else (tenant,)
    known = {house.pseudonym(name): name for name in names}
    rows: list[Row] = []
    silent: list[str] = []
    for deployment in {id(each): each for each in house.deployments.values()}.values():
        try:
            lanes = await deployment.executor.lanes()
        except ExecutorLost:
            silent.append(deployment.name)
            continue
        rows += [
            Row(deployment.name, known.get(lane.tenant, UNKNOWN), lane)
            for lane in lanes
            if tenant is None or lane.tenant in known
        ]
    return Seen(tuple(rows), tuple(silent))


def queue_view(seen: Seen, *, operator: bool) -> dict[str, object]:
    return {
        "lanes": [row_view(row, operator=operator) for row in seen.rows],
        "silent": list(seen.silent),
    }


def row_view(row: Row, *, operator: bool) -> dict[str, object]:
    lane = row.lane
    view: dict[str, object] = {
        "model": row.model,
        "service_class": lane.workload,
        "tenant": row.tenant,
        "running": lane.running,
        "waiting": lane.waiting,
        "oldest_ms": lane.oldest_ms,
    }
    if operator:
        view |= {
            "blocks": lane.blocks,
            "share_used": round(lane.used, 4),
            "share_due": round(lane.due, 4),
        }
    return view


def lag_max(rows: tuple[Row, ...]) -> float:
    """How far the tenant that is furthest behind its due part is behind it, of those who wait."""
    used: dict[tuple[str, str], float] = {}
    due: dict[tuple[str, str], float] = {}
    for row in rows:
        key = (row.model, row.lane.tenant)
        used[key] = used.get(key, 0.0) + row.lane.used
        if row.lane.waiting:
            due[key] = row.lane.due
    return max(0.0, *(part - used[key] for key, part in due.items()), 0.0)
