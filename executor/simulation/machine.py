"""A machine as the simulator has it: what a step takes, how much memory there is.

    T = fixed + sequence·rows + kv·Σ context + token·Σ prompt tokens + pair·Σ prompt tokens·context

This is the truth of a run; a scheduler never sees it, only `Rates` fitted to steps, as it does live.
They are two different formulas on purpose: on a GPU a decode is bound by the memory it reads (`kv`, by
row), a prompt by arithmetic (`token`), and `Rates` has one coefficient for both.

Refuses to know: requests, time.  Source: SCHEDULER.md §3, §4; VTC's A10G cost profile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from executor.contract import Workload
from executor.cost import Share
from executor.scheduler.protocol import Limits

TERM_NS_MAX: Final = 1e12
"""Of each coefficient: a quarter of an hour for a token is no machine."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Times in nanoseconds.  `kv_token_ns`: a token of context that a row reads, once a step.
    `pair_ns`: what a prompt token adds for each token before it, where that matters."""

    name: str
    fixed_ns: float
    sequence_ns: float
    kv_token_ns: float
    token_ns: float
    pair_ns: float
    seqs: int
    block_tokens: int
    kv_blocks: int

    @property
    def room_tokens(self) -> int:
        """Of KV memory, in all."""
        return self.kv_blocks * self.block_tokens

    def step_ns(self, rows: Sequence[Share]) -> int:
        """What these rows take together.  At least a nanosecond, so that time goes on."""
        total = self.fixed_ns + self.sequence_ns * len(rows)
        context = prompt = pairs = 0
        for new, start, _, _ in rows:
            context += start + new
            if new > 1:
                prompt += new
                pairs += new * (2 * start + new + 1)
        total += self.kv_token_ns * context + self.token_ns * prompt + self.pair_ns * pairs / 2
        return max(1, round(total))

    def slower(self, factor: float) -> Machine:
        """All that takes time takes `factor` times as long."""
        return replace(
            self,
            fixed_ns=self.fixed_ns * factor,
            sequence_ns=self.sequence_ns * factor,
            kv_token_ns=self.kv_token_ns * factor,
            token_ns=self.token_ns * factor,
            pair_ns=self.pair_ns * factor,
        )

    def limits(
        self,
        workloads: tuple[Workload, ...] = (),
        *,
        step_ms_max: int = 200,
        step_tokens_max: int = 2048,
        prefixes: bool = False,
    ) -> Limits:
        """As `engine_limits` derives them for a live engine."""
        return Limits(
            seqs=self.seqs,
            block_tokens=self.block_tokens,
            blocks_total=self.kv_blocks,
            watermark_blocks=max(1, self.kv_blocks // 100),
            step_ms_max=step_ms_max,
            step_tokens_max=step_tokens_max,
            workloads=workloads,
            prefixes=prefixes,
        )


A10G: Final = Machine(
    name="A10G",
    fixed_ns=15.3e6,
    sequence_ns=0.254e6,
    kv_token_ns=2.16e3,
    token_ns=0.215e6,
    pair_ns=0.0,
    seqs=256,
    block_tokens=16,
    kv_blocks=625,
)
"""Llama-2-7B with 10,000 tokens of KV memory, as VTC measured it; worst residual 10 %."""

CPU: Final = Machine(
    name="CPU",
    fixed_ns=8e6,
    sequence_ns=2.5e6,
    kv_token_ns=0.0,
    token_ns=2.2e6,
    pair_ns=0.0,
    seqs=16,
    block_tokens=16,
    kv_blocks=128,
)
"""A model of 135 million parameters on two cores, 2,048 tokens of KV memory: bound by its rows."""
