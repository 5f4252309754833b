"""Matrix products of the CPU backend, weights laid out once for the kernels that read them at each step.

oneDNN's packed layout halves a decode's time where its operators exist (PEERS.md has the figures);
otherwise plain `F.linear`.  `Tiled` is the invariant mode: every call has the same shape, so a row's
result cannot depend on what else is in the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

TILE_ROWS = 32


class Linear(Protocol):
    def __call__(self, x: Tensor) -> Tensor:
        """(rows, in) → (rows, out)."""
        ...

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """`residual` + this(x), in one pass over the result where the kernel can."""
        ...


@dataclass(frozen=True, slots=True)
class Plain:
    weight: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        return residual + functional.linear(x, self.weight)


def _pack(weight: Tensor) -> Tensor:
    """The layout oneDNN reads; the operator is torch's own, without a public name."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, TILE_ROWS)  # noqa: SLF001
    return packed


@dataclass(frozen=True, slots=True)
class Packed:
    weight: Tensor  # opaque

    def __call__(self, x: Tensor) -> Tensor:
        product = torch.ops.mkldnn._linear_pointwise.default  # noqa: SLF001  # as in _pack
        y: Tensor = product(x, self.weight, None, "none", [], "")
        return y

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        product = torch.ops.mkldnn._linear_pointwise.binary  # noqa: SLF001  # as in _pack
        y: Tensor = product(x, residual, self.weight, None, "add")
        return y


@dataclass(frozen=True, slots=True)
class Tiled:
    """`inner`, always called with exactly TILE_ROWS rows; the runner pads to a multiple of that."""

    inner: Linear

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([self.inner(part) for part in _tiles(x)])

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        pairs = zip(_tiles(x), _tiles(residual), strict=True)
        return torch.cat([self.inner.add(part, rest) for part, rest in pairs])


def _tiles(x: Tensor) -> tuple[Tensor, ...]:
    assert x.shape[0] % TILE_ROWS == 0, x.shape
    return torch.split(x, TILE_ROWS)


def can_pack(dtype: torch.dtype) -> bool:
    """Whether this torch has the packed operators, tried on a small product."""
    x = torch.ones(2, 32, dtype=dtype)
    try:
        packed = Packed(_pack(x))
        return bool(torch.equal(packed.add(x, x[:, :2]).float(), torch.full((2, 2), 33.0)))
    except (AttributeError, RuntimeError, NotImplementedError):
        return False


def make_linear(weight: Tensor, *, pack: bool, invariant: bool) -> Linear:
    """`weight` (out, in).  The packed copy replaces it; nothing keeps a reference to the original."""
    inner: Linear = Plain(weight.contiguous())
    if pack:
        inner = Packed(_pack(weight.contiguous()))
    return Tiled(inner) if invariant else inner
