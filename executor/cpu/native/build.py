"""The C++ kernels: compiled once for this machine by the compiler it has, then loaded.

Built at the first start, in some ten seconds, into a folder of mode 0700 of this user, under a name that is
the digest of sources and flags; `python -m executor.cpu.native.build` does the same ahead
of time, for an image without a compiler.  Where there is no compiler, or the processor lacks AVX-512
with bf16, `library` says why and the torch backend serves alone.

Nothing is fetched, no text from outside reaches the command line, and a library that is not this
user's own, or that others may write, is not loaded.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from .signatures import declare

SOURCES = ("linear.cpp", "rounded.cpp", "stream.cpp", "attention.cpp", "sampling.cpp", "amx.cpp")
HEADERS = ("pool.hpp", "strips.hpp", "vector.hpp")
FLAGS = (
    "-O3", "-std=c++17", "-shared", "-fPIC", "-pthread", "-fvisibility=default", "-w",
    "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512bf16", "-mf16c", "-mfma",
)  # fmt: skip
EXTENSIONS = ("avx512_f", "avx512_bw", "avx512_vl", "avx512_dq", "f16c", "fma3")
COMPILE_S_MAX = 120
KEPT = 4  # libraries, of this version and earlier ones


@dataclass(frozen=True, slots=True)
class Absent:
    """Why there are no native kernels here."""

    reason: str


def library(folder: Path | None = None) -> ctypes.CDLL | Absent:
    """The kernels, compiled if they must be.  `folder`: where they are kept; by default the user's
    cache directory."""
    if not _able():
        return Absent("the processor lacks AVX-512 with bf16")
    if os.environ.get("LOCKGATE_NATIVE") == "off":
        return Absent("LOCKGATE_NATIVE is off")
    try:
        folder = _cache_folder() if folder is None else folder.absolute()
        path = folder / f"kernels-{_digest()}.so"
        if not path.exists():
            compiler = _compiler()
            if compiler is None:
                return Absent("no C++ compiler: install g++, or build the kernels beforehand")
            _private(folder)
            _compile(compiler, path)
        _check_owner(path)
        return declare(ctypes.CDLL(str(path)))
    except subprocess.SubprocessError as why:
        return Absent(f"the kernels did not compile ({type(why).__name__})")
    except (OSError, AttributeError) as why:  # the latter: a library that lacks one of them
        reason = getattr(why, "strerror", None) or why
        return Absent(f"the kernels cannot be kept or loaded: {reason}")


def _able() -> bool:
    """bf16 products came with the last of the extensions that the kernels use; but a virtual machine
    may hide any of the others."""
    able = torch.cpu.get_capabilities()
    return (
        sys.platform == "linux"
        and bool(able.get("avx512_bf16"))
        and all(able.get(each, True) for each in EXTENSIONS)
    )


def _compiler() -> str | None:
    return shutil.which("g++") or shutil.which("clang++")


def _cache_folder() -> Path:
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError as why:  # a user without HOME and without an entry in the system's list
        raise OSError("there is no home directory; set XDG_CACHE_HOME") from why
    return Path(base).absolute() / "lockgate" / "native"


def _private(folder: Path) -> None:
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # not as `parents`, by the umask
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OSError(f"{folder.name} is writable by others")


def _check_owner(path: Path) -> None:
    """Whoever can write the library runs code here: its folder, too, must be ours alone."""
    for each in (path, path.parent):
        found = each.stat()
        if found.st_uid not in {os.getuid(), 0} or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise OSError(f"{each.name} is writable by others, so it is not loaded")


def _digest() -> str:
    here = Path(__file__).parent
    content = hashlib.sha256(repr(FLAGS).encode())
    for name in (*SOURCES, *HEADERS):
        content.update((here / name).read_bytes())
    return content.hexdigest()[:24]


def _compile(compiler: str, path: Path) -> None:
    """Into a name of its own, then renamed: two starts at once do not see half a file, nor does one
    after a power cut.  What does not load is not kept."""
    here = Path(__file__).parent
    with TemporaryDirectory(dir=path.parent) as scratch:
        made = Path(scratch) / path.name
        subprocess.run(
            [compiler, *FLAGS, "-o", str(made), *(str(here / name) for name in SOURCES)],
            check=True,
            timeout=COMPILE_S_MAX,
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
        declare(ctypes.CDLL(str(made)))
        made.chmod(0o500)
        with made.open("rb") as written:
            os.fsync(written.fileno())
        made.replace(path)
    kept = sorted(path.parent.glob("kernels-*.so"), key=lambda each: each.stat().st_mtime)
    for old in kept[:-KEPT]:  # a process that has it loaded keeps it
        old.unlink(missing_ok=True)


if __name__ == "__main__":
    found = library(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    if isinstance(found, Absent):
        sys.exit(f"no native kernels: {found.reason}")
    sys.stdout.write(f"{found._name}\n")  # noqa: SLF001  # ctypes has no other name for it
