"""What Prometheus reads of tills: whether they answer, and what requests found in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from policies.outage import Trouble

if TYPE_CHECKING:
    from tenants.till.front import Front

PREFIX: Final = "lockgate_till"
OUTCOMES: Final = ("drawn", "short", "dry", "unasked")


class TillGauges(Collector):
    """Read at scrape time; outcomes and reasons are closed sets.  `degraded`: tills are asked by the same
    connections as rates, so what has given those up has given up tills."""

    def __init__(self, till: Front, degraded: Callable[[], bool]) -> None:
        self._till = till
        self._degraded = degraded

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        till = self._till
        yield GaugeMetricFamily(
            f"{PREFIX}_degraded",
            "1 while tills are given up and the database decides alone.",
            value=float(self._degraded()),
        )
        outcomes = CounterMetricFamily(
            f"{PREFIX}_requests",
            "Requests under budgets with a till: drawn from it, found it short, refused by it without the "
            "database, or decided without it.",
            labels=["outcome"],
        )
        for outcome in OUTCOMES:
            outcomes.add_metric([outcome], till.outcomes[outcome])
        yield outcomes
        failures = CounterMetricFamily(
            f"{PREFIX}_failures", "Calls of a till that failed, by why.", labels=["reason"]
        )
        for trouble in Trouble:
            failures.add_metric([trouble.value], till.failures[trouble])
        yield failures
