"""Every variant of the attention kernels that a step may ask for, compiled before anybody waits.

Tiles of padding only: each program of them ends at once.  Source: vLLM issue 43009, where compiling
while serving stalled every stream.
"""

from __future__ import annotations

import torch
from torch import Tensor

from executor.model.config import ModelConfig

from . import plan
from .attention import attend
from .places import Places, Tiles
from .step import Room


def variants(config: ModelConfig, room: Room) -> set[tuple[int, int, int]]:
    """(rows of a tile, splits, keys of a split) of all steps within these bounds."""
    group = config.heads // config.kv_heads
    thin, thick = plan.thin_rows(group), plan.thick_rows(group, config.head_dim * room.itemsize)
    found: set[tuple[int, int, int]] = set()
    for size in plan.recorded_sizes(room.rows_max):
        one = plan.split_thin(size, room.kv_heads, room.processors, room.context_tokens)
        found.add((thin, one.splits, one.keys_min))
    for tiles in (1, room.tokens_max):
        one = plan.split_thick(tiles, room.kv_heads, room.processors, room.context_tokens)
        found.add((thick, one.splits, one.keys_min))
    return found


def compile_attention(config: ModelConfig, kv: Tensor, room: Room) -> None:
    def ints(*values: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=kv.device)

    nobody = Places(ints(0), ints(-1), ints(0, 0), ints(0), ints(0), ints(0))
    queries = kv.new_zeros(1, config.heads * config.head_dim)
    windows = {config.kind(layer).window for layer in range(config.layers)}
    for size, splits, keys_min in sorted(variants(config, room)):
        tiles = Tiles(ints(-1), ints(0), size, 1, splits, keys_min)
        for window in windows:
            attend(queries, kv[0], nobody, (tiles,), scale=config.score_scale, window=window)
