"""`.venv` beside the project: made once, installed from the locks, marked with what it was made from.

Knows pip and the lock files; knows no package by name but torch, whose wheel differs by machine.
Source: DESIGN.md, settled question 18.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy.console import Stop, say

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOCKS = ROOT / "deploy" / "locks"
TORCH = "torch>=2.11,<2.14"
SIZE_TIMEOUT_S = 10


def stamp_of(place: str, python: str, torch: str, files: Mapping[str, bytes]) -> str:
    """What `.venv` was made from, and where.  Any change makes the next run install again."""
    digests = {name: hashlib.sha256(files[name]).hexdigest() for name in sorted(files)}
    made = {"place": place, "python": python, "torch": torch, "files": digests}
    return json.dumps(made, indent=1) + "\n"


def told(line: str) -> bool:
    """Whether a line of pip's is worth a reader's time."""
    words = line.lstrip()
    return words.startswith(
        ("Downloading ", "Installing collected", "ERROR", "Successfully installed")
    )


def shortened(line: str, width: int = 100) -> str:
    return line if len(line) <= width else line[: width - 1] + "…"


def report_urls(report: Mapping[str, object]) -> list[str]:
    """What pip's dry-run report would install, as URLs."""
    installs = report.get("install", [])
    assert isinstance(installs, list)
    return [item["download_info"]["url"] for item in installs]


def venv_python() -> Path:
    windows = VENV / "Scripts" / "python.exe"
    return windows if windows.exists() else VENV / "bin" / "python"


def make_venv() -> None:
    if VENV.is_symlink():
        raise Stop(
            f"{VENV} is a link to {VENV.resolve()}, and what is installed there may be another's.\n"
            "Remove the link (rm .venv), and run the command again: it makes one of its own."
        )
    if venv_python().exists():
        works = subprocess.run(
            [str(venv_python()), "-c", "import pip"], check=False, capture_output=True
        )
        if works.returncode == 0:
            return
        say("  .venv is broken (its Python was moved or updated); making it again")
        shutil.rmtree(VENV)
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if missing:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise Stop(
            f"This Python lacks its {' and '.join(missing)} module, which makes .venv.\n"
            f"On Debian and Ubuntu: sudo apt install python{version}-venv\n"
            "On Fedora: sudo dnf install python3-pip. Then run the command again."
        )
    made = subprocess.run(
        [sys.executable, "-P", "-m", "venv", str(VENV)],
        check=False,
        capture_output=True,
        text=True,
    )
    if made.returncode != 0:
        shutil.rmtree(VENV, ignore_errors=True)
        raise Stop(f"Making {VENV} failed:\n{made.stdout}{made.stderr}".rstrip())


def pip(arguments: Sequence[str], what: str) -> None:
    """Run pip of `.venv`.  On a terminal it draws its own bars; elsewhere only what matters is told."""
    command = [str(venv_python()), "-P", "-m", "pip", "--disable-pip-version-check", *arguments]
    if sys.stderr.isatty():
        if subprocess.run(command, check=False).returncode != 0:
            raise Stop(f"{what} failed; pip says why above. {pip_hint('')}")
        return
    tail: list[str] = []
    with subprocess.Popen(
        [*command, "--progress-bar", "off"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            tail = [*tail[-79:], line.rstrip()]
            if told(line):
                say("  " + shortened(" ".join(line.split())))
    if process.returncode != 0:
        text = "\n".join(tail)
        raise Stop(f"{what} failed. pip says:\n{text}\n{pip_hint(text)}")


def pip_hint(text: str) -> str:
    if "HASHES" in text.upper() and "MATCH" in text.upper():
        return "A package differs from the one that was locked: do not install it."
    if "No space left" in text:
        return "The disk is full; Lockgate needs about 2 GB with a CPU torch, 8 GB with CUDA."
    return "No network? pip reads its usual settings (index, proxy) from the environment."


def tell_size(requirement: str) -> None:
    """What is about to be installed for `requirement`, in MB.  Never fails: it is only told."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        asked = subprocess.run(
            [
                str(venv_python()), "-P", "-m", "pip", "--disable-pip-version-check", "install",
                "--dry-run", "--quiet", "--report", str(report), requirement,
            ],
            check=False,
            capture_output=True,
        )  # fmt: skip
        if asked.returncode != 0:
            return  # the installation itself will say why
        urls = report_urls(json.loads(report.read_text(encoding="utf-8")))
    sizes = [_size_of(url) for url in urls]
    known = sum(size for size in sizes if size is not None)
    unsure = " or more" if None in sizes else ""
    for url in urls:
        say(f"  {url.rpartition('/')[2].partition('#')[0].replace('%2B', '+')}")
    if urls:
        say(f"  {known / 1e6:,.0f} MB{unsure} to fetch, about three times that on disk")


def _size_of(url: str) -> int | None:
    """Bytes behind an http(s) or file URL; None where nobody says."""
    try:
        if url.startswith("file:"):
            return Path(urllib.request.url2pathname(url.removeprefix("file://"))).stat().st_size
        if not url.startswith(("https:", "http:")):
            return None
        authorities = os.environ.get("PIP_CERT") or os.environ.get("REQUESTS_CA_BUNDLE")
        context = ssl.create_default_context(cafile=authorities)
        ask = urllib.request.Request(url, method="HEAD")  # noqa: S310 — the scheme was checked above
        with urllib.request.urlopen(ask, timeout=SIZE_TIMEOUT_S, context=context) as answer:  # noqa: S310 — likewise
            length = answer.headers.get("Content-Length")
            return int(length) if length else None
    except (OSError, ValueError):
        return None


def installed(extra: str) -> bool:
    """Whether `.venv` holds what the locks say.  The test set contains the runtime set, so its mark
    serves for both."""
    names = {extra, "test"}
    return venv_python().exists() and any(_read(_mark(name)) == _stamp(name) for name in names)


def _mark(extra: str) -> Path:
    return VENV / f"lockgate-{extra}.json"


def _stamp(extra: str) -> str:
    paths = (ROOT / "pyproject.toml", LOCKS / f"{extra}.txt")
    return stamp_of(str(ROOT), sys.version, TORCH, {path.name: path.read_bytes() for path in paths})


def install(extra: str) -> None:
    """`extra`: `runtime`, or `test`, which holds all of runtime."""
    if installed(extra):
        return
    stamp = _stamp(extra)
    started_s = time.monotonic()
    say("[1/4] Python environment in .venv")
    make_venv()
    lock = LOCKS / f"{extra}.txt"
    count = sum(1 for line in lock.read_text(encoding="utf-8").splitlines() if "==" in line)
    say(f"[2/4] {count} packages pinned by hash in deploy/locks/{extra}.txt")
    pip(["install", "--require-hashes", "-r", str(lock)], "Installing the locked packages")
    say(f"[3/4] {TORCH}, for this machine")
    tell_size(TORCH)
    pip(["install", TORCH], "Installing torch")
    say("[4/4] Lockgate itself")
    pip(
        ["install", "--no-deps", "--no-build-isolation", "-e", str(ROOT)],
        "Installing Lockgate",
    )
    _mark(extra).write_text(stamp, encoding="utf-8")
    say(f"  installed in {time.monotonic() - started_s:.0f} s")


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None
