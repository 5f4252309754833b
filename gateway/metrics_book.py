"""What Prometheus reads of the book: how much of it waits for the database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

NAME: Final = "lockgate_book_waiting"


class BookGauges(Collector):
    """`journalled`: ends of requests that the database could not take yet; at rest 0."""

    def __init__(self, journalled: Callable[[], int]) -> None:
        self._journalled = journalled

    def collect(self) -> Iterator[GaugeMetricFamily]:
        text = "Ends of requests in the journal, to be booked when the database is back."
        yield GaugeMetricFamily(NAME, text, self._journalled())
