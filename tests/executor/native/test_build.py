"""The library's making: whoever else can write it, whatever the compiler does, the process serves on."""

from __future__ import annotations

import ctypes
import os
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from structlog.testing import capture_logs

from executor.cpu.native import build
from executor.cpu.native.build import Absent, library
from executor.cpu.torch_ops import TorchOps
from executor.decoder import Decoder
from executor.model_runner import load
from tests.models import write_tiny_llama

pytestmark = pytest.mark.slow  # the whole run's: the fast subset stays below half a minute

ABLE = build._able


@pytest.fixture(autouse=True)
def _any_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_able", lambda: True)
    monkeypatch.delenv("LOCKGATE_NATIVE", raising=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "lockgate" / "native"


def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """What stands for g++, and the only program there is but /bin's.  `$out` is its result."""
    programs = tmp_path / "bin"
    programs.mkdir()
    made = programs / "g++"
    made.write_text(
        '#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\nout="$2"\n' + script, encoding="utf-8"
    )
    made.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/bin:/usr/bin")


def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernels: ctypes.CDLL) -> None:
    compiler(tmp_path, monkeypatch, f'cat "{kernels._name}" >"$out"\n')


def why(found: ctypes.CDLL | Absent) -> str:
    assert isinstance(found, Absent)
    return found.reason


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_library_is_made_once_and_for_us_alone(
    kernels: ctypes.CDLL, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies(tmp_path, monkeypatch, kernels)
    before = os.umask(0)
    try:
        assert isinstance(library(folder), ctypes.CDLL)
    finally:
        os.umask(before)
    (made,) = folder.iterdir()
    assert (mode(made), mode(folder), mode(folder.parent)) == (0o500, 0o700, 0o700)
    shutil.rmtree(tmp_path / "bin")
    assert isinstance(library(folder), ctypes.CDLL)  # without a compiler, as in an image


def test_old_libraries_are_not_kept_for_ever(
    kernels: ctypes.CDLL, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies(tmp_path, monkeypatch, kernels)
    folder.mkdir(mode=0o700, parents=True)
    for age in range(9):
        old = folder / f"kernels-{age}.so"
        old.touch()
        os.utime(old, (age, age))
    assert isinstance(library(folder), ctypes.CDLL)
    left = {each.name for each in folder.iterdir()}
    assert len(left) == build.KEPT
    assert {"kernels-8.so", "kernels-7.so"} < left


def test_two_starts_at_once_leave_one_library(
    kernels: ctypes.CDLL, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies(tmp_path, monkeypatch, kernels)
    found: list[ctypes.CDLL | Absent] = []
    starts = [threading.Thread(target=lambda: found.append(library(folder))) for _ in range(4)]
    for start in starts:
        start.start()
    for start in starts:
        start.join()
    assert all(isinstance(each, ctypes.CDLL) for each in found)
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize(
    ("script", "reason"),
    (
        ("echo 'fatal error: no space left' >&2; exit 1", "did not compile"),
        ("kill -9 $$", "did not compile"),
        ("echo garbage >$out; echo garbage", "cannot be kept or loaded"),
        (": >$out", "cannot be kept or loaded"),
        ("exit 0", "cannot be kept or loaded"),
    ),
)
def test_a_compiler_that_fails_leaves_nothing_behind(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    compiler(tmp_path, monkeypatch, script)
    assert reason in why(library(folder))
    assert list(folder.iterdir()) == []


def test_a_compiler_that_hangs_is_given_up(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler(tmp_path, monkeypatch, "exec sleep 60")
    monkeypatch.setattr(build, "COMPILE_S_MAX", 0.05)
    assert "did not compile (TimeoutExpired)" in why(library(folder))
    assert list(folder.iterdir()) == []


def test_no_compiler_is_said(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "install g++" in why(library(folder))
    assert not folder.exists()


def planted(folder: Path, source: Path | None) -> Path:
    """A library by the right name, before the first start."""
    folder.mkdir(mode=0o700, parents=True)
    path = folder / f"kernels-{build._digest()}.so"
    if source is not None:
        shutil.copy(source, path)
        path.chmod(0o500)
    return path


@pytest.fixture
def never_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_it(name: str) -> None:
        raise AssertionError(f"{name} was loaded")

    monkeypatch.setattr(ctypes, "CDLL", load_it)


@pytest.mark.usefixtures("never_loaded")
@pytest.mark.parametrize("bits", (0o720, 0o702, 0o1777))
def test_a_folder_that_others_may_write_is_not_used(folder: Path, bits: int) -> None:
    path = planted(folder, None)
    path.write_bytes(b"theirs")
    folder.chmod(bits)
    assert "writable by others" in why(library(folder))
    path.unlink()
    assert "writable by others" in why(library(folder))  # nor is one made there


@pytest.mark.usefixtures("never_loaded")
@pytest.mark.parametrize("bits", (0o520, 0o502))
def test_a_library_that_others_may_write_is_not_loaded(folder: Path, bits: int) -> None:
    path = planted(folder, None)
    path.write_bytes(b"theirs")
    path.chmod(bits)
    assert "writable by others" in why(library(folder))


@pytest.mark.usefixtures("never_loaded")
def test_a_link_to_what_others_may_write_is_not_loaded(folder: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs.so"
    theirs.write_bytes(b"theirs")
    theirs.chmod(0o666)
    planted(folder, None).symlink_to(theirs)
    assert "writable by others" in why(library(folder))


@pytest.mark.usefixtures("never_loaded")
@pytest.mark.skipif(os.getuid() != 0, reason="only root may give a file away")
def test_a_library_of_another_user_is_not_loaded(folder: Path) -> None:
    path = planted(folder, None)
    path.write_bytes(b"theirs")
    path.chmod(0o500)
    os.chown(path, 12345, 12345)
    assert "is not loaded" in why(library(folder))
    os.chown(path, 0, 0)
    os.chown(folder, 12345, 12345)
    assert "is not loaded" in why(library(folder))


@pytest.mark.parametrize("content", (b"", b"\x7fELF", b"half a file"))
def test_a_stale_file_is_an_absence(folder: Path, content: bytes) -> None:
    path = planted(folder, None)
    path.write_bytes(content)
    path.chmod(0o500)
    assert "cannot be kept or loaded" in why(library(folder))


def test_a_library_without_one_of_the_kernels_is_an_absence(folder: Path) -> None:
    import _ctypes

    planted(folder, Path(_ctypes.__file__))
    assert "cannot be kept or loaded" in why(library(folder))


def test_no_place_to_keep_it_is_an_absence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler(tmp_path, monkeypatch, "exit 0")
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # stands for a read-only home
    assert "cannot be kept or loaded" in why(library())


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert "set XDG_CACHE_HOME" in why(library())


@pytest.mark.parametrize("hidden", ("avx512_bf16", *build.EXTENSIONS))
def test_a_processor_without_one_of_the_extensions_is_not_able(
    monkeypatch: pytest.MonkeyPatch, hidden: str
) -> None:
    able = dict.fromkeys(("avx512_bf16", *build.EXTENSIONS), True)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able)
    assert ABLE() == (sys.platform == "linux")
    able[hidden] = False
    assert not ABLE()
    monkeypatch.setattr(build, "_able", ABLE)
    assert "lacks AVX-512" in why(library())


def test_other_sources_or_flags_are_another_library(monkeypatch: pytest.MonkeyPatch) -> None:
    before = build._digest()
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-g"))
    assert build._digest() != before
    assert {*build.SOURCES, *build.HEADERS} == {
        path.name
        for path in Path(build.__file__).parent.iterdir()
        if path.suffix in {".cpp", ".hpp"}
    }


def test_without_kernels_torch_serves_and_one_line_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKGATE_NATIVE", "off")
    directory = write_tiny_llama(tmp_path / "m")
    with capture_logs() as said:
        _, runner = load(directory, dtype="bfloat16", kv_bytes=1 << 20, threads=1)
    assert isinstance(runner, Decoder)
    assert isinstance(runner.backend, TorchOps)
    assert said == [
        {
            "event": "native_kernels_absent",
            "log_level": "warning",
            "reason": "LOCKGATE_NATIVE is off",
        }
    ]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_the_real_compiler_makes_it_for_an_image(tmp_path: Path) -> None:
    root = str(Path(build.__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-m", "executor.cpu.native.build", "made"],  # a relative folder
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root},
    )
    if done.returncode:
        assert "no native kernels" in done.stderr
        pytest.skip(done.stderr.strip())
    assert Path(done.stdout.strip()).parent == tmp_path / "made"
