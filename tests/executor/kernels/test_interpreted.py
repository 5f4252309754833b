"""Every kernel against its twin, interpreted on the CPU.

Triton decides at its import whether it interprets, so these run in a process of their own, once for
all: the files `interpreted/check_*.py`.  While writing a kernel, run them directly:

    TRITON_INTERPRET=1 python -m pytest -o python_files='check_*.py' tests/executor/kernels/interpreted
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

FOLDER = Path(__file__).with_name("interpreted")
ROOT = Path(__file__).resolve().parents[3]
CHECKS = sorted(path.stem for path in FOLDER.glob("check_*.py"))
TIMEOUT_S = 600

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("triton") is None, reason="Triton has no wheel for this machine"),
]

Result = dict[str, list[tuple[str, str | None]]]
"""Check file → (test, what failed)."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Result:
    report = tmp_path_factory.mktemp("interpreted") / "report.xml"
    options = ["-o", "python_files=check_*.py", "--junitxml", str(report), "-m", "", "--tb=short"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(FOLDER)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert report.exists(), done.stdout + done.stderr
    found: Result = {}
    for case in ET.parse(report).iter("testcase"):
        faults = [*case.iter("failure"), *case.iter("error")]
        name = case.get("classname", "").rpartition(".")[2]
        said = "\n".join(fault.text or "" for fault in faults) if faults else None
        found.setdefault(name, []).append((case.get("name", ""), said))
    return found


@pytest.mark.parametrize("check", CHECKS)
def test_kernels_agree_with_their_twins(check: str, results: Result) -> None:
    ran = results.get(check, [])
    assert ran, "nothing ran"
    failed = [f"{test}:\n{said}" for test, said in ran if said is not None]
    assert not failed, "\n\n".join(failed)
