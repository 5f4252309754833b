"""Paged memory for keys and values: per layer (blocks, 2 · kv_heads, block_tokens, head_dim), keys
first, then values.

One `index_select` of (block, head) rows lays out keys and values of all rows of a step in the order
that a batched product reads as it is: no transposition, no repeat for grouped queries, one gather for
both.  Rows of a gather are block_tokens · head_dim numbers: 4 KiB here, so it runs at memory speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

BLOCK_TOKENS = 32


@dataclass(frozen=True, slots=True)
class PagedKv:
    """`by_token[layer]` and `by_head[layer]` are two views of the same memory."""

    by_token: tuple[Tensor, ...]  # (blocks · 2 · kv_heads · block_tokens, head_dim)
    by_head: tuple[Tensor, ...]  # (blocks · 2 · kv_heads, block_tokens · head_dim)
    heads: int  # 2 · kv_heads
    blocks: int

    def write(self, layer: int, places: Tensor, fresh: Tensor) -> None:
        """`fresh` (tokens, 2 · kv_heads, head_dim) goes to `places`, from `token_places`."""
        self.by_token[layer].index_copy_(0, places, fresh.reshape(len(places), -1))

    def gather(self, layer: int, places: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """Keys and values at `places`, from `block_places` for that many rows:
        each (kv_heads · rows, length, head_dim)."""
        both = self.by_head[layer].index_select(0, places)
        shaped = both.view(2, self.heads // 2 * rows, -1, self.by_token[layer].shape[1])
        return shaped[0], shaped[1]

    def zero(self, blocks: Sequence[int]) -> None:
        which = torch.tensor(blocks, dtype=torch.int64)
        for layer in self.by_head:
            layer.view(self.blocks, -1).index_fill_(0, which, 0.0)

    def are_zero(self, blocks: Sequence[int]) -> bool:
        which = torch.tensor(blocks, dtype=torch.int64)
        layers = (layer.view(self.blocks, -1) for layer in self.by_head)
        return not any(bool(layer.index_select(0, which).any()) for layer in layers)


def token_places(blocks: Tensor, offsets: Tensor, heads: int) -> Tensor:
    """Where tokens at `offsets` within `blocks` are stored: (tokens · heads,)."""
    each = blocks.unsqueeze(1) * heads + torch.arange(heads)
    return (each * BLOCK_TOKENS + offsets.unsqueeze(1)).flatten()


def block_places(blocks: Tensor, heads: int) -> Tensor:
    """Where `blocks` are stored, head by head, keys before values: (heads · blocks,)."""
    return (torch.arange(heads).unsqueeze(1) + blocks.unsqueeze(0) * heads).flatten()


def make_kv(layers: int, kv_heads: int, head_dim: int, blocks: int, dtype: torch.dtype) -> PagedKv:
    """Zeroed.  numpy's zeros are pages that the system gives when first written; torch's are written
    at once, half a second a GiB at every start."""
    heads = 2 * kv_heads
    shape = (blocks * heads * BLOCK_TOKENS, head_dim * dtype.itemsize)
    memory = [torch.from_numpy(np.zeros(shape, np.uint8)).view(dtype) for _ in range(layers)]
    return PagedKv(
        by_token=tuple(memory),
        by_head=tuple(one.view(blocks * heads, BLOCK_TOKENS * head_dim) for one in memory),
        heads=heads,
        blocks=blocks,
    )
