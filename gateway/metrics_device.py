"""What Prometheus reads of devices: where their time goes, by account, since each executor's last start.

What the book finds afterwards (time lost with a process, work for what was priced zero) stands in
`usage reconcile`: it follows from requests' records, not from an executor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from executor.contract import OVERHEAD, DeviceTime, Gauges

PREFIX: Final = "lockgate_device"
_ACCOUNTS: Final[tuple[tuple[str, str, Callable[[DeviceTime], int]], ...]] = (
    ("wall", "Time since its start, of all its devices.", lambda d: d.wall_ns * d.devices),
    ("attributed", "Step time of requests.", lambda d: d.attributed_ns),
    ("idle", "Time in which no step ran.", lambda d: d.idle_ns),
)


class DeviceGauges(Collector):
    """Read at scrape time.  wall = attributed + idle + the sum over all kinds of overhead."""

    def __init__(self, gauges: Callable[[], dict[str, Gauges]]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterator[CounterMetricFamily]:
        found = {model: gauges.device for model, gauges in self._gauges().items()}
        now = {model: device for model, device in found.items() if device is not None}
        for name, says, read in _ACCOUNTS:
            family = CounterMetricFamily(f"{PREFIX}_{name}_seconds", says, labels=["model_name"])
            for model, device in now.items():
                family.add_metric([model], read(device) / 1e9)
            yield family
        kinds = CounterMetricFamily(
            f"{PREFIX}_overhead_kind_seconds",
            "Time of devices that no request is charged for, by kind.",
            labels=["model_name", "kind"],
        )
        for model, device in now.items():
            for kind in OVERHEAD:
                kinds.add_metric([model, kind], getattr(device, f"{kind}_ns") / 1e9)
        yield kinds
