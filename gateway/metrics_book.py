"""What Prometheus reads of the book: how much of it waits for the database, and how far their clocks are apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

NAME: Final = "lockgate_book_waiting"
SKEW: Final = "lockgate_clock_skew_seconds"


class BookGauges(Collector):
    """`journalled`: ends of requests that the database could not take yet; at rest 0.  `skew_ms`: by how much
    our clock is ahead."""

    def __init__(self, journalled: Callable[[], int], skew_ms: Callable[[], int]) -> None:
        self._journalled = journalled
        self._skew_ms = skew_ms

    def collect(self) -> Iterator[GaugeMetricFamily]:
        text = "Ends of requests in the journal, to be booked when the database is back."
        yield GaugeMetricFamily(NAME, text, self._journalled())
        text = "By how much this machine's clock is ahead of the database's, by which windows and leases go."
        yield GaugeMetricFamily(SKEW, text, self._skew_ms() / 1000)
