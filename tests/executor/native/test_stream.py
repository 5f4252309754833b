"""Add, norm and gate against torch, at and beyond the edges of numbers."""

from __future__ import annotations

import ctypes

import pytest
import torch
from torch import Tensor
from torch.nn import functional

pytestmark = pytest.mark.slow  # exhaustive; the fast subset has its neighbours

EPSILON = 1e-5


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def add_norm(
    kernels: ctypes.CDLL, x: Tensor, delta: Tensor | None, after: Tensor | None, weight: Tensor
) -> Tensor:
    out = torch.full((len(x) + 1, x.shape[1]), 77.0, dtype=torch.bfloat16)
    kernels.lockgate_add_norm(
        x.data_ptr(),
        None if delta is None else delta.data_ptr(),
        None if after is None else after.data_ptr(),
        weight.data_ptr(),
        out.data_ptr(),
        *x.shape,
        EPSILON,
    )
    assert bool((out[-1] == 77.0).all())
    return out[:-1]


def gate(kernels: ctypes.CDLL, both: Tensor, *, gelu: bool) -> Tensor:
    rows, width = both.shape
    out = torch.full((rows + 1, width // 2), 77.0, dtype=torch.bfloat16)
    kernels.lockgate_gate(both.data_ptr(), out.data_ptr(), rows, width // 2, gelu)
    assert bool((out[-1] == 77.0).all())
    return out[:-1]


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, weight.shape, weight, EPSILON)


@pytest.mark.parametrize("n", (16, 48, 576, 8208))
@pytest.mark.parametrize("rows", (0, 1, 37))
def test_add_norm_is_torch_s(kernels: ctypes.CDLL, rows: int, n: int) -> None:
    weight, after = drawn(1, n), drawn(2, n)
    for delta, post in ((None, None), (drawn(3, rows, n), None), (drawn(4, rows, n), after)):
        x = drawn(5, rows, n)
        expected = x.clone()
        add = None if delta is None else delta.bfloat16()
        if add is not None:
            expected += add.float() if post is None else normed(add.float(), post)
        out = add_norm(kernels, x, add, post, weight)
        torch.testing.assert_close(x, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(out, normed(expected, weight).bfloat16(), rtol=2**-7, atol=1e-5)


def test_a_row_s_norm_has_the_same_bits_in_any_company(kernels: ctypes.CDLL) -> None:
    x, delta, after, weight = (
        drawn(1, 40, 96),
        drawn(2, 40, 96).bfloat16(),
        drawn(3, 96),
        drawn(4, 96),
    )
    alone = x[7:8].clone()
    one = add_norm(kernels, alone, delta[7:8], after, weight)
    x[6], delta[8] = float("nan"), float("inf")
    out = add_norm(kernels, x, delta, after, weight)
    assert torch.equal(out[7:8], one)
    assert torch.equal(x[7:8], alone)
    assert [row for row in range(40) if not bool(out[row].isfinite().all())] == [6, 8]


EDGES = (
    0.0, -0.0, 1e-30, -1e-30, 1.0, -1.0, 20.0, -20.0, 88.0, -88.0, 89.0, -89.0, 104.0, -104.0, 1e4,
    -1e4, 1e13, -1e13, 1e20, -1e20, 3e38, -3e38, float("inf"), float("-inf"), float("nan"), -7.5,
    -1e2, -126.0, -127.5, -150.0, 0.5, -0.5,
)  # fmt: skip


@pytest.mark.parametrize("gelu", (False, True))
def test_gate_is_torch_s_at_every_size_of_number(kernels: ctypes.CDLL, gelu: bool) -> None:
    values = torch.cat((torch.tensor(EDGES), drawn(1, 96) * 6)).bfloat16()
    both = torch.cat((values, torch.full_like(values, -1.5))).unsqueeze(0)
    found = gate(kernels, both, gelu=gelu)[0]
    inside = values.float()
    activated = functional.gelu(inside, approximate="tanh") if gelu else functional.silu(inside)
    expected = (activated * -1.5).bfloat16()
    # below some −10, ½·(1 + tanh) is a rounding error of one where a sigmoid still tells how small
    torch.testing.assert_close(
        found, expected, rtol=2**-7, atol=1e-6 if gelu else 1e-30, equal_nan=True
    )


@pytest.mark.parametrize("gelu", (False, True))
def test_gate_multiplies_its_own_row(kernels: ctypes.CDLL, gelu: bool) -> None:
    for rows, n in ((1, 16), (37, 48), (3, 8208)):
        both = drawn(rows, rows, 2 * n).bfloat16()
        gates, up = both[:, :n].float(), both[:, n:].float()
        activated = functional.gelu(gates, approximate="tanh") if gelu else functional.silu(gates)
        found = gate(kernels, both, gelu=gelu)
        torch.testing.assert_close(found, (activated * up).bfloat16(), rtol=2**-6, atol=1e-5)
