"""Runs on the real engine whose steps are written down: the rows of each, and how long until the next.

Refuses to know: what is done with them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from executor.batch import Batch, Runner
from executor.contract import Workload
from executor.cost import Share, StepTimes
from executor.scheduler.fair import Fair
from executor.scheduler.protocol import Limits
from executor.sequence import Sequence as Seq
from executor.settings import Settings
from executor.simulation.fit import Step
from executor.simulation.outcome import Run
from executor.simulation.work import NS, Request
from tests.bench.live import Live
from tests.bench.validate import Ran

if TYPE_CHECKING:
    from torch import Tensor

    from executor.choice import Ask, Choice

_IDLE_NS = 2_000_000  # longer between two steps: the engine had nothing to do


class Watched:
    """A runner, and what it was given last."""

    def __init__(self, inner: Runner) -> None:
        self._inner = inner
        self.rows: tuple[Share, ...] = ()
        self.block_tokens = inner.block_tokens
        self.kv_blocks = inner.kv_blocks
        self.vocab_size = inner.vocab_size
        self.context_tokens = inner.context_tokens

    def run(self, batch: Batch) -> Tensor:
        self.rows = tuple(Share(len(row.tokens), row.start) for row in batch.rows)
        return self._inner.run(batch)

    def sample(self, logits: Tensor, asks: Sequence[Ask]) -> list[Choice]:
        return self._inner.sample(logits, asks)

    def zero_blocks(self, blocks: Sequence[int]) -> None:
        self._inner.zero_blocks(blocks)

    def are_zero(self, blocks: Sequence[int]) -> bool:
        return self._inner.are_zero(blocks)


@dataclass(slots=True)
class Logged(Run):
    """A run that keeps its steps.  What lies between two that follow on each other belongs to the
    second: in the simulator nothing else takes time."""

    runner: Watched | None = None
    log: list[Step] = field(default_factory=list)
    last_ns: int = 0

    def step(self, took_ns: int, rows: int) -> None:
        Run.step(self, took_ns, rows)
        assert self.runner is not None
        now_ns = time.monotonic_ns()
        whole_ns = now_ns - self.last_ns
        self.last_ns = now_ns
        idle = whole_ns - took_ns > _IDLE_NS
        self.log.append(Step(self.runner.rows, took_ns if idle else whole_ns))


class Player:
    """One model; each `play` begins with an empty house and what was learnt of step times before."""

    def __init__(
        self, runner: Runner, settings: Settings, limits: Limits, classes: tuple[Workload, ...]
    ) -> None:
        self._runner = Watched(runner)
        self._settings = settings
        self._limits = limits
        self._classes = classes
        self._times = StepTimes()

    def play(self, requests: Sequence[Request]) -> Ran:
        rates = self._times.rates
        scheduler: Fair[Seq] = Fair(self._limits)
        live = Live(self._runner, scheduler, self._settings, self._classes, times=self._times)
        seen = live.seen = Logged(runner=self._runner)
        live.play(requests, 10 * (requests[-1].at_ns / NS + 60))
        return Ran(seen, seen.log, rates)

    def capacity(self, requests: Sequence[Request]) -> float:
        """Work a second with a full house: until the last of them began, since then it empties.  A first
        few are for warming up."""
        self.play(requests[: len(requests) // 4])
        ran = self.play([replace(each, at_ns=0) for each in requests])
        full_ns = max(each.dispatched_ns or 0 for each in ran.run.outcomes)
        work = took_ns = 0
        for step in ran.steps:
            if took_ns >= full_ns:
                break
            took_ns += step.took_ns
            work += sum(row.new if row.new > 1 else 2 for row in step.rows)
        return work / (took_ns / NS)
