"""The 8-bit products against the same integers in torch, and what surrounds them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from executor.cpu import machine
from executor.cpu.native.linear import LADDER, Space
from executor.cpu.native.rounded import GROUP, RoundedLinear, choose_rounded
from tests.executor.native.test_linear import Kind, drawn, quantised

LAYOUTS: tuple[Kind | None, ...] = (None, "q4_0", "q4_1")  # bytes on a grid a column; blocks
SMALLEST = 2.0**-119


@pytest.fixture(autouse=True)
def _able() -> None:
    if not machine.has_vnni():
        pytest.skip("the processor does not multiply bytes")


def rounded(x: Tensor) -> tuple[Tensor, Tensor]:
    """The integers, and a scale for each: float64 of what float32 gives."""
    groups = x.float().view(len(x), -1, GROUP)
    most = groups.abs().amax(2, keepdim=True)
    most[most < SMALLEST] = 0
    full = torch.full_like(most, 127.0)  # a scalar would be multiplied by a reciprocal
    factor = torch.where(most > 0, full / most, 0)
    numbers = (groups * factor).round()
    return numbers.flatten(1).double(), (most / 127).double().expand_as(groups).flatten(1)


def grid(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers of 0 … 255, and each column's step and low."""
    low = weight.double().amin(1, keepdim=True)
    step = (weight.double().amax(1, keepdim=True) - low) / 255
    numbers = torch.where(step > 0, ((weight.double() - low) / step + 0.5).floor(), 0)
    return numbers, step.float().double(), low


def near(
    found: Tensor, x: Tensor, linear: RoundedLinear, weight: Tensor, exact: Tensor | None
) -> None:
    """`exact`: of the blocks; None: of `weight` on its grid.  Integer sums are exact; float32 ones, a
    group after another, may lose a little."""
    numbers, scales = rounded(x)
    values = numbers * scales
    if exact is None:
        steps, step, low = grid(weight)
        expected = values @ (steps * step + low).T
        size = values.abs() @ (steps * step + low.abs()).T
    else:
        expected, size = values @ exact.T, values.abs() @ (exact.abs() + exact.abs().amax() * 2).T
    if linear.bias is not None:
        expected, size = expected + linear.bias.double(), size + linear.bias.double().abs()
    summing = (x.shape[1] / GROUP + 12) * 2.0**-24
    rounding = 2.0**-8 if found.dtype is torch.bfloat16 else 0.0
    assert found.shape == expected.shape
    over = (found.double() - expected).abs() - size * summing - expected.abs() * rounding
    assert float(over.max()) <= 0, float(over.max())


def made(
    kernels: ctypes.CDLL,
    weight: Tensor,
    kind: Kind | None,
    bias: Tensor | None = None,
    *,
    wide: bool,
) -> tuple[RoundedLinear, Tensor | None]:
    blocks, exact = quantised(weight.float(), kind) if kind else (None, None)
    linear = RoundedLinear.make(kernels, Space(), weight, bias, blocks, wide=wide)
    linear.few_rows = 1 << 20 if kind else 0
    assert (linear.nibbles is not None) == (kind is not None)
    return linear, exact


def check(
    kernels: ctypes.CDLL, width_out: int, width_in: int, rows: int, kind: Kind | None, *, wide: bool
) -> None:
    x, weight = drawn(rows, rows, width_in).bfloat16(), drawn(7, width_out, width_in).bfloat16()
    x[rows // 2, :GROUP] *= 1000.0  # one that rounds its neighbours away
    if rows > 1:
        x[rows // 3] = 0.0
    linear, exact = made(kernels, weight, kind, drawn(8, width_out) if wide else None, wide=wide)
    dtype = torch.float32 if wide else torch.bfloat16
    out = linear.space.take("wide" if wide else "linear", rows + 64, width_out, dtype).fill_(77.0)
    near(linear(x), x, linear, weight, exact)
    assert bool((out[rows:] == 77.0).all()), "numbers behind the last row were written"


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize(
    ("width_out", "width_in", "rows"), ((1, 32, 1), (33, 64, 13), (95, 96, 40), (31, 2048, 3))
)
def test_products_are_those_of_the_rounded_numbers(
    kernels: ctypes.CDLL, width_out: int, width_in: int, rows: int, kind: Kind | None
) -> None:
    check(kernels, width_out, width_in, rows, kind, wide=rows > 3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("width_in", (32, 96, 576, 4128))
def test_products_of_every_shape_are_those_of_the_rounded_numbers(
    kernels: ctypes.CDLL, width_in: int, kind: Kind | None
) -> None:
    for width_out in (1, 15, 17, 32, 33, 200):
        for rows in (*range(1, 71), 300):
            check(kernels, width_out, width_in, rows, kind, wide=(rows + width_out) % 2 == 0)


@pytest.mark.parametrize("kind", LAYOUTS)
def test_rounding_costs_little(kernels: ctypes.CDLL, kind: Kind | None) -> None:
    x, weight = drawn(1, 20, 576).bfloat16(), drawn(2, 100, 576).bfloat16()
    linear, exact = made(kernels, weight, kind, wide=True)
    expected = x.double() @ (weight.double() if exact is None else exact).T
    assert 2e-3 < float((linear(x) - expected).norm() / expected.norm()) < 1.2e-2


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("width_in", (96, 16416))
def test_a_row_has_the_same_bits_in_any_company(
    kernels: ctypes.CDLL, width_in: int, kind: Kind | None
) -> None:
    """The wider one is cut into several parts of rows by the cache's bound."""
    weight, x = drawn(1, 70, width_in).bfloat16(), drawn(2, 61, width_in).bfloat16()
    linear, _ = made(kernels, weight, kind, drawn(3, 70), wide=True)
    together = linear(x).clone()
    for first, end in ((0, 1), (60, 61), (3, 5), (10, 33), (1, 61), (5, 17)):
        assert torch.equal(linear(x[first:end]), together[first:end])


@pytest.mark.parametrize("kind", LAYOUTS)
def test_what_is_no_number_stays_in_its_row_and_shows_in_all_of_it(
    kernels: ctypes.CDLL, kind: Kind | None
) -> None:
    weight, x = drawn(1, 70, 96).bfloat16(), drawn(2, 29, 96).bfloat16()
    weight[3] = 0.0  # a column that multiplies everything away
    linear, _ = made(kernels, weight, kind, wide=False)
    clean = linear(x).clone()
    for bad, value in ((0, float("nan")), (12, float("inf")), (28, float("-inf"))):
        poisoned = x.clone()
        poisoned[bad, 5] = value
        found = linear(poisoned)
        assert not bool(found[bad].isfinite().any())
        others = [row for row in range(29) if row != bad]
        assert torch.equal(found[others], clean[others])


@pytest.mark.parametrize("kind", LAYOUTS)
def test_the_largest_and_the_least_numbers_are_no_trouble(
    kernels: ctypes.CDLL, kind: Kind | None
) -> None:
    weight = drawn(1, 40, 64).bfloat16()
    linear, exact = made(kernels, weight, kind, wide=True)
    for size in (1e30, 1e-30, 1e-37, 1e-39, 0.0):
        x = torch.full((3, 64), size).bfloat16()
        x[1] *= -1
        x[2, ::2] = 0.0
        found = linear(x)
        assert bool(found.isfinite().all())
        near(found, x, linear, weight, exact)


def test_columns_of_one_value_are_exact(kernels: ctypes.CDLL) -> None:
    weight = torch.tensor([[0.0], [1.5], [-3.0]]).expand(3, 64).bfloat16()
    linear, _ = made(kernels, weight, None, wide=True)
    x = torch.full((2, 64), 127.0).bfloat16()
    assert linear(x).tolist() == [[0.0, 1.5 * 127 * 64, -3.0 * 127 * 64]] * 2


@pytest.mark.parametrize("kind", LAYOUTS)
def test_no_rows_give_no_rows(kernels: ctypes.CDLL, kind: Kind | None) -> None:
    linear, _ = made(kernels, drawn(1, 33, 64).bfloat16(), kind, wide=False)
    assert linear(torch.empty(0, 64, dtype=torch.bfloat16)).shape == (0, 33)


def test_blocks_of_8_bits_or_beyond_what_the_layout_holds_are_laid_on_a_grid(
    kernels: ctypes.CDLL,
) -> None:
    weight = drawn(1, 32, 64)
    huge = quantised(weight, "q4_0")[0]
    huge.data[3, 1, :2] = torch.tensor([9000.0], dtype=torch.float16).view(torch.uint8)
    for blocks in (huge, quantised(weight, "q8_0")[0]):
        linear = RoundedLinear.make(kernels, Space(), weight.bfloat16(), None, blocks)
        assert linear.nibbles is None
        assert linear.read_bytes(1) == linear.columns.nbytes


@pytest.fixture
def clock(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[dict[int, float]], Callable[[], float]]:
    """Of costs of the blocks by rows; the columns cost 2."""
    now_s, costs = [0.0], [dict.fromkeys(LADDER, 2.0)]

    def spend(name: str, cost: Callable[[int], float]) -> None:
        def run(self: RoundedLinear, x: Tensor, rows: int) -> Tensor:
            now_s[0] += cost(rows)
            return x

        monkeypatch.setattr(RoundedLinear, name, run)

    spend("by_columns", lambda rows: 2.0)
    spend("by_nibbles", lambda rows: costs[0][rows])

    def of(found: dict[int, float]) -> Callable[[], float]:
        costs[0] = found
        return lambda: now_s[0]

    return of


def test_blocks_are_read_up_to_where_they_first_lose(
    kernels: ctypes.CDLL, clock: Callable[[dict[int, float]], Callable[[], float]]
) -> None:
    weight = drawn(1, 32, 32)
    linears = [
        RoundedLinear.make(kernels, Space(), weight.bfloat16(), None, has)
        for has in (quantised(weight, "q4_1")[0], None)
    ]
    costs = {rows: 1.0 if rows <= 4 or rows == 32 else 3.0 for rows in LADDER}
    choose_rounded(linears, clock(costs))
    assert [linear.few_rows for linear in linears] == [4, 0]
    choose_rounded(linears, clock(dict.fromkeys(LADDER, 2.0)))  # no gain: not worth it
    assert [linear.few_rows for linear in linears] == [0, 0]
    choose_rounded(linears[1:], clock(costs))
    assert linears[1].few_rows == 0
