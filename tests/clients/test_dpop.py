"""What deploy/README.md shows of bound tokens, run as it stands there, against real sockets."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from security.dev_issuer import holders_thumbprint, open_dev_issuer
from tests.clients.serving import serving
from tests.gateway.inhouse import MODEL
from tests.security.proof_kit import HOLDER

pytestmark = pytest.mark.slow
README = Path(__file__).parents[2] / "deploy" / "README.md"


def test_the_example_is_answered_and_its_token_alone_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    key = tmp_path / "holder.pem"
    key.write_bytes(HOLDER.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    monkeypatch.chdir(tmp_path)
    with serving(tmp_path / "state") as here:
        token = open_dev_issuer(tmp_path / "state").mint(
            tenant="acme",
            user="alice",
            now_s=int(time.time()),
            ttl_s=60,
            jti="t",
            bound_to=holders_thumbprint(key),
        )
        said: dict[str, Any] = {
            "base_url": here.base_url.removesuffix("/v1"),
            "token": token,
            "model": MODEL,
        }
        exec(compile(example, str(README), "exec"), said)
        assert said["answer"].status_code == 200, said["answer"].text
        assert "hello" in said["answer"].json()["choices"][0]["message"]["content"]
        plain = said["httpx"].post(
            said["url"], json=said["ask"], headers={"Authorization": f"Bearer {token}"}
        )
        assert plain.status_code == 401
        here.at_rest()
