"""What is missing is said in words, one thing at a time."""

from __future__ import annotations

import pytest
import torch

from executor.kernels import device

pytestmark = pytest.mark.slow  # the whole run's: the fast subset stays below half a minute


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """One that has everything."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(device, "find_spec", lambda name: object())
    monkeypatch.setenv("CC", "gcc")
    assert device.reason_absent() is None
    return monkeypatch


def test_no_gpu(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(torch.cuda, "is_available", lambda: False)
    assert "no CUDA device" in str(device.reason_absent())


def test_an_old_gpu(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    assert "7.5; expected 8.0" in str(device.reason_absent())


def test_no_triton(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(device, "find_spec", lambda name: None)
    assert "Triton is not installed" in str(device.reason_absent())


def test_no_compiler(machine: pytest.MonkeyPatch) -> None:
    machine.delenv("CC")
    machine.setattr("shutil.which", lambda name: None)
    assert "no C compiler" in str(device.reason_absent())
    machine.setattr("shutil.which", lambda name: "/usr/bin/cc" if name == "cc" else None)
    assert device.reason_absent() is None
