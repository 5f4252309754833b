"""The real servers of the tests end with the tests, however those end (MONEY.md §5, case 42)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers_valkey import Valkey, valkey

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
STARTS_ONE = """
import sys, time
from pathlib import Path
from tests.servers_valkey import Valkey
server = Valkey(Path(sys.argv[1]))
server.start()
print(server.process.pid, flush=True)
time.sleep(600)
"""


def ended(pid: int) -> bool:
    """Gone, or a zombie that nobody has asked about."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"


@pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel")
def test_a_valkey_whose_tests_were_killed_is_gone_and_its_place_is_free(
    tmp_path: Path, valkey_server: Valkey
) -> None:
    folder = Path(os.path.relpath(tmp_path, ROOT)) if len(str(tmp_path)) > 90 else tmp_path
    tests = subprocess.Popen(
        [sys.executable, "-c", STARTS_ONE, str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert tests.stdout is not None
    pid = int(tests.stdout.readline())
    assert not ended(pid)
    tests.kill()
    tests.wait()
    tests.stdout.close()
    while not ended(pid):
        pass
    heir = Valkey(folder)
    heir.start()
    assert heir.say("PING") == b"PONG"
    heir.stop()
    assert valkey_server.say("PING") == b"PONG"  # another's is another's


def test_what_is_left_of_a_server_is_nothing() -> None:
    with valkey() as server:
        folder = server.folder
        assert (folder.stat().st_mode & 0o777) == 0o700
    assert not folder.exists()
