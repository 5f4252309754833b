"""The series of a metric by their labels, found without a lock.

The library's own look-up locks and makes text of each label, which costs three times what counting does.
Refuses to know: what is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from prometheus_client.metrics import MetricWrapperBase

M = TypeVar("M", bound=MetricWrapperBase)


class Labelled(Generic[M]):
    """As many series as the metric itself keeps."""

    def __init__(self, metric: M) -> None:
        self._metric = metric
        self._series: dict[tuple[str, ...], M] = {}

    def labels(self, *named: str) -> M:
        found = self._series.get(named)
        if found is None:
            found = self._series[named] = self._metric.labels(*named)
        return found

    def forget(self, gone: Callable[[tuple[str, ...]], bool]) -> None:
        """Those of which the labels say so; counted again, they begin at nothing."""
        for named in [each for each in self._series if gone(each)]:
            del self._series[named]
            self._metric.remove(*named)
