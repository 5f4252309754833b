"""The interpreter computes with numpy, which warns where a GPU's arithmetic goes on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _arithmetic_of_a_device() -> Iterator[None]:
    """exp overflows to infinity and infinities cancel to what a mask drops."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        yield
