# ruff: noqa: N803, N806 — compile-time constants are in capitals, as everywhere in Triton
"""Causal attention of ragged rows over paged keys and values: decodes, chunks of prompts and what lies
between in one kernel.  A program takes a tile of queries of one row for one key-value head, all query
heads of its group packed into the tile's rows (a decode of 8 heads fills 8 of 16, not 1).  Few tiles of
many keys are split among programs, whose parts `merge.py` puts together.

Source: Dao 2023 (FlashAttention-2) for the running soft-max; Dao et al. 2023 (Flash-Decoding) for the
split; Kwon et al. 2023 for paging; packing and one kernel for both phases: Ringlein et al. 2025.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .lang import jit, launch, next_power_of_2, tl
from .merge import merge
from .places import Places, Tiles

LOG2_E = 1.4426950408889634
STAGES = 6  # two tiles of keys on their way; looking their blocks up first takes the others


@jit()
def _fold(
    total: tl.tensor,
    top: tl.tensor,
    mixed: tl.tensor,
    queries: tl.tensor,
    key_ptr: tl.tensor,
    table_ptr: tl.tensor,
    position: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    end: tl.tensor,
    scale: tl.tensor,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    WINDOW: tl.constexpr,
    MASKED: tl.constexpr,
) -> tl.tensor:
    """Tiles of keys `low` … `high` into the running soft-max.  Without MASKED every query sees all of
    them.  `end`: where the tile's last query stops seeing."""
    dim = tl.arange(0, BLOCK_DIM)
    for tile in range(low, high):
        key = tile * TILE_KEYS + tl.arange(0, TILE_KEYS)
        there = key < end
        block = tl.load(table_ptr + key // BLOCK_TOKENS, mask=there, other=0).to(tl.int64)
        place = (block * (2 * KV_HEADS * BLOCK_TOKENS) + key % BLOCK_TOKENS) * HEAD_DIM
        at = key_ptr + place[:, None] + dim[None, :]
        real = (dim < HEAD_DIM)[None, :]
        if MASKED:  # of what is not there nothing may reach a sum, not even times zero
            real = real & there[:, None]
        keys = tl.load(at, mask=real, other=0.0)
        values = tl.load(at + KV_HEADS * BLOCK_TOKENS * HEAD_DIM, mask=real, other=0.0)
        scores = tl.dot(queries, tl.trans(keys), input_precision="tf32x3") * scale
        if MASKED:
            seen = key[None, :] <= position[:, None]
            if WINDOW > 0:
                seen = seen & (key[None, :] > position[:, None] - WINDOW)
            scores = tl.where(seen, scores, -float("inf"))
        highest = tl.maximum(top, tl.max(scores, 1))
        base = highest
        if MASKED:  # a query that has seen nothing yet
            base = tl.where(highest == -float("inf"), 0.0, highest)
        weights = tl.exp2(scores - base[:, None])
        fade = tl.exp2(top - base)
        total = total * fade + tl.sum(weights, 1)
        mixed = tl.dot(
            weights.to(values.dtype), values, mixed * fade[:, None], input_precision="tf32x3"
        )
        top = highest
    return total, top, mixed


@jit(varying=("keys_min",))
def _attend(
    query_ptr: tl.tensor,
    kv_ptr: tl.tensor,
    out_ptr: tl.tensor,
    part_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    tile_row_ptr: tl.tensor,
    tile_first_ptr: tl.tensor,
    query_start_ptr: tl.tensor,
    context_ptr: tl.tensor,
    table_start_ptr: tl.tensor,
    table_ptr: tl.tensor,
    scale: tl.tensor,
    keys_min: tl.tensor,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    WINDOW: tl.constexpr,
    SPLITS: tl.constexpr,
) -> None:
    GROUP: tl.constexpr = HEADS // KV_HEADS
    QUERIES: tl.constexpr = TILE_ROWS // GROUP
    row = tl.load(tile_row_ptr + tl.program_id(0))
    if row < 0:
        return
    first = tl.load(tile_first_ptr + tl.program_id(0))
    kv_head = tl.program_id(1)
    start = tl.load(query_start_ptr + row)
    count = tl.load(query_start_ptr + row + 1) - start
    before = tl.load(context_ptr + row) - count  # keys that the row had before this step

    at = tl.arange(0, TILE_ROWS)
    query = first + at // GROUP
    head = kv_head * GROUP + at % GROUP
    position = before + query
    real = (at < QUERIES * GROUP) & (query < count)
    dim = tl.arange(0, BLOCK_DIM)
    token_head = (start + query).to(tl.int64) * HEADS + head
    part = (tl.program_id(0).to(tl.int64) * KV_HEADS + kv_head) * TILE_ROWS + at
    part = part * SPLITS + tl.program_id(2)

    # Tiles of keys that any of the queries sees; of them this program's share.
    end = before + tl.minimum(first + QUERIES, count)
    low = 0
    if WINDOW > 0:
        low = tl.maximum(before + first - (WINDOW - 1), 0) // TILE_KEYS
    high = tl.cdiv(end, TILE_KEYS)
    if SPLITS > 1:
        each = tl.maximum(tl.cdiv(high - low, SPLITS), tl.cdiv(keys_min, TILE_KEYS))
        alone = high - low <= each
        low = low + tl.program_id(2) * each
        high = tl.minimum(high, low + each)
        if low >= high:
            tl.store(weight_ptr + part, tl.full((TILE_ROWS,), -float("inf"), tl.float32), mask=real)
            return

    inside = real[:, None] & (dim < HEAD_DIM)[None, :]
    queries = tl.load(query_ptr + token_head[:, None] * HEAD_DIM + dim, mask=inside, other=0.0)
    keys = kv_ptr + kv_head * BLOCK_TOKENS * HEAD_DIM
    table = table_ptr + tl.load(table_start_ptr + row)
    total = tl.zeros((TILE_ROWS,), tl.float32)
    top = tl.full((TILE_ROWS,), -float("inf"), tl.float32)
    mixed = tl.zeros((TILE_ROWS, BLOCK_DIM), tl.float32)
    middle = low
    if WINDOW == 0:  # tiles that every query sees whole
        middle = tl.minimum(high, tl.maximum(low, (before + first + 1) // TILE_KEYS))
        total, top, mixed = _fold(
            total, top, mixed, queries, keys, table, position, low, middle, end, scale,
            KV_HEADS, HEAD_DIM, BLOCK_DIM, BLOCK_TOKENS, TILE_KEYS, WINDOW, False,
        )  # fmt: skip
    total, top, mixed = _fold(
        total, top, mixed, queries, keys, table, position, middle, high, end, scale,
        KV_HEADS, HEAD_DIM, BLOCK_DIM, BLOCK_TOKENS, TILE_KEYS, WINDOW, True,
    )  # fmt: skip

    safe = tl.where(total > 0.0, total, 1.0)
    mixed = mixed / safe[:, None]
    out = out_ptr + token_head[:, None] * HEAD_DIM + dim
    if SPLITS == 1:
        tl.store(out, mixed.to(out_ptr.dtype.element_ty), mask=inside)
    elif alone:  # short rows of a split batch: nothing to merge, which +∞ says
        tl.store(out, mixed.to(out_ptr.dtype.element_ty), mask=inside)
        tl.store(weight_ptr + part, tl.full((TILE_ROWS,), float("inf"), tl.float32), mask=real)
    else:
        tl.store(part_ptr + part[:, None] * HEAD_DIM + dim, mixed, mask=inside)
        tl.store(weight_ptr + part, top + tl.log2(safe), mask=real)


def shape(tile_rows: int, block_dim: int, itemsize: int) -> tuple[int, int, int]:
    """Keys of a tile, warps, stages of the loads' pipeline.  Thin tiles wait for memory: what is in
    flight counts; thick ones for the tensor cores: their accumulator takes the registers."""
    keys = max(16, min(64, 64 * 256 // (block_dim * itemsize)))
    return keys, 8 if tile_rows > 64 else 4, STAGES


def attend(
    queries: Tensor,
    kv: Tensor,
    places: Places,
    tiles: tuple[Tiles, ...],
    *,
    scale: float,
    window: int | None,
) -> Tensor:
    """`queries` (tokens, heads · head_dim), rotated; `kv` (blocks, 2 · kv_heads, block_tokens,
    head_dim), keys first, this step's already in → (tokens, heads · head_dim).

    `tiles` together hold every query once.  A query at position p sees keys max(0, p − window + 1) … p.
    Moves, for a decode, 2 · kv_heads · head_dim · itemsize bytes a key it sees, which is all that
    counts; a split adds 8 · heads · head_dim bytes for each part, unless one part is all.  Twin: `twins.attend_twin`.
    """
    _, kv_heads, block_tokens, head_dim = kv.shape
    kv_heads //= 2
    heads = queries.shape[1] // head_dim
    assert queries.is_contiguous()
    assert kv.is_contiguous()
    out = torch.empty_like(queries)
    block_dim = max(16, next_power_of_2(head_dim))
    for tile in tiles:
        slots = (len(tile.rows), kv_heads, tile.size, tile.splits) if tile.splits > 1 else (0,)
        parts = queries.new_empty((*slots, head_dim), dtype=torch.float32)
        weights = queries.new_empty(slots, dtype=torch.float32)
        keys, warps, stages = shape(tile.size, block_dim, queries.element_size())
        launch(
            _attend,
            (len(tile.rows), kv_heads, tile.splits),
            queries,
            kv,
            out,
            parts,
            weights,
            tile.rows,
            tile.firsts,
            places.query_starts,
            places.contexts,
            places.table_starts,
            places.tables,
            scale * LOG2_E,
            tile.keys_min,
            HEADS=heads,
            KV_HEADS=kv_heads,
            HEAD_DIM=head_dim,
            BLOCK_DIM=block_dim,
            BLOCK_TOKENS=block_tokens,
            TILE_ROWS=tile.size,
            TILE_KEYS=keys,
            WINDOW=window or 0,
            SPLITS=tile.splits,
            num_warps=warps,
            num_stages=stages,
        )
        if tile.splits > 1:
            merge(parts, weights, out, places, tile)
    return out
