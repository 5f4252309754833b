"""The native matrix products against exact ones, and which layout is chosen."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Literal

import gguf
import pytest
import torch
from gguf.quants import dequantize, quantize
from torch import Tensor

from executor.cpu.native.linear import LADDER, Space, SwitchingLinear, _agree, choose
from executor.model.source import QuantBlocks

Kind = Literal["q4_0", "q4_1", "q8_0"]
KINDS: dict[Kind, gguf.GGMLQuantizationType] = {
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
    "q4_1": gguf.GGMLQuantizationType.Q4_1,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
}


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def quantised(weight: Tensor, kind: Kind) -> tuple[QuantBlocks, Tensor]:
    """As a file has it, and what that means, by the reference package."""
    data = quantize(weight.numpy(), KINDS[kind])
    exact = torch.from_numpy(dequantize(data, KINDS[kind])).double()
    blocks = torch.from_numpy(data).view(len(weight), weight.shape[1] // 32, -1)
    return QuantBlocks(kind, blocks), exact


def near(found: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Within what float32 sums of pairs, one after another, may lose at worst, and one rounding."""
    exact = x.double() @ weight.double().T
    size = x.double().abs() @ weight.double().abs().T
    if bias is not None:
        exact, size = exact + bias.double(), size + bias.double().abs()
    summing = (x.shape[1] / 2 + 8) * 2.0**-24
    rounding = 0.0 if found.dtype is torch.float32 else 2.0**-8
    assert found.shape == exact.shape
    assert bool(((found.double() - exact).abs() <= size * summing + exact.abs() * rounding).all())


def check(
    kernels: ctypes.CDLL, width_out: int, width_in: int, rows: int, kind: Kind | None, *,
    wide: bool, biased: bool,
) -> None:  # fmt: skip
    x = drawn(1000 + rows, rows, width_in).bfloat16()
    weight = drawn(7, width_out, width_in).bfloat16()
    bias = drawn(8, width_out).bfloat16() if biased else None
    blocks, exact = quantised(weight.float(), kind) if kind else (None, weight.double())
    space = Space()
    linear = SwitchingLinear.make(kernels, space, weight, bias, blocks, wide=wide)
    out = space.take("wide" if wide else "linear", rows + 64, width_out, _dtype(wide))
    out.fill_(77.0)
    found = (linear.by_blocks if kind else linear.by_strips)(x, rows)
    near(found, x, exact, bias)
    assert bool((out[rows:] == 77.0).all()), "numbers behind the last row were written"


def _dtype(wide: bool) -> torch.dtype:
    return torch.float32 if wide else torch.bfloat16


@pytest.mark.parametrize("kind", (None, *KINDS))
@pytest.mark.parametrize(
    ("width_out", "width_in", "rows"), ((1, 32, 1), (33, 64, 13), (95, 96, 40), (31, 2048, 3))
)
def test_products_are_exact(
    kernels: ctypes.CDLL, width_out: int, width_in: int, rows: int, kind: Kind | None
) -> None:
    check(kernels, width_out, width_in, rows, kind, wide=False, biased=rows > 3)
    check(kernels, width_out, width_in, rows, kind, wide=True, biased=rows <= 3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", (None, *KINDS))
@pytest.mark.parametrize("width_in", (32, 64, 96, 2048))
def test_products_of_every_shape_are_exact(
    kernels: ctypes.CDLL, width_in: int, kind: Kind | None
) -> None:
    for width_out in (1, 15, 16, 17, 31, 32, 33, 200):
        for rows in (*range(1, 41), 97, 300):
            wide = (rows + width_out) % 2 == 0
            check(kernels, width_out, width_in, rows, kind, wide=wide, biased=rows % 3 == 0)


@pytest.mark.parametrize("kind", (None, *KINDS))
def test_no_rows_give_no_rows(kernels: ctypes.CDLL, kind: Kind | None) -> None:
    weight = drawn(1, 33, 64).bfloat16()
    blocks = quantised(weight.float(), kind)[0] if kind else None
    linear = SwitchingLinear.make(kernels, Space(), weight, None, blocks)
    none = torch.empty(0, 64, dtype=torch.bfloat16)
    assert linear(none).shape == (0, 33)
    linear.few_rows = 4 if kind else 0
    assert linear(none).shape == (0, 33)


@pytest.mark.parametrize("width_in", (96, 16416))
def test_a_row_of_strips_has_the_same_bits_in_any_company(
    kernels: ctypes.CDLL, width_in: int
) -> None:
    """The wider one is cut into several parts of rows by the cache's bound."""
    weight, x = drawn(1, 70, width_in).bfloat16(), drawn(2, 61, width_in).bfloat16()
    linear = SwitchingLinear.make(kernels, Space(), weight, drawn(3, 70), wide=True)
    together = linear(x).clone()
    for first, end in ((0, 1), (60, 61), (3, 5), (10, 33), (1, 61), (5, 17)):
        assert torch.equal(linear(x[first:end]), together[first:end])


@pytest.mark.parametrize("kind", (None, *KINDS))
def test_a_row_of_nan_stays_alone(kernels: ctypes.CDLL, kind: Kind | None) -> None:
    weight, x = drawn(1, 70, 96).bfloat16(), drawn(2, 29, 96).bfloat16()
    blocks = quantised(weight.float(), kind)[0] if kind else None
    linear = SwitchingLinear.make(kernels, Space(), weight, None, blocks)
    run = linear.by_blocks if kind else linear.by_strips
    clean = run(x, 29).clone()
    for bad, value in ((0, float("nan")), (12, float("inf")), (28, float("nan"))):
        poisoned = x.clone()
        poisoned[bad, 5] = value
        found = run(poisoned, 29)
        assert not bool(found[bad].isfinite().any())
        others = [row for row in range(29) if row != bad]
        assert torch.equal(found[others], clean[others])


def test_a_scale_beyond_what_the_layout_holds_leaves_the_strips(kernels: ctypes.CDLL) -> None:
    blocks, _ = quantised(drawn(1, 32, 64), "q4_0")
    huge = blocks.data.clone()
    huge[3, 1, :2] = torch.tensor([9000.0], dtype=torch.float16).view(torch.uint8)
    for data, kept in ((blocks.data, True), (huge, False)):
        weight = torch.zeros(32, 64, dtype=torch.bfloat16)
        made = SwitchingLinear.make(kernels, Space(), weight, blocks=QuantBlocks("q4_0", data))
        assert (made.blocks is not None) is kept


class _Clock:
    """Every reading is later by what the layout used since costs."""

    def __init__(self, strips_s: dict[int, float], blocks_s: dict[int, float]) -> None:
        self.now_s, self.costs = 0.0, {"strips": strips_s, "blocks": blocks_s}

    def __call__(self) -> float:
        return self.now_s


def _timed(
    kernels: ctypes.CDLL, clock: _Clock, monkeypatch: pytest.MonkeyPatch
) -> list[SwitchingLinear]:
    def spend(name: str) -> None:
        def run(self: SwitchingLinear, x: Tensor, rows: int) -> Tensor:
            clock.now_s += clock.costs[name][rows]
            return x

        monkeypatch.setattr(SwitchingLinear, f"by_{name}", run)

    spend("strips")
    spend("blocks")
    weight = drawn(1, 32, 32)
    blocks, _ = quantised(weight, "q4_0")
    return [
        SwitchingLinear.make(kernels, Space(), weight.bfloat16(), None, has)
        for has in (blocks, None, blocks)
    ]


def test_blocks_are_chosen_up_to_where_they_first_lose(
    kernels: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    strips = dict.fromkeys(LADDER, 2.0)
    costs = {rows: 1.0 if rows <= 4 or rows == 32 else 3.0 for rows in LADDER}
    clock = _Clock(strips, costs)
    linears = _timed(kernels, clock, monkeypatch)
    choose(linears, clock, tiles=False)
    assert [linear.few_rows for linear in linears] == [4, 0, 4]
    clock.costs["blocks"] = dict.fromkeys(LADDER, 2.0)  # no gain: not worth it
    choose(linears, clock, tiles=False)
    assert [linear.few_rows for linear in linears] == [0, 0, 0]


def test_buffers_of_two_purposes_or_widths_never_overlap() -> None:
    space = Space()
    views = [space.take(purpose, 5, width) for purpose in ("a", "b") for width in (16, 32)]
    for at, view in enumerate(views):
        view.fill_(at)
    assert [(float(view.min()), float(view.max())) for view in views] == [
        (at, at) for at in range(4)
    ]


def test_a_buffer_that_grows_leaves_what_was_taken_alone() -> None:
    space = Space()
    small = space.take("a", 3, 16).fill_(1.0)
    large = space.take("a", 200, 16).fill_(2.0)
    assert bool((small == 1.0).all())
    assert space.take("a", 3, 16).data_ptr() == large.data_ptr()
    assert space.work(1).numel() >= 1
    assert space.work(5000).numel() >= 5000


@pytest.mark.parametrize("wide", (False, True))
def test_tiles_that_multiply_otherwise_are_found_out(
    kernels: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, wide: bool
) -> None:
    linear = SwitchingLinear.make(kernels, Space(), drawn(1, 70, 96).bfloat16(), wide=wide)

    def by_tiles(factor: float) -> Callable[[SwitchingLinear, Tensor, int], Tensor]:
        return lambda self, x, rows: self.by_strips(x, rows).mul_(factor)

    for factor, agrees in ((1.0, True), (1.1, False), (float("nan"), False)):
        monkeypatch.setattr(SwitchingLinear, "by_tiles", by_tiles(factor))
        assert _agree(linear) == agrees
