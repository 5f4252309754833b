"""What Prometheus reads of the classes of work: how requests fared, what was kept, who holds what.

Labels are names of classes, which come from the configuration, and closed sets; never a tenant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from executor.contract import ClassSum
from gateway.labelled import Labelled
from policies.classes import Fate, Judged, Times, Verdict


class ClassMetrics:
    """`observe` once an authorised request.  `sums`, one a class, is what the next scrape shows."""

    def __init__(self, registry: CollectorRegistry, prefix: str, seconds: Sequence[float]) -> None:
        def counter(name: str, says: str, *labels: str) -> Labelled[Counter]:
            named = f"{prefix}class_{name}"
            return Labelled(Counter(named, says, ("service_class", *labels), registry=registry))

        self.sums: tuple[ClassSum, ...] = ()
        self.lag_max = 0.0
        self.requests = counter("requests", "Requests that were authorised, by fate.", "outcome")
        self.promises = counter("promises", "Promises judged.", "promise", "verdict")
        self.recomputed = counter(
            "recomputed_seconds", "Device time lost to preemption and to wrong guesses."
        )
        self.preemptions = counter("preemptions", "Times that a request was put back.")
        self.ttft = Labelled(
            Histogram(
                f"{prefix}class_time_to_first_token_seconds",
                "From arrival to the first token.",
                ("service_class",),
                buckets=seconds,
                registry=registry,
            )
        )
        registry.register(_Lanes(self, prefix))

    def observe(
        self,
        name: str,
        fate: Fate,
        judged: Judged,
        times: Times,
        *,
        recomputed_ns: int,
        preemptions: int,
    ) -> None:
        self.requests.labels(name, fate.value).inc()
        for promise, verdict in (("ttft", judged.ttft), ("itl", judged.itl)):
            if verdict is not Verdict.NONE:
                self.promises.labels(name, promise, verdict.value).inc()
        if times.ttft_ns is not None:
            self.ttft.labels(name).observe(times.ttft_ns / 1e9)
        self.recomputed.labels(name).inc(recomputed_ns / 1e9)
        self.preemptions.labels(name).inc(preemptions)


class _Lanes(Collector):
    def __init__(self, owner: ClassMetrics, prefix: str) -> None:
        self._owner = owner
        self._prefix = prefix

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for name, says, read in _GAUGES:
            family = GaugeMetricFamily(
                f"{self._prefix}class_{name}", says, labels=["service_class"]
            )
            for each in self._owner.sums:
                family.add_metric([each.workload], read(each))
            yield family
        lag = GaugeMetricFamily(
            f"{self._prefix}share_lag_max",
            "How far the tenant that waits and is furthest behind its due part is behind it, 0 to 1.",
        )
        lag.add_metric([], self._owner.lag_max)
        yield lag


_GAUGES: Final[tuple[tuple[str, str, Callable[[ClassSum], float]], ...]] = (
    ("running", "Sequences in the batch.", lambda each: each.running),
    ("waiting", "Sequences waiting for a place.", lambda each: each.waiting),
    (
        "share_used",
        "Part of the device time of the last minute that those had who are here.",
        lambda each: each.used,
    ),
    (
        "queue_age_max_seconds",
        "How long the one waits that waits longest.",
        lambda each: each.oldest_ms / 1e3,
    ),
)
