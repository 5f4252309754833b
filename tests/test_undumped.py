"""No process that holds prompts or keys leaves an image of itself: gateway, executor, compiler of grammars."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ASKED = """
import ctypes, resource
print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), *resource.getrlimit(resource.RLIMIT_CORE))
"""
GATEWAY = """
from gateway import bootstrap
async def serve(_): pass
bootstrap._serve = serve
bootstrap.run(None)
"""
EXECUTOR = """
from executor.__main__ import prepare_process
prepare_process()
"""
GRAMMAR = """
import socket
from executor.grammar.worker import main
ours, theirs = socket.socketpair()
ours.close()
main([str(theirs.detach())])
"""

linux = pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel")
pytestmark = [pytest.mark.slow, linux]


def run(code: str) -> subprocess.CompletedProcess[str]:
    hears, speaks = os.pipe()  # the executor goes when its parent's pipe does
    try:
        return subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            stdin=hears,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(hears)
        os.close(speaks)


@pytest.mark.parametrize(
    "start", (GATEWAY, EXECUTOR, GRAMMAR), ids=("gateway", "executor", "grammar")
)
def test_from_its_start_on_a_process_leaves_no_image_of_itself(start: str) -> None:
    done = run(start + ASKED)
    assert done.stdout.split() == ["0", "0", "0"], done.stderr


@pytest.mark.parametrize("package", ("security", "executor"))
def test_one_that_dies_dumps_nothing_though_it_may(package: str, tmp_path: Path) -> None:
    """Were there no limit, as a handler of dumps heeds none, the other guard alone holds."""
    code = f"""
import os, resource, signal, sys
sys.path.insert(0, {str(ROOT)!r})
resource.setrlimit = lambda *_: None
from {package}.undumped import forbid_dumps
forbid_dumps()
os.kill(os.getpid(), signal.SIGABRT)
"""
    pid = os.fork()
    if pid == 0:
        try:
            os.chdir(tmp_path)
            hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
            resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
            os.execv(sys.executable, [sys.executable, "-c", code])
        finally:
            os._exit(1)
    status = os.waitpid(pid, 0)[1]
    assert os.WTERMSIG(status) == signal.SIGABRT
    assert not os.WCOREDUMP(status)
    assert list(tmp_path.iterdir()) == []
