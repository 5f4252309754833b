"""The native kernels, where this machine can run them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
import torch

from executor.cpu.native.build import Absent, library


@pytest.fixture(scope="session")
def kernels() -> ctypes.CDLL:
    found = library()
    if isinstance(found, Absent):
        pytest.skip(f"no native kernels: {found.reason}")
    found.lockgate_threads(2)
    return found


@pytest.fixture(autouse=True)
def _threads_of_torch() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
