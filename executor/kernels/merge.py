# ruff: noqa: N803, N806 — compile-time constants are in capitals, as everywhere in Triton
"""The parts of a split attention, weighed by the logarithms of their soft-max sums.

Source: Dao et al. 2023 (Flash-Decoding); Milakov & Gimelshein 2018 for why it is exact.
"""

from __future__ import annotations

from torch import Tensor

from .lang import jit, launch, next_power_of_2, tl
from .places import Places, Tiles


@jit()
def _merge(
    part_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    out_ptr: tl.tensor,
    tile_row_ptr: tl.tensor,
    tile_first_ptr: tl.tensor,
    query_start_ptr: tl.tensor,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
) -> None:
    GROUP: tl.constexpr = HEADS // KV_HEADS
    row = tl.load(tile_row_ptr + tl.program_id(0))
    if row < 0:
        return
    at = tl.program_id(2)
    query = tl.load(tile_first_ptr + tl.program_id(0)) + at // GROUP
    start = tl.load(query_start_ptr + row)
    if start + query >= tl.load(query_start_ptr + row + 1):
        return
    slot = ((tl.program_id(0).to(tl.int64) * KV_HEADS + tl.program_id(1)) * TILE_ROWS + at) * SPLITS
    split = tl.arange(0, BLOCK_SPLITS)
    dim = tl.arange(0, BLOCK_DIM)
    weight = tl.load(weight_ptr + slot + split, mask=split < SPLITS, other=-float("inf"))
    highest = tl.max(weight, 0)
    if highest == float("inf"):  # one part was all, and has written
        return
    taken = weight > -float("inf")  # of a part that saw no key only this was written
    share = tl.exp2(weight - highest)
    inside = taken[:, None] & (dim < HEAD_DIM)[None, :]
    part = tl.load(
        part_ptr + (slot + split)[:, None] * HEAD_DIM + dim[None, :], mask=inside, other=0.0
    )
    mixed = tl.sum(part * share[:, None], 0) / tl.sum(share, 0)
    head = tl.program_id(1) * GROUP + at % GROUP
    out = out_ptr + ((start + query).to(tl.int64) * HEADS + head) * HEAD_DIM + dim
    tl.store(out, mixed.to(out_ptr.dtype.element_ty), mask=dim < HEAD_DIM)


def merge(parts: Tensor, weights: Tensor, out: Tensor, places: Places, tiles: Tiles) -> None:
    """`parts` (tiles, kv_heads, rows of a tile, splits, head_dim) float32, each a finished soft-max of
    its keys; `weights` (…, splits) log2 of its sum, −∞ where it saw
    none, +∞ where it was all and is in `out` already → the tiles' queries in `out`
    (tokens, heads · head_dim).

    Reads 4 bytes a number of each part that saw a key.  Twin: `twins.merge_twin`.
    """
    _, kv_heads, size, splits, head_dim = parts.shape
    heads = out.shape[1] // head_dim
    group = heads // kv_heads
    launch(
        _merge,
        (len(tiles.rows), kv_heads, min(tiles.queries_max, size // group) * group),
        parts,
        weights,
        out,
        tiles.rows,
        tiles.firsts,
        places.query_starts,
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_DIM=next_power_of_2(head_dim),
        TILE_ROWS=size,
        SPLITS=splits,
        BLOCK_SPLITS=next_power_of_2(splits),
        num_warps=4,
    )
