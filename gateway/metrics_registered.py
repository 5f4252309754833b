"""What Prometheus reads of registered texts: how many are there beforehand, and how many have no room.

Labels are configured models and tenants, and a closed set; read at scrape time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.warmth import Fate

NAME: Final = "lockgate_registered_texts"


class WarmthGauges(Collector):
    """`counts`: `Warmth.counts`."""

    def __init__(self, counts: Callable[[], Iterable[tuple[str, str, Fate, int]]]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily(
            NAME,
            "Registered texts that an executor was asked to keep ready, by what it said.",
            labels=["model_name", "tenant", "state"],
        )
        for model, tenant, fate, count in self._counts():
            family.add_metric([model, tenant, fate.value], count)
        yield family
