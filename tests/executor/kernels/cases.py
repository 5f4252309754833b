"""Random tensors and ragged rows for the kernels' checks, on any device, the same on all."""

from __future__ import annotations

import torch
from torch import Tensor

from executor.kernels.places import BLOCK_TOKENS, Places, Tiles
from executor.kernels.plan import tiles

CPU = torch.device("cpu")
Rows = list[tuple[int, int]]
"""(new tokens, context) a row."""


def random(
    *shape: int, seed: int = 0, dtype: torch.dtype = torch.float32, device: torch.device = CPU
) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def ints(values: list[int], device: torch.device = CPU) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def places(rows: Rows, *, padding: int = 0, device: torch.device = CPU) -> Places:
    """Blocks of the rows lie shuffled.  `padding` tokens are nobody's."""
    needed = [-(-context // BLOCK_TOKENS) for _, context in rows]
    order = torch.randperm(sum(needed), generator=torch.Generator().manual_seed(9))
    starts = [0]
    for count, _ in rows:
        starts.append(starts[-1] + count)
    positions = [at for count, context in rows for at in range(context - count, context)]
    owners = [row for row, (count, _) in enumerate(rows) for _ in range(count)]
    return Places(
        positions=ints(positions + [0] * padding, device),
        rows=ints(owners + [-1] * padding, device),
        query_starts=ints(starts, device),
        contexts=ints([context for _, context in rows], device),
        table_starts=ints([sum(needed[:row]) for row in range(len(rows))], device),
        tables=order.to(device, torch.int32),
    )


def tiled(
    rows: Rows,
    size: int,
    group: int,
    splits: int = 1,
    keys_min: int = 16,
    device: torch.device = CPU,
) -> Tiles:
    owners, firsts = tiles([(row, count) for row, (count, _) in enumerate(rows)], size // group)
    return Tiles(
        rows=ints([*owners, -1], device),  # and one of a recording's padding
        firsts=ints([*firsts, 0], device),
        size=size,
        queries_max=max(count for count, _ in rows),
        splits=splits,
        keys_min=keys_min,
    )


def memory(at: Places, kv_heads: int, head_dim: int, dtype: torch.dtype) -> Tensor:
    """Beyond what rows hold lies poison, which nothing may read."""
    shape = (len(at.tables), 2 * kv_heads, BLOCK_TOKENS, head_dim)
    kv = random(*shape, seed=5, dtype=dtype, device=at.tables.device)
    for row, context in enumerate(at.contexts.tolist()):
        if rest := context % BLOCK_TOKENS:
            kv[at.tables[at.table_starts[row] + context // BLOCK_TOKENS], :, rest:] = float("nan")
    return kv
