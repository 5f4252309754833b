"""A tenant is deleted on a real server by the real command, which is killed on the way; it does not rise at a restart."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.bench.server import free_port
from tests.gateway.test_canary_sweep import MODEL, ROOT, START, _until_ready
from tests.models import write_tiny_llama

pytestmark = pytest.mark.slow
ENV = {**os.environ, "PYTHONPATH": str(ROOT)}
DYING = """
import os
from tenants import deletion
step, left = deletion.step, iter("xxxx")
def dies(*asked, **more):
    if next(left, None) is None:
        os.kill(os.getpid(), 9)
    return step(*asked, **more)
deletion.step = dies
"""


@contextmanager
def served(folder: Path, patch: str = "") -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The same state each time.  A server, and where customers reach it."""
    state, public, admin = folder / "state", free_port(), free_port()
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{patch}\n{START}"
    command = [sys.executable, "-c", code, "serve", "--state-dir", str(state)]
    command += ["--port", str(public), "--admin-port", str(admin)]
    command += ["--model", str(folder / "model"), "--threads", "1"]
    with (folder / "server.log").open("ab") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, env=ENV, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            start_new_session=True,
        )  # fmt: skip
    try:
        _until_ready(process, public, folder / "server.log")
        yield process, f"http://127.0.0.1:{public}"
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    finally:
        process.kill()
        process.wait(30)


def lockgate(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", START, *words, "--state-dir", str(folder / "state")]
    return subprocess.run(
        command, cwd=ROOT, env=ENV, capture_output=True, text=True, timeout=120, check=False
    )


def usage(folder: Path, by: str) -> Any:
    done = lockgate(folder, "usage", "report", "--by", by, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def chat(folder: Path, url: str, name: str) -> int:
    token = json.loads((folder / "state" / "dev.json").read_text())["tokens"][name]
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    return httpx2.post(
        f"{url}/v1/chat/completions", json=body, timeout=60,
        headers={"authorization": f"Bearer {token}"},
    ).status_code  # fmt: skip


def test_it_is_gone_for_good(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "model", max_position_embeddings=8192)
    delete = (
        "tenant",
        "delete",
        "acme",
        "--reason",
        "left",
        "--yes",
        "--export",
        str(tmp_path / "out"),
    )
    with served(tmp_path, DYING) as (process, url):
        for name in ("acme/alice", "acme/bob", "globex/carol"):
            assert chat(tmp_path, url, name) == 200
        before = usage(tmp_path, "model")
        assert lockgate(tmp_path, *delete).returncode == 1
        assert process.wait(30) == -signal.SIGKILL
    manifest = json.loads((tmp_path / "out" / "tenant-acme.jsonl.manifest.json").read_text())
    data = (tmp_path / "out" / "tenant-acme.jsonl").read_bytes()
    assert (manifest["rows"]["reservation"], manifest["bytes"]) == (2, len(data))
    assert hashlib.sha256(data).hexdigest() == manifest["sha256"]
    with served(tmp_path) as (_, url):
        assert chat(tmp_path, url, "acme/alice") == 403  # suspended meanwhile
        done = lockgate(tmp_path, *delete)
        assert done.returncode == 0, done.stderr
        assert usage(tmp_path, "model") == before
    with served(tmp_path) as (_, url):  # development mode configures it each time
        assert chat(tmp_path, url, "acme/alice") == 403
        assert chat(tmp_path, url, "globex/carol") == 200
        listed = json.loads(lockgate(tmp_path, "tenant", "list", "--json").stdout)
        assert [each["tenant"] for each in listed["tenants"]] == ["globex"]
        again = lockgate(tmp_path, *delete)
        assert (again.returncode, "was deleted" in again.stderr) == (1, True)
        names = {row["tenant"] for row in usage(tmp_path, "tenant")["rows"]}
        assert names == {"globex", *(name for name in names if name.startswith("deleted:"))}
        assert len(names) == 2
    assert "tenant_deleted" in (tmp_path / "server.log").read_text()
    data = b"".join(path.read_bytes() for path in (tmp_path / "state").glob("lockgate.db*"))
    assert b"acme" not in data
    assert b"alice" not in data
