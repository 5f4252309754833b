"""What Prometheus reads: names of API.md §5 under our own prefix, and vLLM's beside it on request.

One registry for one process, made in `bootstrap`, never global.  Labels are bounded: model and
route names come from configuration, reasons from closed sets, tenants from the directory; no user,
key or request id is ever a label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from executor.contract import GAPS_NS, STEP_TOKENS, Gauges, ModelCard, Spread
from gateway.labelled import Labelled
from gateway.metrics_classes import ClassMetrics

if TYPE_CHECKING:
    from gateway.case import Case

SECONDS: Final = (
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
)  # fmt: skip
TOKENS: Final = tuple(float(2**power) for power in range(18))
CHOICES: Final = (1.0, 2.0, 5.0, 10.0, 20.0)
OWN_PREFIX: Final = "lockgate_"
VLLM_PREFIX: Final = "vllm:"
MODEL: Final = "model_name"
ENGINE: Final = ("engine", "0")
"""vLLM's second label.  A model has one executor here, so its value never changes."""


class Metrics:
    """`observe` once a request, at its end; gauges are read from the executors when scraped."""

    def __init__(
        self,
        *,
        gauges: Callable[[], dict[str, Gauges]],
        cards: Callable[[], Mapping[str, ModelCard | None]],
        vllm_names: bool = False,
    ) -> None:
        self.registry = CollectorRegistry()
        self.gauges = gauges
        prefixes = (OWN_PREFIX, VLLM_PREFIX) if vllm_names else (OWN_PREFIX,)
        self._families = tuple(_Family(prefix, self.registry) for prefix in prefixes)
        self.refused = Counter(
            f"{OWN_PREFIX}admission_rejections",
            "Requests refused before they ran, by reason.",
            ("reason",),
            registry=self.registry,
        )
        self.shadow_refused = Counter(
            f"{OWN_PREFIX}budget_shadow_refusals",
            "Requests that a shadow budget would have refused, by scope.",
            ("scope",),
            registry=self.registry,
        )
        self.auth_denied = Counter(
            f"{OWN_PREFIX}auth_denied",
            "Credentials not accepted, by reason.",
            ("reason",),
            registry=self.registry,
        )
        self.keyed = Counter(
            f"{OWN_PREFIX}idempotency",
            "Requests by an Idempotency-Key, by what they heard.",
            ("verdict",),
            registry=self.registry,
        )
        self.tenant_tokens = Labelled(
            Counter(
                f"{OWN_PREFIX}tenant_tokens",
                "Tokens billed, by tenant and meter.",
                ("tenant", "meter"),
                registry=self.registry,
            )
        )
        self.classes = ClassMetrics(self.registry, OWN_PREFIX, SECONDS)
        self.retried = Counter(
            f"{OWN_PREFIX}retried_requests",
            "Requests whose client says that it has tried them before, by how often.",
            ("retries",),
            registry=self.registry,
        )
        self.registry.register(_ExecutorGauges(gauges, cards, prefixes))

    def observe(self, case: Case) -> None:
        """A request has ended, one way or another."""
        if case.outcome == "refused":
            self.refused.labels(case.reason or "unknown").inc()
            return
        for family in self._families:
            family.observe(case)
        meters = case.meters()
        tenant = case.who.tenant or "-"
        self.tenant_tokens.labels(tenant, "input").inc(meters.input)
        self.tenant_tokens.labels(tenant, "output").inc(meters.output)

    def forget(self, gone: Callable[[str], bool]) -> None:
        """Tenants that are no more."""
        self.tenant_tokens.forget(lambda named: gone(named[0]))

    def exposition(self) -> bytes:
        return generate_latest(self.registry)


class _Family:
    """The request metrics under one prefix, vLLM's with its second label."""

    def __init__(self, prefix: str, registry: CollectorRegistry) -> None:
        engine = ENGINE[:1] if prefix == VLLM_PREFIX else ()
        self._engine = ENGINE[1:] if prefix == VLLM_PREFIX else ()

        def histogram(name: str, says: str, buckets: Sequence[float]) -> Labelled[Histogram]:
            named = f"{prefix}{name}"
            return Labelled(
                Histogram(named, says, (MODEL, *engine), buckets=buckets, registry=registry)
            )

        def counter(name: str, says: str, *labels: str) -> Labelled[Counter]:
            named = (MODEL, *engine, *labels)
            return Labelled(Counter(f"{prefix}{name}", says, named, registry=registry))

        def seconds(name: str, says: str) -> Labelled[Histogram]:
            return histogram(f"{name}_seconds", says, SECONDS)

        def tokens(name: str, says: str) -> Labelled[Histogram]:
            return histogram(name, says, TOKENS)

        self.success = counter("request_success", "Requests that ended, by how.", "finished_reason")
        self.looked_up = counter("prefix_cache_queries", "Prompt tokens looked up in the cache.")
        self.found = counter("prefix_cache_hits", "Of these, those that were there.")
        self.ttft = seconds("time_to_first_token", "From arrival to the first token.")
        self.e2e = seconds("e2e_request_latency", "From arrival to the last word.")
        self.queue = seconds("request_queue_time", "Waiting for a place in the executor.")
        self.prefill = seconds("request_prefill_time", "Reading the prompt.")
        self.decode = seconds("request_decode_time", "Writing the answer.")
        self.inference = seconds("request_inference_time", "Reading and writing.")
        self.per_token = seconds(
            "request_time_per_output_token", "Mean over one answer, of several the slowest."
        )
        self.prompt = tokens("request_prompt_tokens", "Prompt tokens of a request.")
        self.generation = tokens("request_generation_tokens", "Tokens generated for a request.")
        self.longest = tokens("request_max_num_generation_tokens", "Of the longest of its choices.")
        self.asked_tokens = tokens("request_params_max_tokens", "The most that was asked for.")
        self.asked_choices = histogram("request_params_n", "Choices that were asked for.", CHOICES)

    def observe(self, case: Case) -> None:
        job, ended = case.job, case.ended.values()
        named = (job.model, *self._engine)
        meters = case.meters()
        finished = case.finish_reason if case.outcome == "completed" else case.outcome
        self.success.labels(*named, finished or "unknown").inc()
        self.looked_up.labels(*named).inc(job.prompt_tokens)
        self.found.labels(*named).inc(min(job.prompt_tokens, sum(each.cached for each in ended)))
        if case.first_token_ns is not None:
            self.ttft.labels(*named).observe((case.first_token_ns - case.received_ns) / 1e9)
        if case.closed_ns is not None:
            self.e2e.labels(*named).observe((case.closed_ns - case.received_ns) / 1e9)
        prefill_ns, decode_ns = case.span_ns("prefill"), case.span_ns("decode")
        self.queue.labels(*named).observe(case.span_ns("queued") / 1e9)
        self.prefill.labels(*named).observe(prefill_ns / 1e9)
        self.decode.labels(*named).observe(decode_ns / 1e9)
        self.inference.labels(*named).observe((prefill_ns + decode_ns) / 1e9)
        if (pace := case.slowest()).tokens > 1:
            self.per_token.labels(*named).observe(pace.span_ns / 1e9 / (pace.tokens - 1))
        self.prompt.labels(*named).observe(job.prompt_tokens)
        self.generation.labels(*named).observe(meters.output)
        self.longest.labels(*named).observe(max((each.generated for each in ended), default=0))
        if job.max_output_tokens is not None:
            self.asked_tokens.labels(*named).observe(job.max_output_tokens)
        self.asked_choices.labels(*named).observe(job.n)


class _ExecutorGauges(Collector):
    """Read at scrape time; nothing is pushed."""

    def __init__(
        self,
        gauges: Callable[[], dict[str, Gauges]],
        cards: Callable[[], Mapping[str, ModelCard | None]],
        prefixes: tuple[str, ...],
    ) -> None:
        self._gauges = gauges
        self._cards = cards
        self._prefixes = prefixes

    def collect(self) -> Iterator[Metric]:
        now = self._gauges()
        for prefix in self._prefixes:
            labels, engine = [MODEL], []
            if prefix == VLLM_PREFIX:
                labels, engine = [MODEL, ENGINE[0]], [ENGINE[1]]
                yield from self._vllm_only(now)
            for name, says, read in _GAUGES:
                family = GaugeMetricFamily(f"{prefix}{name}", says, labels=labels)
                for model, gauges in now.items():
                    family.add_metric([model, *engine], read(gauges))
                yield family
            for name, says, spread, bounds, unit in _HISTOGRAMS:
                histogram = HistogramMetricFamily(f"{prefix}{name}", says, labels=labels)
                for model, gauges in now.items():
                    found = spread(gauges)
                    histogram.add_metric(
                        [model, *engine], _up_to(found, bounds, unit), found.total / unit
                    )
                yield histogram
            for name, says, read in _COUNTERS:
                counter = CounterMetricFamily(f"{prefix}{name}", says, labels=labels)
                for model, gauges in now.items():
                    counter.add_metric([model, *engine], read(gauges))
                yield counter

    def _vllm_only(self, now: Mapping[str, Gauges]) -> Iterator[GaugeMetricFamily]:
        """What Kubernetes' gateway for inference reads beside the gauges, and a board of vLLM's."""
        waiting = GaugeMetricFamily(
            f"{VLLM_PREFIX}num_requests_waiting_by_reason",
            "Sequences waiting for a place; for room is the only reason here.",
            labels=[MODEL, ENGINE[0], "reason"],
        )
        info = GaugeMetricFamily(
            f"{VLLM_PREFIX}cache_config_info",
            "The KV cache: blocks, and tokens of a block.",
            labels=[MODEL, ENGINE[0], "block_size", "num_gpu_blocks"],
        )
        for model, gauges in now.items():
            waiting.add_metric([model, ENGINE[1], "capacity"], gauges.waiting)
        for model, card in self._cards().items():
            if card is not None:
                sizes = [str(card.block_tokens), str(card.kv_blocks)]
                info.add_metric([model, ENGINE[1], *sizes], 1)
        yield waiting
        yield info


def _up_to(found: Spread, bounds: Sequence[int], unit: int) -> list[tuple[str, float]]:
    """Prometheus' buckets: how many were at most each bound."""
    counts = accumulate(found.counts or [0] * (len(bounds) + 1))
    named = [*(str(bound / unit) for bound in bounds), "+Inf"]
    return list(zip(named, map(float, counts), strict=True))


def _kv_usage(gauges: Gauges) -> float:
    held = gauges.blocks_total - gauges.blocks_free
    return held / gauges.blocks_total if gauges.blocks_total else 0.0


_Read = Callable[[Gauges], float]
_GAUGES: Final[tuple[tuple[str, str, _Read], ...]] = (
    ("num_requests_running", "Sequences in the batch.", lambda g: g.running),
    ("num_requests_waiting", "Sequences waiting for a place.", lambda g: g.waiting),
    ("kv_cache_usage_perc", "Part of the KV blocks that is held, 0 to 1.", _kv_usage),
)
_HISTOGRAMS: Final[tuple[tuple[str, str, Callable[[Gauges], Spread], Sequence[int], int], ...]] = (
    (
        "inter_token_latency_seconds",
        "Between two steps in which a request was given tokens, as the executor counts them.",
        lambda g: g.gaps,
        GAPS_NS,
        1_000_000_000,
    ),
    (
        "iteration_tokens_total",
        "Tokens of a step: of prompts prefilled, and generated.",
        lambda g: g.step_tokens,
        STEP_TOKENS,
        1,
    ),
)
"""Counted by the executor in each of its steps, bounds in its unit and how many of that are one of ours."""
_COUNTERS: Final[tuple[tuple[str, str, _Read], ...]] = (
    ("prompt_tokens", "Prompt tokens prefilled.", lambda g: g.prompt_tokens),
    ("generation_tokens", "Tokens generated.", lambda g: g.generated_tokens),
    ("drafted_tokens", "Guesses that were run.", lambda g: g.drafted_tokens),
    ("accepted_tokens", "Guesses that held.", lambda g: g.accepted_tokens),
    ("num_preemptions", "Sequences sent back to the queue.", lambda g: g.preemptions),
    ("engine_steps", "Engine steps.", lambda g: g.steps),
    ("device_seconds", "Measured step time.", lambda g: g.step_ns / 1e9),
    ("device_overhead_seconds", "Step time charged to nobody.", lambda g: g.overhead_ns / 1e9),
)
