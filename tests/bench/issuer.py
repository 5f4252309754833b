"""An identity provider for one run: a fresh ES256 key, its key-set file, tokens that last an hour.

So that a bench runs against a production configuration (development's plan is too small for load)
and every request is verified like anybody's.  Source: RFC 9068, RFC 7517.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

ISSUER = "https://idp.bench.example/"
AUDIENCE = "lockgate-bench"
KID = "bench-1"
TTL_S = 4 * 3600  # longer than the longest soak


class Issuer:
    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())

    def write_jwks(self, path: Path) -> None:
        numbers = self._key.public_key().public_numbers()
        key = {
            "kty": "EC",
            "crv": "P-256",
            "x": _base64url(numbers.x.to_bytes(32)),
            "y": _base64url(numbers.y.to_bytes(32)),
            "kid": KID,
            "alg": "ES256",
            "use": "sig",
        }
        path.write_text(json.dumps({"keys": [key]}), encoding="utf-8")

    def token(
        self,
        *,
        tenant: str | None,
        user: str,
        now_s: int,
        roles: Sequence[str] = (),
        bound_to: str | None = None,
    ) -> str:
        """`bound_to`: the thumbprint of the key that its holder must prove (RFC 9449)."""
        claims: dict[str, object] = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": user,
            "iat": now_s,
            "exp": now_s + TTL_S,
            "jti": f"{tenant}-{user}-{now_s}",
        }
        if tenant is not None:
            claims["org"] = tenant
        if roles:
            claims["roles"] = list(roles)
        if bound_to is not None:
            claims["cnf"] = {"jkt": bound_to}
        return jwt.encode(
            claims, self._key, algorithm="ES256", headers={"typ": "at+jwt", "kid": KID}
        )


def _base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")
