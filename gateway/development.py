"""Development mode's extras: a local issuer, demo tokens, and a `curl` to paste.

`var/dev.json` (mode 0600) is for scripts: `base_url`, `admin_url` and `tokens` by name.
Production never comes here; its settings refuse this issuer.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from gateway.listen import Bound
from gateway.settings import Mode, Settings
from policies.facts import Role
from security.dev_issuer import KEY_FILE as DEV_KEY_FILE
from security.dev_issuer import RULE, DevIssuer, open_dev_issuer
from security.tokens import IssuerRule

TOKEN_TTL_S = 7 * 86_400

_PEOPLE: tuple[tuple[str, str | None, str, tuple[Role, ...]], ...] = (
    ("acme/alice", "acme", "alice", ()),
    ("acme/bob", "acme", "bob", ()),
    ("globex/carol", "globex", "carol", ()),
    ("globex/dave", "globex", "dave", ()),
    ("acme/admin", "acme", "admin", (Role.TENANT_ADMIN,)),
    ("globex/admin", "globex", "admin", (Role.TENANT_ADMIN,)),
    ("acme/finance", "acme", "finance", (Role.FINANCE,)),
    ("operator", None, "operator", (Role.OPERATOR,)),
    ("operator/finance", None, "operator-finance", (Role.OPERATOR_FINANCE,)),
    ("operator/security", None, "operator-security", (Role.OPERATOR_SECURITY,)),
)


@dataclass(frozen=True, slots=True)
class Development:
    state: Path
    jwks_path: Path
    rule: IssuerRule
    tokens: dict[str, str] = field(repr=False)

    def announce(self, bound: Sequence[Bound], *, models: Sequence[str]) -> None:
        """Write `dev.json` and tell a person what to do next."""
        urls = {each.name: each.url for each in bound}
        path = self.state / "dev.json"
        document = {
            "base_url": urls["public"],
            "admin_url": urls["admin"],
            "tokens": self.tokens,
        }
        _write_private(path, msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
        sys.stdout.write(_BANNER.format(base=urls["public"], model=models[0], path=path))
        sys.stdout.flush()


_BANNER = """
Lockgate, development mode: {base}  (this machine only; the model may still be loading)

  curl -N {base}/v1/chat/completions \\
    -H "Authorization: Bearer $(python3 -c 'import json; print(json.load(open("{path}"))["tokens"]["acme/alice"])')" \\
    -H 'Content-Type: application/json' \\
    -d '{{"model": "{model}", "stream": true, "temperature": 0,
         "messages": [{{"role": "user", "content": "What is the capital of France?"}}]}}'

Tokens of the demo tenants acme and globex are in {path}.
An answer's x-request-id, given to 'lockgate explain', shows where its time went and what it cost.

"""


class DevelopmentState(Exception):
    """Production was pointed at the state of development mode."""


def refuse_development_state(settings: Settings) -> None:
    """Keys made for play would open production: the two never share a folder."""
    played = settings.state.dir / DEV_KEY_FILE
    if settings.mode is Mode.PRODUCTION and played.exists():
        raise DevelopmentState(
            f"{settings.state.dir} was used by development mode, and keys made there would be accepted "
            "here. Give [state] a dir, database_url and root_key_file of their own."
        )


def development_mode(state: Path, *, now_s: int) -> Development:
    issuer = open_dev_issuer(state)
    return Development(state, issuer.jwks_path, RULE, _tokens(issuer, now_s))


def _tokens(issuer: DevIssuer, now_s: int) -> dict[str, str]:
    return {
        name: issuer.mint(
            tenant=tenant,
            user=user,
            roles=roles,
            now_s=now_s,
            ttl_s=TOKEN_TTL_S,
            jti=f"dev_{secrets.token_hex(12)}",
        )
        for name, tenant, user, roles in _PEOPLE
    }


def _write_private(path: Path, data: bytes) -> None:
    """Whole or not at all, readable by its owner only."""
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    fresh.replace(path)
