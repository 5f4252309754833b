"""What may befall many replicas and their clients, and what is written down of it.

Refuses to know: how it comes about (`fluid_fleet`), what it means.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from executor.simulation.metrics_requests import Ending, Record
from executor.simulation.work import NS, Request


@dataclass(frozen=True, slots=True)
class Patience:
    """`pause_ns`: between leaving and coming again, where the ticket is not kept."""

    wait_ns: int
    tries: int
    pause_ns: int
    keeps: bool


@dataclass(frozen=True, slots=True)
class Loss:
    """`replicas` fail at once and come back, empty, or never."""

    at_ns: int
    replicas: tuple[int, ...]
    back_ns: int | None = None


class Felt(NamedTuple):
    """How a request ended.  `device_ns`: what it had where it was last."""

    request: Request
    ending: Ending
    first_ns: int | None
    ended_ns: int
    replica: int
    tries: int
    device_ns: int = 0

    @property
    def ttft_ns(self) -> int | None:
        """From its first arrival on, however often its client came again."""
        return None if self.first_ns is None else self.first_ns - self.request.at_ns

    def record(self) -> Record:
        asked, first_ns = self.request, self.first_ns
        first_s = None if first_ns is None else first_ns / NS
        tokens = asked.prompt_tokens, asked.output_tokens
        ended_s = self.ended_ns / NS
        return Record(asked.tenant, asked.at_ns / NS, *tokens, ended_s, self.ending, None, first_s)


class Sample(NamedTuple):
    """Since the last one: device time by tenant.  `backlogged`: who had something waiting all the time.
    Now: `waiting`, tenants of whom something waits; `tenants`, of whom a replica knows anything."""

    at_ns: int
    device_ns: Counter[str]
    backlogged: frozenset[str]
    waiting: int
    tenants: int


@dataclass(slots=True)
class Tally:
    """`wasted_ns`: of the device, for nobody: recomputed, or of who left or was lost."""

    arrived: int = 0
    happened: int = 0
    attached: int = 0
    again: int = 0
    busy_ns: float = 0.0
    wasted_ns: float = 0.0
    preemptions: int = 0
    left: int = 0
    """Still there at the end."""
