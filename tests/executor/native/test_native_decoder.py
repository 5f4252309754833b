"""The whole decoder on the native kernels: buffers that are used again, steps that sample nothing, and
the same bits in any company."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from executor.batch import Batch, Row
from executor.cpu import machine
from executor.cpu.native.linear import Space, SwitchingLinear
from executor.cpu.native.ops import NativeOps
from executor.cpu.native.rounded import RoundedLinear
from executor.decoder import Decoder
from executor.model_runner import load
from tests.executor.families import write_family
from tests.executor.test_cpu_runner import PROMPTS, alone, crowded
from tests.models import write_tiny_llama

pytestmark = [pytest.mark.usefixtures("kernels"), pytest.mark.slow]
MULTIPLIES_BYTES = pytest.mark.skipif(not machine.has_vnni(), reason="no AVX512-VNNI")
BLOCKS = [7, 2, 9, 4, 11]


def native(directory: Path, numerics: str = "fast") -> Decoder[Any]:
    _, runner = load(directory, numerics=numerics, dtype="bfloat16", kv_bytes=1 << 20, threads=2)
    assert isinstance(runner, Decoder)
    assert isinstance(runner.backend, NativeOps)
    return runner


def some_steps(runner: Decoder[Any]) -> list[Tensor]:
    """A chunk that samples nothing, its rest beside a decode, then decodes."""
    ids = PROMPTS[0]
    steps = (
        [Row(ids[:70], 0, BLOCKS, False)],
        [Row([5], 0, [3], True), Row(ids[70:100], 70, BLOCKS, True)],
        [Row([6], 1, [3], True), Row([8], 100, BLOCKS, False)],
    )
    return [runner.run(Batch(rows)).clone() for rows in steps]


def fresh(
    self: Space, purpose: str, rows: int, width: int, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    return torch.full((rows, width), float("nan"), dtype=dtype)


def check_buffers(runner: Decoder[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    found = some_steps(runner)
    assert [len(each) for each in found] == [0, 2, 1]
    assert all(bool(each.isfinite().all()) for each in found)
    runner.zero_blocks([*BLOCKS, 3])
    monkeypatch.setattr(Space, "take", fresh)
    for one, other in zip(found, some_steps(runner), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    "shape",
    (
        {"hidden_size": 192, "intermediate_size": 192, "tie_word_embeddings": False},
        {"hidden_size": 320, "intermediate_size": 160},  # qkv, gate and up, hidden: one width
        {"hidden_size": 64, "intermediate_size": 32, "vocab_size": 320},
    ),
    ids=str,
)
def test_buffers_of_one_width_are_free_when_they_are_used_again(
    tmp_path: Path, shape: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_buffers(native(write_tiny_llama(tmp_path / "m", **shape)), monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("family", ("gemma3", "qwen3", "mistral", "llama-yarn"))
def test_buffers_of_every_family_are_free_when_they_are_used_again(
    tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_family(tmp_path / "m", family)
    check_buffers(native(tmp_path / "m"), monkeypatch)


@pytest.mark.parametrize("numerics", ("fast", pytest.param("int8", marks=MULTIPLIES_BYTES)))
def test_logits_of_one_layout_are_the_same_bits_in_any_company(
    tmp_path: Path, numerics: str
) -> None:
    """A directory has no blocks, so all rows go through one layout, of bf16 or of bytes."""
    runner = native(write_tiny_llama(tmp_path / "m"), numerics)
    first = [alone(runner, ids, list(range(20, 25))) for ids in PROMPTS]
    for seed in range(3):
        for lone, company in zip(first, crowded(runner, PROMPTS, seed), strict=True):
            assert torch.equal(lone, company)


@pytest.mark.parametrize(
    ("numerics", "bar", "hidden_size"),
    (
        ("fast", 2e-2, 320),
        pytest.param("int8", 5e-2, 320, marks=MULTIPLIES_BYTES),
        pytest.param("int8", 5e-2, 176, marks=MULTIPLIES_BYTES),  # no multiple of 32: in part bf16
    ),
)
def test_native_logits_are_near_torch_s(
    tmp_path: Path, kernels: ctypes.CDLL, numerics: str, bar: float, hidden_size: int
) -> None:
    shape = {"hidden_size": hidden_size, "intermediate_size": 160}
    directory = write_tiny_llama(tmp_path / "m", **shape)
    runner = native(directory, numerics)
    assert isinstance(runner.backend, NativeOps)
    kinds = [type(linear) for linear in runner.backend.linears]
    assert (RoundedLinear in kinds) == (numerics == "int8")
    assert (SwitchingLinear in kinds) == (numerics == "fast" or hidden_size % 32 > 0)
    found = alone(runner, PROMPTS[0], BLOCKS)
    _, exact = load(directory, dtype="float32", kv_bytes=1 << 20, threads=1)
    assert isinstance(exact, Decoder)
    expected = alone(exact, PROMPTS[0], BLOCKS)
    error = float((found - expected).norm() / expected.norm())
    assert error < bar, error


def test_one_request_s_nan_is_not_its_neighbour_s(tmp_path: Path) -> None:
    runner = native(write_tiny_llama(tmp_path / "m"))
    assert isinstance(runner.backend, NativeOps)
    memory = runner.backend.memory
    ids, other = PROMPTS[0], PROMPTS[2]

    def step() -> Tensor:
        runner.run(Batch([Row(ids, 0, BLOCKS, True), Row(other, 0, [0, 1], True)]))
        if poisoned:
            for layer in memory:
                layer[BLOCKS[:2]] = 0x7FC0
        return runner.run(Batch([Row([8], 150, BLOCKS, True), Row([8], 33, [0, 1], True)])).clone()

    poisoned = False
    clean = step()
    poisoned = True
    found = step()
    assert bool(torch.isnan(found[0]).all())
    assert torch.equal(found[1], clean[1])


@pytest.mark.parametrize(
    "row",
    (
        Row([1], 0, [10_000], True),
        Row([1], 0, [-1], True),
        Row([1, 2], 31, [3], True),  # its second block is missing
        Row([1], 512, list(range(17)), True),  # of 512 positions
    ),
    ids=str,
)
def test_a_row_beyond_the_memory_fails_before_a_kernel_sees_it(tmp_path: Path, row: Row) -> None:
    runner = native(write_tiny_llama(tmp_path / "m"))
    with pytest.raises(AssertionError):
        runner.run(Batch([row]))
