"""How many KV blocks a card has room for, beside the weights and what a step needs at its largest.

Pure arithmetic; refuses to know the card.  Source: what the kernels and products of a step allocate,
with a margin for what libraries keep (cuBLAS's workspace, CUDA's own context, fragments).
"""

from __future__ import annotations

from executor.batch import StepBounds
from executor.model.config import ModelConfig

from . import plan
from .places import BLOCK_TOKENS

MARGIN = 0.04  # of what is free
LIBRARIES_BYTES = 512 << 20


def step_bytes(config: ModelConfig, itemsize: int, bounds: StepBounds) -> int:
    """The most that lives at once within a step: a layer's activations, the parts of a split attention,
    logits in three forms (the head's, float32, the caller's copy)."""
    heads = config.heads + 2 * config.kv_heads
    attention = 2 * heads * config.head_dim
    block = 3 * config.intermediate_size
    stream = (4 + 4 + 2 * itemsize) * config.hidden_size
    activations = bounds.tokens * (max(attention, block) * itemsize + stream)
    group = config.heads // config.kv_heads
    parts = plan.THIN_TILES_MAX * bounds.rows * config.kv_heads * plan.thin_rows(group)
    parts *= plan.SPLITS_MIN * (config.head_dim + 1) * 4
    logits = bounds.logit_rows * config.vocab_size * (itemsize + 4 + 4)
    return activations + parts + logits


def fixed_bytes(config: ModelConfig, itemsize: int, bounds: StepBounds) -> int:
    """All but keys and values."""
    return config.parameters * itemsize + LIBRARIES_BYTES + step_bytes(config, itemsize, bounds)


def kv_blocks_that_fit(
    config: ModelConfig, itemsize: int, free_bytes: int, bounds: StepBounds
) -> int:
    """`free_bytes`: of the card before the weights are on it.  0 where the model does not fit."""
    left = int(free_bytes * (1 - MARGIN)) - fixed_bytes(config, itemsize, bounds)
    return max(0, left // (config.kv_bytes_per_token(itemsize) * BLOCK_TOKENS))
