# ruff: noqa: N803, N806 — compile-time constants are in capitals, as everywhere in Triton
"""Between the fused product and attention: norm each query and key head, rotate them, put keys and
values into their paged blocks, in one pass.  Half-split pairs (i, i + d/2), as in transformers.

Source: Su et al. 2021 (RoFormer) §3.2.2; norms on heads: Henry et al. 2020; paging: Kwon et al. 2023.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from .lang import cdiv, jit, launch, next_power_of_2, tl
from .places import Places

HEADS_AT_ONCE = 4


@jit()
def _turns(
    position_ptr: tl.tensor,
    frequency_ptr: tl.tensor,
    out_ptr: tl.tensor,
    scale: tl.tensor,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    token = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < HALF
    angle = tl.load(position_ptr + token).to(tl.float32) * tl.load(
        frequency_ptr + at, mask=inside, other=0.0
    )
    start = out_ptr + token.to(tl.int64) * 2 * HALF
    tl.store(start + at, tl.cos(angle) * scale, mask=inside)
    tl.store(start + HALF + at, tl.sin(angle) * scale, mask=inside)


def turns(positions: Tensor, frequencies: Tensor, out: Tensor, scale: float = 1.0) -> Tensor:
    """Cosines, then sines, of each token's angles, into `out` (tokens, head_dim) float32, once a step
    for all layers: angles in float32 like everywhere, so that no layer computes a sine.

    `positions` (tokens,) int32, `frequencies` (head_dim / 2,) float32, `scale` yarn's.  Moves
    4 · tokens · head_dim bytes.  Twin: `turns_twin`.
    """
    half = len(frequencies)
    assert out.shape == (len(positions), 2 * half)
    assert out.is_contiguous()
    launch(
        _turns,
        (len(positions),),
        positions,
        frequencies,
        out,
        scale,
        HALF=half,
        BLOCK=next_power_of_2(half),
        num_warps=1,
    )
    return out


def turns_twin(positions: Tensor, frequencies: Tensor, scale: float = 1.0) -> Tensor:
    angles = torch.outer(positions.float(), frequencies)
    return torch.cat((angles.cos(), angles.sin()), 1) * scale


@jit()
def _rotate_store(
    qkv_ptr: tl.tensor,
    turns_ptr: tl.tensor,
    q_norm_ptr: tl.tensor,
    k_norm_ptr: tl.tensor,
    q_ptr: tl.tensor,
    kv_ptr: tl.tensor,
    position_ptr: tl.tensor,
    row_ptr: tl.tensor,
    table_start_ptr: tl.tensor,
    table_ptr: tl.tensor,
    eps: tl.tensor,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    HEADS_AT_ONCE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROTATED: tl.constexpr,
    NORMED: tl.constexpr,
) -> None:
    HALF: tl.constexpr = HEAD_DIM // 2
    ALL: tl.constexpr = HEADS + 2 * KV_HEADS
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS_AT_ONCE + tl.arange(0, HEADS_AT_ONCE)
    pair = tl.arange(0, BLOCK)
    is_query = (head < HEADS)[:, None]
    is_turned = (head < HEADS + KV_HEADS)[:, None]
    inside = (head < ALL)[:, None] & (pair < HALF)[None, :]

    start = qkv_ptr + (token * ALL + head)[:, None] * HEAD_DIM + pair[None, :]
    left = tl.load(start, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(start + HALF, mask=inside, other=0.0).to(tl.float32)
    if NORMED:
        squares = tl.sum(left * left, 1) + tl.sum(right * right, 1)
        scale = tl.rsqrt(squares / HEAD_DIM + eps)[:, None]
        real = pair < HALF
        q_left = tl.load(q_norm_ptr + pair, mask=real, other=0.0)[None, :]
        q_right = tl.load(q_norm_ptr + HALF + pair, mask=real, other=0.0)[None, :]
        k_left = tl.load(k_norm_ptr + pair, mask=real, other=0.0)[None, :]
        k_right = tl.load(k_norm_ptr + HALF + pair, mask=real, other=0.0)[None, :]
        left = tl.where(is_turned, left * scale * tl.where(is_query, q_left, k_left), left)
        right = tl.where(is_turned, right * scale * tl.where(is_query, q_right, k_right), right)
    if ROTATED:
        turn = turns_ptr + token * HEAD_DIM + pair
        cosine = tl.load(turn, mask=pair < HALF, other=0.0)[None, :]
        sine = tl.load(turn + HALF, mask=pair < HALF, other=0.0)[None, :]
        turned = left * cosine - right * sine
        right = tl.where(is_turned, right * cosine + left * sine, right)
        left = tl.where(is_turned, turned, left)

    left = left.to(q_ptr.dtype.element_ty)
    right = right.to(q_ptr.dtype.element_ty)
    query = q_ptr + (token * HEADS + head)[:, None] * HEAD_DIM + pair[None, :]
    tl.store(query, left, mask=inside & is_query)
    tl.store(query + HALF, right, mask=inside & is_query)

    row = tl.load(row_ptr + token)
    position = tl.load(position_ptr + token)
    if row >= 0:  # a recording's padding is nobody's
        block = tl.load(table_ptr + tl.load(table_start_ptr + row) + position // BLOCK_TOKENS)
        place = (block.to(tl.int64) * 2 * KV_HEADS + head - HEADS) * BLOCK_TOKENS
        place = (place + position % BLOCK_TOKENS)[:, None] * HEAD_DIM + pair[None, :]
        tl.store(kv_ptr + place, left, mask=inside & (head >= HEADS)[:, None])
        tl.store(kv_ptr + place + HALF, right, mask=inside & (head >= HEADS)[:, None])


def rotate_store(
    qkv: Tensor,
    turned: Tensor | None,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    kv: Tensor,
    places: Places,
    heads: int,
    eps: float,
) -> Tensor:
    """`qkv` (tokens, (heads + 2 · kv_heads) · head_dim) → queries (tokens, heads · head_dim), ready to
    attend; keys and values go to `kv` (blocks, 2 · kv_heads, block_tokens, head_dim), keys first.

    `turned` as of `turns`, None: no rotation (NoPE); norms (head_dim,) float32, both or none.  Moves
    2 · tokens · (heads + 2 · kv_heads) · head_dim · itemsize bytes.  Twin: `rotate_store_twin`.
    """
    _, kv_heads, block_tokens, head_dim = kv.shape
    kv_heads //= 2
    every = heads + 2 * kv_heads
    assert qkv.is_contiguous()
    assert qkv.shape == (len(places.positions), every * head_dim)
    assert kv.is_contiguous()
    queries = qkv.new_empty(len(qkv), heads * head_dim)
    launch(
        _rotate_store,
        (len(qkv), cdiv(every, HEADS_AT_ONCE)),
        qkv,
        qkv if turned is None else turned,
        qkv if q_norm is None else q_norm,
        qkv if k_norm is None else k_norm,
        queries,
        kv,
        places.positions,
        places.rows,
        places.table_starts,
        places.tables,
        eps,
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_TOKENS=block_tokens,
        HEADS_AT_ONCE=HEADS_AT_ONCE,
        BLOCK=next_power_of_2(head_dim // 2),
        ROTATED=turned is not None,
        NORMED=q_norm is not None,
        num_warps=2,
    )
    return queries


def rotate_store_twin(
    qkv: Tensor,
    turned: Tensor | None,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    kv: Tensor,
    places: Places,
    heads: int,
    eps: float,
) -> Tensor:
    _, kv_heads, block_tokens, head_dim = kv.shape
    kv_heads //= 2
    by_head = qkv.float().view(len(qkv), -1, head_dim)
    queries, keys, values = torch.split(by_head, [heads, kv_heads, kv_heads], 1)
    if q_norm is not None and k_norm is not None:
        queries = functional.rms_norm(queries, (head_dim,), q_norm, eps)
        keys = functional.rms_norm(keys, (head_dim,), k_norm, eps)
    if turned is not None:
        cosine, sine = turned.unsqueeze(1).chunk(2, dim=2)
        queries, keys = _rotated(queries, cosine, sine), _rotated(keys, cosine, sine)
    own = places.rows >= 0
    rows, positions = places.rows[own].long(), places.positions[own].long()
    blocks = places.tables[places.table_starts[rows].long() + positions // block_tokens].long()
    fresh = torch.cat((keys, values), 1)[own]
    kv[blocks, :, positions % block_tokens] = fresh.to(kv.dtype)
    return queries.reshape(len(qkv), -1).to(qkv.dtype)


def _rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=2)
    return torch.cat((left * cosine - right * sine, right * cosine + left * sine), 2)
