# ruff: noqa: N803 — compile-time constants are in capitals, as everywhere in Triton
"""The gate of the feed-forward block: activation(gate) · up, from one fused product's result.

Source: Shazeer 2020, "GLU variants improve transformer"; GELU by tanh: Hendrycks & Gimpel 2016.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from executor.model.config import Activation

from .lang import cdiv, jit, launch, tl

BLOCK = 1024


@jit()
def _gate(
    both_ptr: tl.tensor,
    out_ptr: tl.tensor,
    INNER: tl.constexpr,
    BLOCK: tl.constexpr,
    GELU: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < INNER
    gate = tl.load(both_ptr + row * 2 * INNER + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both_ptr + (row * 2 + 1) * INNER + at, mask=inside, other=0.0).to(tl.float32)
    z = gate
    if GELU:  # 0.5 · x · (1 + tanh y) = x · σ(2y)
        z = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    y = gate * tl.sigmoid(z) * up
    tl.store(out_ptr + row * INNER + at, y.to(out_ptr.dtype.element_ty), mask=inside)


def gated(both: Tensor, activation: Activation) -> Tensor:
    """`both` (rows, 2 · inner): gates, then ups → (rows, inner), same type.

    Moves 3 · rows · inner · itemsize bytes, where two calls of torch move 5.  Twin: `gated_twin`.
    """
    assert both.is_contiguous()
    rows, inner = both.shape[0], both.shape[1] // 2
    out = both.new_empty(rows, inner)
    launch(
        _gate,
        (rows, cdiv(inner, BLOCK)),
        both,
        out,
        INNER=inner,
        BLOCK=BLOCK,
        GELU=activation is Activation.GELU_TANH,
        num_warps=4,
    )
    return out


def gated_twin(both: Tensor, activation: Activation) -> Tensor:
    gate, up = both.float().chunk(2, dim=1)
    if activation is Activation.GELU_TANH:
        return (functional.gelu(gate, approximate="tanh") * up).to(both.dtype)
    return (functional.silu(gate) * up).to(both.dtype)
