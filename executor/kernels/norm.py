# ruff: noqa: N803 — compile-time constants are in capitals, as everywhere in Triton
"""A block's result added to the residual stream, and the next block's RMS-norm of it, in one pass.

Source: Zhang & Sennrich 2019, eq. 4; the fusion is what every serving engine does.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from .lang import jit, launch, next_power_of_2, tl


@jit()
def _add_norm(
    x_ptr: tl.tensor,
    delta_ptr: tl.tensor,
    after_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    out_ptr: tl.tensor,
    eps: tl.tensor,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_DELTA: tl.constexpr,
    HAS_AFTER: tl.constexpr,
) -> None:
    start = tl.program_id(0).to(tl.int64) * COLUMNS  # rows · columns can pass 2**31
    at = tl.arange(0, BLOCK)
    inside = at < COLUMNS
    x = tl.load(x_ptr + start + at, mask=inside, other=0.0).to(tl.float32)
    if HAS_DELTA:
        delta = tl.load(delta_ptr + start + at, mask=inside, other=0.0).to(tl.float32)
        if HAS_AFTER:
            after = tl.load(after_ptr + at, mask=inside, other=0.0)
            delta = delta * tl.rsqrt(tl.sum(delta * delta, 0) / COLUMNS + eps) * after
        x += delta
        tl.store(x_ptr + start + at, x, mask=inside)
    weight = tl.load(weight_ptr + at, mask=inside, other=0.0)
    y = x * tl.rsqrt(tl.sum(x * x, 0) / COLUMNS + eps) * weight
    tl.store(out_ptr + start + at, y.to(out_ptr.dtype.element_ty), mask=inside)


def add_norm(
    x: Tensor,
    delta: Tensor | None,
    after: Tensor | None,
    weight: Tensor,
    eps: float,
    dtype: torch.dtype,
) -> Tensor:
    """Add `delta` (normed by `after` first, where given) to `x` in place; the RMS-norm of x by `weight`.

    `x` (rows, columns) float32, `delta` likewise in any float type, `after` and `weight` (columns,)
    float32 → (rows, columns) in `dtype`.  Moves rows · columns · (4 + 4 + 2 + 2) bytes in bf16, where
    an addition and a norm apart move 4 more; sums in float32.  Twin: `add_norm_twin`.
    """
    rows, columns = x.shape
    assert x.is_contiguous()
    assert delta is None or delta.is_contiguous()
    assert after is None or delta is not None
    out = torch.empty_like(x, dtype=dtype)
    block = next_power_of_2(columns)
    launch(
        _add_norm,
        (rows,),
        x,
        x if delta is None else delta,
        weight if after is None else after,
        weight,
        out,
        eps,
        COLUMNS=columns,
        BLOCK=block,
        HAS_DELTA=delta is not None,
        HAS_AFTER=after is not None,
        num_warps=min(16, max(1, block // 512)),
    )
    return out


def add_norm_twin(
    x: Tensor,
    delta: Tensor | None,
    after: Tensor | None,
    weight: Tensor,
    eps: float,
    dtype: torch.dtype,
) -> Tensor:
    if delta is not None:
        added = delta.float()
        x.add_(added if after is None else functional.rms_norm(added, after.shape, after, eps))
    return functional.rms_norm(x, weight.shape, weight, eps).to(dtype)
