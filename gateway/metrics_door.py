"""What operators see of the door: how late the event loop is, who was turned away for it, and what the connections
do.  Read when scraped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.door import Door
from gateway.listen import Bound
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


class ConnectionGauges(Collector):
    def __init__(self, listeners: Sequence[Bound]) -> None:
        self._listeners = listeners

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        gauge = GaugeMetricFamily(
            "lockgate_connections",
            "Open connections by what they do: opening (no whole head yet), idle (between two requests), busy, leaving.",
            labels=["listener", "state"],
        )
        made_room = CounterMetricFamily(
            "lockgate_connections_displaced",
            "Connections that were closed, idle or with a head that took long, because every place was taken.",
            labels=["listener"],
        )
        for each in self._listeners:
            counts = each.connections()
            for state in ("opening", "idle", "busy", "leaving"):
                gauge.add_metric([each.name, state], getattr(counts, state))
            made_room.add_metric([each.name], counts.made_room)
        yield gauge
        yield made_room
