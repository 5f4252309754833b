"""The classes of work in force, and the one way to put others in force: the executors are told, and what
is asked for from now on is judged by them.

Refuses to know: what a class means (`policies.classes`), how shares are kept (the executor).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from executor.contract import Executor, Workload
from policies.classes import ServiceClass


@dataclass(slots=True)
class ServiceClasses:
    """Replaced whole when the configuration is read again."""

    named: Mapping[str, ServiceClass] = field(default_factory=dict)

    def enforce(self, named: Mapping[str, ServiceClass], executors: Iterable[Executor]) -> None:
        self.named = named
        for executor in executors:
            executor.set_terms(workloads(named))


def workloads(named: Mapping[str, ServiceClass]) -> tuple[Workload, ...]:
    return tuple(
        Workload(
            name=each.name,
            weight=each.weight,
            reserved=each.reserved,
            floor=each.floor,
            ttft_ms=each.ttft_ms,
            itl_ms=each.itl_ms,
        )
        for each in named.values()
    )


def terms_view(each: ServiceClass) -> dict[str, object]:
    """What a class is, for whoever may use it; what says nothing is left out."""
    told = {
        "kind": each.kind.value,
        "weight": each.weight,
        "reserved": each.reserved or None,
        "floor": each.floor or None,
        "ttft_ms": each.ttft_ms,
        "itl_ms": each.itl_ms,
    }
    return {name: value for name, value in told.items() if value is not None}
