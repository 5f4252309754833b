"""Matrix products of the CPU backend, weights laid out once for the kernels that read them at each step.

oneDNN's packed layout halves a decode's time where its operators exist (PEERS.md has the figures);
otherwise plain `F.linear`.  `Tiled` is the invariant mode: every call has the same shape, so a row's
result cannot depend on what else is in the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from executor.backend import Linear

TILE_ROWS = 32


@dataclass(frozen=True, slots=True)
class Plain:
    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)


def _pack(weight: Tensor) -> Tensor:
    """The layout oneDNN reads; the operator is torch's own, without a public name."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, TILE_ROWS)  # noqa: SLF001
    return packed


@dataclass(frozen=True, slots=True)
class Packed:
    weight: Tensor  # opaque
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        product = torch.ops.mkldnn._linear_pointwise.default  # noqa: SLF001  # as in _pack
        y: Tensor = product(x, self.weight, self.bias, "none", [], "")
        return y


@dataclass(frozen=True, slots=True)
class Tiled:
    """`inner`, always called with exactly TILE_ROWS rows; the runner pads to a multiple of that."""

    inner: Linear

    def __call__(self, x: Tensor) -> Tensor:
        assert x.shape[0] % TILE_ROWS == 0, x.shape
        if not len(x):
            return self.inner(x)
        return torch.cat([self.inner(part) for part in torch.split(x, TILE_ROWS)])


def can_pack(dtype: torch.dtype) -> bool:
    """Whether this torch has the packed operators, tried on a small product.  Where it has none, it says so as a missing
    name, an operator without a kernel, or a fault of the library below, by version and machine."""
    x = torch.ones(2, 32, dtype=dtype)
    try:
        packed = Packed(_pack(x))
        return bool(torch.equal(packed(x).float(), torch.full((2, 2), 32.0)))
    except (AttributeError, RuntimeError, NotImplementedError):
        return False


def make_linear(
    weight: Tensor, bias: Tensor | None = None, *, pack: bool, invariant: bool
) -> Linear:
    """`weight` (out, in).  The packed copy replaces it; nothing keeps a reference to the original."""
    inner: Linear = Plain(weight.contiguous(), bias)
    if pack:
        inner = Packed(_pack(weight.contiguous()), bias)
    return Tiled(inner) if invariant else inner
