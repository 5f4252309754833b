# ruff: noqa: N803 — compile-time constants are in capitals, as everywhere in Triton
"""Freed KV blocks made zero in all layers at once, before another sequence may hold them (P7)."""

from __future__ import annotations

from torch import Tensor

from .lang import cdiv, jit, launch, tl

BLOCK = 4096


@jit()
def _zero(
    kv_ptr: tl.tensor,
    blocks_ptr: tl.tensor,
    layer_size: tl.tensor,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    block = tl.load(blocks_ptr + tl.program_id(0)).to(tl.int64)
    at = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    start = kv_ptr + tl.program_id(1) * layer_size.to(tl.int64) + block * SIZE
    tl.store(start + at, tl.zeros((BLOCK,), kv_ptr.dtype.element_ty), mask=at < SIZE)


def zero_blocks(kv: Tensor, blocks: Tensor) -> None:
    """`kv` (layers, blocks, …) contiguous; `blocks` (n,) int32, on the same device.

    Writes layers · n · the bytes of a block in one launch.  Twin: `zero_blocks_twin`.
    """
    assert kv.is_contiguous()
    size = kv[0, 0].numel()
    launch(
        _zero,
        (len(blocks), kv.shape[0], cdiv(size, BLOCK)),
        kv,
        blocks,
        kv.stride(0),
        SIZE=size,
        BLOCK=BLOCK,
        num_warps=4,
    )


def zero_blocks_twin(kv: Tensor, blocks: Tensor) -> None:
    kv[:, blocks.long()] = 0
