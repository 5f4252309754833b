"""The threads of the kernels, and all kernels, under the compiler's sanitizers: no race, no piece of
work lost or done twice, no byte read beyond an array."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from executor.cpu.native import build

HERE, SOURCES = Path(__file__).parent, Path(build.__file__).parent
MACHINE = tuple(flag for flag in build.FLAGS if flag.startswith("-m"))
WATCH_RACES = ("-O1", "-g", "-fsanitize=thread")
# Offsets from null are computed and dropped where an argument may be null.
WATCH_MEMORY = (
    "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize=pointer-overflow",
    "-fno-sanitize-recover=all",
)  # fmt: skip


def checked(tmp_path: Path, source: str, flags: tuple[str, ...], *arguments: str) -> None:
    """Compile one of the drivers beside this file with `flags`, and run it."""
    compiler = shutil.which("g++")
    if compiler is None or not build._able():
        pytest.skip("no g++, or no AVX-512 with bf16")
    made = tmp_path / "check"
    command = [compiler, "-std=c++17", "-pthread", "-w", *MACHINE, *flags, f"-I{SOURCES}"]
    done = subprocess.run(
        [*command, "-o", str(made), str(HERE / source)], check=False, capture_output=True, text=True
    )
    if done.returncode and "cannot find" in done.stderr:
        pytest.skip(f"no sanitizer here: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr
    ran = subprocess.run([made, *arguments], check=False, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.slow
def test_every_piece_runs_once(tmp_path: Path) -> None:
    checked(tmp_path, "pool_check.cpp", ("-O2",), "2", "100000")
    checked(tmp_path, "pool_check.cpp", ("-O2",), "8", "20000")


@pytest.mark.slow
def test_the_pool_has_no_race(tmp_path: Path) -> None:
    checked(tmp_path, "pool_check.cpp", WATCH_RACES, "4", "5000")


@pytest.mark.slow
def test_the_kernels_have_no_race(tmp_path: Path) -> None:
    checked(tmp_path, "kernels_check.cpp", WATCH_RACES, "3")


@pytest.mark.slow
def test_the_kernels_stay_within_their_arrays(tmp_path: Path) -> None:
    checked(tmp_path, "kernels_check.cpp", WATCH_MEMORY, "2")
