"""`tests.bench.gpu` runs to its end where there is no GPU: a script that waits for one must not fail
for a typing error when it gets it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SAYS = (
    "memory, GB/s",
    "8B decode",
    "8B prefill",
    "inter-token p99",
    "default model's shape, one step",
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("triton") is None, reason="Triton has no wheel for this machine"),
]


def test_the_script_runs_to_its_end() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.gpu", "--smoke", "--without-peer"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "comparisons of kernels with their twins, 0 failed" in done.stdout
    assert [what for what in SAYS if what not in done.stdout] == []
