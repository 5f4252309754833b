"""`numerics = "int8"` where it cannot be: said at load, with what is missing and what to do."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from executor.cpu import backend, machine
from executor.cpu.backend import CpuDevice, cannot_round
from executor.cpu.native.build import Absent
from executor.model.errors import ModelError
from executor.model_runner import load
from executor.numerics import Numerics
from tests.models import LLAMA_8B, write_tiny_llama

KERNELS = ctypes.CDLL(None)  # asked for nothing here


def test_each_thing_that_is_missing_is_named() -> None:
    def why(
        dtype: torch.dtype = torch.bfloat16,
        kernels: ctypes.CDLL | Absent = KERNELS,
        *,
        bytes_: bool = True,
    ) -> str:
        return cannot_round(LLAMA_8B, dtype, kernels, multiplies_bytes=bytes_) or ""

    assert why() == ""
    assert "float32" in why(torch.float32)
    assert "no C++ compiler" in why(kernels=Absent("no C++ compiler"))
    assert "AVX512-VNNI" in why(bytes_=False)


def test_a_shape_that_no_kernel_holds_is_named() -> None:
    odd = replace(LLAMA_8B, head_dim=20)
    found = cannot_round(odd, torch.bfloat16, KERNELS, multiplies_bytes=True)
    assert "head_dim 20" in (found or "")


def test_it_is_refused_before_weights_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "library", lambda: KERNELS)
    monkeypatch.setattr(machine, "has_vnni", lambda: False)
    monkeypatch.setattr(machine, "available_bytes", lambda: None)
    CpuDevice(Numerics.FAST).check(LLAMA_8B, torch.bfloat16)
    with pytest.raises(ModelError, match=r'"int8" cannot be used: .*VNNI.*; set numerics = "fast"'):
        CpuDevice(Numerics.INT8).check(LLAMA_8B, torch.bfloat16)


def test_a_model_in_float32_is_refused(tmp_path: Path) -> None:
    directory = write_tiny_llama(tmp_path / "m")
    with pytest.raises(ModelError, match=r"int8.*bfloat16.*float32"):
        load(directory, numerics="int8", dtype="float32", kv_bytes=1 << 20, threads=1)
