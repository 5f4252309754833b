"""Paged memory for keys and values: per layer (2 · kv_heads, blocks · block_tokens, head_dim), keys
first, then values.

Heads lie outermost so that one `index_select` over whole blocks yields, for all rows of a step,
keys and values that a batched product reads as they are: no transposition, no repeat for grouped
queries, one gather for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK_TOKENS = 32


@dataclass(frozen=True, slots=True)
class PagedKv:
    """`by_token[layer]` and `by_block[layer]` are two views of the same memory."""

    by_token: tuple[Tensor, ...]  # (2·kv_heads, blocks·block_tokens, head_dim)
    by_block: tuple[Tensor, ...]  # (2·kv_heads, blocks, block_tokens·head_dim)
    blocks: int

    def write(self, layer: int, slots: Tensor, fresh: Tensor) -> None:
        """`fresh` (tokens, 2·kv_heads, head_dim) goes to `slots` (tokens,)."""
        self.by_token[layer].index_copy_(1, slots, fresh.transpose(0, 1))

    def gather(self, layer: int, blocks: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """Keys and values of `blocks` (rows · n,): each (kv_heads · rows, n · block_tokens, head_dim)."""
        both = self.by_block[layer].index_select(1, blocks)
        head_dim = self.by_token[layer].shape[2]
        heads = both.shape[0] // 2
        shaped = both.view(2, heads * rows, -1, head_dim)
        return shaped[0], shaped[1]

    def zero(self, blocks: Sequence[int]) -> None:
        which = torch.tensor(blocks, dtype=torch.int64)
        for layer in self.by_block:
            layer.index_fill_(1, which, 0.0)


def make_kv(layers: int, kv_heads: int, head_dim: int, blocks: int, dtype: torch.dtype) -> PagedKv:
    """Zeroed; the operating system gives the pages when they are first written."""
    memory = [
        torch.zeros(2 * kv_heads, blocks * BLOCK_TOKENS, head_dim, dtype=dtype)
        for _ in range(layers)
    ]
    return PagedKv(
        by_token=tuple(memory),
        by_block=tuple(one.view(2 * kv_heads, blocks, BLOCK_TOKENS * head_dim) for one in memory),
        blocks=blocks,
    )
