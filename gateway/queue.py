"""Who holds the executors and who waits for them, with the names that only the gateway knows.

An executor has seen pseudonyms; the names behind them are worked out from the directory, so nothing is
remembered.  A tenant is shown what the executor was asked of it alone, and nothing that another tenant moves:
neither its part of the device nor the part that is due to it, which would count the others (DESIGN.md,
settled question 5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from executor.contract import ClassSum, ExecutorLost, Overview
from gateway.house import House

UNKNOWN = "?"  # work of a tenant that has left the directory


@dataclass(frozen=True, slots=True)
class Seen:
    """`models`: what each executor showed, by the name of its model.  `silent`: models whose executor is not
    there, or did not say so in time."""

    models: dict[str, Overview] = field(default_factory=dict)
    silent: tuple[str, ...] = ()

    def sums(self) -> tuple[ClassSum, ...]:
        """By class, over all models.  `used` adds up parts of several executors."""
        each = [one for seen in self.models.values() for one in seen.classes]
        return tuple(
            summed([one for one in each if one.workload == name])
            for name in sorted({one.workload for one in each})
        )

    @property
    def lag_max(self) -> float:
        return max((seen.lag_max for seen in self.models.values()), default=0.0)


def summed(sums: Sequence[ClassSum]) -> ClassSum:
    """Of one class."""
    return ClassSum(
        workload=sums[0].workload,
        running=sum(each.running for each in sums),
        waiting=sum(each.waiting for each in sums),
        blocks=sum(each.blocks for each in sums),
        used=sum(each.used for each in sums),
        oldest_ms=max(each.oldest_ms for each in sums),
    )


async def look(house: House, tenant: str | None = None) -> Seen:
    """All lanes, or one tenant's, which the executor is asked for by its pseudonym."""
    whose = None if tenant is None else house.pseudonym(tenant)
    models: dict[str, Overview] = {}
    silent: list[str] = []
    for deployment in {id(each): each for each in house.deployments.values()}.values():
        try:
            models[deployment.name] = await deployment.executor.look(whose)
        except ExecutorLost:
            silent.append(deployment.name)
    return Seen(models, tuple(silent))


def names(house: House, tenant: str | None) -> dict[str, str]:
    """By pseudonym; of all tenants it takes some milliseconds a thousand."""
    known = house.directory.tenants() if tenant is None else (tenant,)
    return {house.pseudonym(name): name for name in known}


def queue_view(seen: Seen, names: Mapping[str, str], *, operator: bool) -> dict[str, object]:
    """`classes` sums up all lanes, those that are too many to be listed (`left_out`) included."""
    lanes = [
        {
            "model": model,
            "service_class": lane.workload,
            "tenant": names.get(lane.tenant, UNKNOWN),
        }
        | _numbers(lane, operator=operator)
        | ({"share_due": round(lane.due, 4)} if operator else {})
        for model, shown in seen.models.items()
        for lane in shown.lanes
    ]
    classes = [
        {"model": model, "service_class": each.workload} | _numbers(each, operator=operator)
        for model, shown in seen.models.items()
        for each in shown.classes
    ]
    left_out = sum(shown.left_out for shown in seen.models.values())
    return {"lanes": lanes, "classes": classes, "left_out": left_out, "silent": list(seen.silent)}


def _numbers(shown: ClassSum, *, operator: bool) -> dict[str, object]:
    view: dict[str, object] = {
        "running": shown.running,
        "waiting": shown.waiting,
        "oldest_ms": shown.oldest_ms,
    }
    if operator:
        view |= {"blocks": shown.blocks, "share_used": round(shown.used, 4)}
    return view
