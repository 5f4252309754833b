"""What operators see of the door: how late the event loop is, and who was turned away for it.  Read when scraped."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.door import Door
from policies.shedding import Rank


class DoorGauges(Collector):
    def __init__(self, door: Door) -> None:
        self._door = door

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        door = self._door
        yield GaugeMetricFamily(
            "lockgate_event_loop_lag_seconds",
            "How late the event loop was when last looked at.",
            value=door.lag_ms / 1000,
        )
        yield GaugeMetricFamily(
            "lockgate_live_requests",
            "Requests at work on the public listener.",
            value=door.places.live,
        )
        yield GaugeMetricFamily(
            "lockgate_waiting_requests",
            "Requests that wait for their turn to be prepared.",
            value=door.gate.waiting,
        )
        turned = CounterMetricFamily(
            "lockgate_shed_requests",
            "Requests turned away at the door, by rank.",
            labels=["rank"],
        )
        for rank in Rank:
            turned.add_metric([rank.name.lower()], door.turned[rank])
        yield turned
