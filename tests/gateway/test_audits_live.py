"""The audits against whole servers with a tiny model: one as it is, and one whose labels forget the user.

The broken one is a patch of this test, put in before its server starts (DESIGN.md, 16).
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from gateway.cli import client, main
from tests.bench.server import Server
from tests.models import write_tiny_llama

UNSCOPED = """
from policies.scope import labels
from security.cache_keys import CacheKeys
real = CacheKeys.scope
CacheKeys.scope = lambda keys, label: real(
    keys, label if label.tenant is None else labels.user(label.tenant, "idp", "everybody")
)
CacheKeys.covers = lambda keys, label: ()  # a person's own is compared on every hit
"""
START = "from gateway.cli import main; main()"
ROOT = Path(__file__).parents[2]


def audited(folder: Path, patch: str, *words: str) -> int:
    model = write_tiny_llama(folder / "model", max_position_embeddings=8192)
    server = Server.prepare(model_path=str(model), threads=1)
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{patch}\n{START}"
    server.command = (sys.executable, "-c", code, *server.command[1:])
    with server:
        site = server.site
        known = client.Known(site.base_url, site.admin_url, dict(site.tokens))
        tokens = folder / "tokens.json"
        tokens.write_bytes(msgspec.json.encode(known))
        tokens.chmod(0o600)
        where = ("--tokens", str(tokens), "--model", site.model, "--out", str(folder / "out"))
        with pytest.raises(SystemExit) as stop:
            main(["audit", *words, *where, "--state-dir", str(folder)])
    return int(stop.value.code or 0)


def verdict(folder: Path) -> str:
    (file,) = (folder / "out").glob("*.json")
    return str(msgspec.json.decode(file.read_bytes())["report"]["verdict"]["reason"])


TIMING = ("timing", "--pairs", "3", "--victim-requests", "1", "--prefix-tokens", "128")
LEVELS = ("--levels", "same-user,same-tenant,cross-tenant")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("patch", "code", "says"),
    (("", 3, "so 'no reuse seen' proves nothing"), (UNSCOPED, 1, "same-tenant/1")),
)
def test_timing_tells_a_server_from_its_mutant(
    tmp_path: Path, patch: str, code: int, says: str
) -> None:
    assert audited(tmp_path, patch, *TIMING, *LEVELS) == code
    assert says in verdict(tmp_path)


@pytest.mark.slow
def test_isolation_names_what_the_mutant_shares(tmp_path: Path) -> None:
    words = ("isolation", "--repeats", "1", "--prefix-tokens", "128")
    assert audited(tmp_path, UNSCOPED, *words) == 1
    assert verdict(tmp_path).startswith("What one scope left was reused in another: user")
