"""What is written down of a run: each request's end, each step's service, and how it reads as the
records and logs that `metrics` take.

Refuses to know: how it came about.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from executor.simulation.metrics import Service
from executor.simulation.metrics_requests import Ending, Record, Tokens
from executor.simulation.work import NS, Request


@dataclass(frozen=True, slots=True)
class Outcome:
    """`times_ns`: when each of its tokens was said, or the first and the last.  `cached_tokens`: of its prompt, that were taken and not computed.  `retry_ms`: what it was told when it was refused."""

    ticket: int
    request: Request
    ending: Ending
    dispatched_ns: int | None
    times_ns: Sequence[int]
    ended_ns: int
    device_ns: int = 0
    lost_ns: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    cached_tokens: int = 0
    generated: int = 0
    retry_ms: int | None = None

    @property
    def waited_ns(self) -> int | None:
        return None if self.dispatched_ns is None else self.dispatched_ns - self.request.at_ns

    @property
    def ttft_ns(self) -> int | None:
        return self.times_ns[0] - self.request.at_ns if self.times_ns else None

    def pauses_ns(self) -> list[int]:
        """Between one token and the next."""
        return [later - earlier for earlier, later in pairwise(self.times_ns)]

    def record(self) -> Record:
        """`output_tokens` are those that were said."""
        asked = self.request
        return Record(
            tenant=asked.tenant,
            arrived_s=asked.at_ns / NS,
            prompt_tokens=asked.prompt_tokens,
            output_tokens=self.generated,
            ended_s=self.ended_ns / NS,
            ending=self.ending,
            dispatched_s=None if self.dispatched_ns is None else self.dispatched_ns / NS,
            first_token_s=self.times_ns[0] / NS if self.times_ns else None,
            kind=asked.workload,
        )


class Served(NamedTuple):
    """What a tenant got of a step that ended at `at_ns`.  Recomputed tokens are nobody's."""

    at_ns: int
    tenant: str
    device_ns: int
    prompt: int
    output: int


class Probe(NamedTuple):
    """At `part` of the time that somebody was told to wait, it would have been taken, or not."""

    at_ns: int
    request: Request
    retry_ms: int
    part: float
    taken: bool


@dataclass(slots=True)
class Run:
    """Grows while an engine runs.  `merge_ns`: service is kept by intervals of that length (an entry
    stands at the end of its own), and of each request's tokens the first and the last: for hours of many
    replicas, which would not fit in memory otherwise."""

    merge_ns: int | None = None
    device_ns: Counter[str] = field(default_factory=Counter)
    open: dict[str, int] = field(default_factory=dict)  # tenant to its entry in the last interval
    outcomes: list[Outcome] = field(default_factory=list)
    service: list[Served] = field(default_factory=list)
    cancel_to_free_ns: list[int] = field(default_factory=list)
    probes: list[Probe] = field(default_factory=list)
    steps: int = 0
    rows: int = 0
    busy_ns: int = 0
    step_ns_max: int = 0
    end_ns: int = 0

    def serve(self, at_ns: int, tenant: str, device_ns: int, prompt: int, output: int) -> None:
        self.device_ns[tenant] += device_ns
        if self.merge_ns is None:
            self.service.append(Served(at_ns, tenant, device_ns, prompt, output))
            return
        end_ns = -(-at_ns // self.merge_ns) * self.merge_ns
        if self.service and self.service[-1].at_ns != end_ns:
            self.open.clear()
        index = self.open.get(tenant)
        if index is None:
            self.open[tenant] = len(self.service)
            self.service.append(Served(end_ns, tenant, device_ns, prompt, output))
        else:
            _, _, device, prompts, outputs = self.service[index]
            self.service[index] = Served(
                end_ns, tenant, device + device_ns, prompts + prompt, outputs + output
            )

    def step(self, took_ns: int, rows: int) -> None:
        self.steps += 1
        self.rows += rows
        self.busy_ns += took_ns
        self.step_ns_max = max(self.step_ns_max, took_ns)

    @property
    def records(self) -> list[Record]:
        return [outcome.record() for outcome in self.outcomes]

    def in_tokens(self, per_prompt: float = 1.0, per_output: float = 2.0) -> list[Service]:
        """As it was computed, step by step."""
        return [
            Service(
                each.at_ns / NS, each.tenant, per_prompt * each.prompt + per_output * each.output
            )
            for each in self.service
        ]

    def in_device_ms(self) -> list[Service]:
        return [
            Service(each.at_ns / NS, each.tenant, each.device_ns / 1e6) for each in self.service
        ]

    def tokens(self) -> Tokens:
        """Computed, and those of them for nothing, of what has ended."""
        recomputed = sum(each.recomputed_tokens for each in self.outcomes)
        fresh = sum(each.prompt + each.output for each in self.service)
        return Tokens(computed=fresh + recomputed, recomputed=recomputed)

    @property
    def recomputed_part(self) -> float:
        """Of the time that the device was busy."""
        return sum(each.lost_ns for each in self.outcomes) / self.busy_ns if self.busy_ns else 0.0
