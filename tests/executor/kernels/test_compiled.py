"""Every kernel compiles for sm_90 (H100, H200) without a GPU, and what comes out could run there.

Compiling and interpreting exclude each other in one process, so this has one of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
SHARED_BYTES_MAX = 227 << 10  # a block's, compute capability 9.0
REGISTERS = 64 << 10  # a processor's
TIMEOUT_S = 600
KERNELS = (
    "add_norm",
    "attend",
    "gate",
    "merge",
    "rotate_store",
    "sample",
    "turns",
    "zero",
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("triton") is None, reason="Triton has no wheel for this machine"),
]


@pytest.fixture(scope="module")
def built() -> dict[str, list[dict[str, Any]]]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.executor.kernels.compiled"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, list[dict[str, Any]]] = json.loads(done.stdout)
    return found


def local_bytes_max(each: dict[str, Any]) -> int:
    """Cosines of large angles keep a few words in their slow path; float32, which is for comparing
    and not for serving, spills."""
    return 64 if each["kernel"] == "turns" else 512 if "float32" in each["variant"] else 0


@pytest.mark.parametrize("kernel", KERNELS)
def test_it_compiles_and_fits(kernel: str, built: dict[str, list[dict[str, Any]]]) -> None:
    variants = built[kernel]
    assert variants
    for each in variants:
        assert each["cubin_bytes"] > 1000, each
        assert each["shared_bytes"] <= SHARED_BYTES_MAX, each
        assert each["registers"] * each["threads"] <= REGISTERS, each
        assert each["local_bytes"] <= local_bytes_max(each), each


def test_attention_multiplies_on_tensor_cores_and_copies_ahead(
    built: dict[str, list[dict[str, Any]]],
) -> None:
    for each in built["attend"]:
        assert each["tensor_core"], each
        assert each["copies_ahead"], each
