"""How much an engine may take on at once, and what follows from it for a model in memory.

Refuses to know: where the numbers come from.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from executor.batch import Runner
from executor.contract import ModelCard
from executor.scheduler.batching import ALWAYS, BatchRule
from executor.scheduler.fair import Fair
from executor.scheduler.fcfs import Fcfs
from executor.scheduler.lobby import Bounds
from executor.scheduler.protocol import Limits, Scheduler
from executor.scheduler.vtc import Vtc
from executor.sequence import Sequence

POOL_PART: Final = 0.25
"""Of KV memory, where nothing else is said."""


class Policy(StrEnum):
    FAIR = "fair"
    VTC = "vtc"
    FCFS = "fcfs"


@dataclass(frozen=True, slots=True)
class Settings:
    """`waiting_max` and `waiting_bytes_max`: how many may wait, and the memory that they may hold.
    `step_ms_max` is what a step with prompts in it should take at most, so that one long prompt
    never stalls the decodes beside it; `chunk_tokens_min` of prompts run all the same, half of it
    beside those who were promised a time between tokens.
    `speculation`: guesses are run where they pay; what is said stays the same.
    `pool_part` of KV memory is set aside for what is kept of prompts.
    `policy`: who comes next, `batching`: when; all but `fair` and `continuous` are there to be compared
    with."""

    seqs_max: int = 64
    waiting_max: int = 4096
    waiting_bytes_max: int = 512 * 2**20
    step_ms_max: int = 200
    chunk_tokens_min: int = 64
    step_tokens_max: int = 2048
    speculation: bool = True
    policy: Policy = Policy.FAIR
    batching: BatchRule = ALWAYS
    pool_part: float = 0.0
    check_invariants: bool = False

    @property
    def bounds(self) -> Bounds:
        return Bounds(self.waiting_max, self.waiting_bytes_max)


_SHORT_TOKENS: Final = 1024


def memory_line(card: ModelCard) -> str:
    """What the KV memory buys, for whoever starts the server."""
    counts = [
        (card.kv_blocks - card.pool_blocks) // -(-tokens // card.block_tokens)
        for tokens in (card.context_tokens, min(_SHORT_TOKENS, card.context_tokens))
    ]
    return (
        f"KV {card.kv_bytes / 2**20:.0f} MiB: {counts[0]} sequences of {card.context_tokens:,} tokens,"
        f" {counts[1]} of {min(_SHORT_TOKENS, card.context_tokens):,}"
    )


def pool_blocks(kv_blocks: int, part: float) -> int:
    """Set aside for what is kept of prompts; something is left for what runs."""
    return min(int(kv_blocks * part), kv_blocks - 1)


def engine_limits(runner: Runner, settings: Settings) -> Limits:
    """One block in a hundred stays free for those that run, at least one."""
    room = runner.kv_blocks - pool_blocks(runner.kv_blocks, settings.pool_part)
    return Limits(
        seqs=settings.seqs_max,
        block_tokens=runner.block_tokens,
        blocks_total=room,
        watermark_blocks=max(1, room // 100),
        prefixes=room < runner.kv_blocks,
        step_ms_max=settings.step_ms_max,
        chunk_tokens_min=settings.chunk_tokens_min,
        step_tokens_max=settings.step_tokens_max,
        batching=settings.batching,
    )


def scheduler_of(policy: Policy, limits: Limits) -> Scheduler[Sequence]:
    if policy is Policy.FAIR:
        return Fair(limits)
    return Vtc(limits) if policy is Policy.VTC else Fcfs(limits)
