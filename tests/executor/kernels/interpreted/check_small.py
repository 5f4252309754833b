"""Norm, gate and wiping against their twins, under the interpreter."""

from __future__ import annotations

import pytest
import torch

from executor.kernels.gate import gated, gated_twin
from executor.kernels.norm import add_norm, add_norm_twin
from executor.kernels.zero import zero_blocks, zero_blocks_twin
from executor.model.config import Activation
from tests.executor.kernels.cases import random

SHAPES = ((1, 32), (3, 96), (5, 576), (2, 1030))
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("added", ("nothing", "delta", "normed delta"))
@pytest.mark.parametrize("shape", SHAPES)
def test_add_norm(shape: tuple[int, int], added: str, dtype: torch.dtype) -> None:
    delta = None if added == "nothing" else random(*shape, seed=1, dtype=dtype)
    after = random(shape[1], seed=2) if added == "normed delta" else None
    weight = random(shape[1], seed=3)
    x, y = random(*shape), random(*shape)
    found = add_norm(x, delta, after, weight, 1e-5, dtype)
    wanted = add_norm_twin(y, delta, after, weight, 1e-5, dtype)
    torch.testing.assert_close(x, y, rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(found, wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("activation", tuple(Activation))
@pytest.mark.parametrize("shape", SHAPES)
def test_gate(shape: tuple[int, int], activation: Activation, dtype: torch.dtype) -> None:
    both = random(shape[0], 2 * shape[1], dtype=dtype) * 4
    found, wanted = gated(both, activation), gated_twin(both, activation)
    torch.testing.assert_close(found, wanted, rtol=TOLERANCE[dtype], atol=4e-6)


def test_wiping_touches_what_it_names_and_nothing_else() -> None:
    kv = random(3, 7, 4, 32, 40)
    twin = kv.clone()
    blocks = torch.tensor([6, 0, 3], dtype=torch.int32)
    zero_blocks(kv, blocks)
    zero_blocks_twin(twin, blocks)
    assert torch.equal(kv, twin)


def test_nothing_to_do() -> None:
    none = random(0, 32)
    assert add_norm(none, None, None, random(32), 1e-5, torch.float32).shape == (0, 32)
    assert gated(none, Activation.SILU).shape == (0, 16)
    zero_blocks(random(1, 1, 2, 32, 8), torch.tensor([], dtype=torch.int32))
