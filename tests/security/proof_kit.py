"""A holder of keys who proves anything, however wrong: what the tests of proofs attack with."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from security.dpop import Asked, token_hash
from security.jwks import thumbprint
from security.proving import Proving
from security.strict import to_base64url
from tests.security.kit import NOW_S, merged, rsa_jwk, rsa_key

PATH = "/v1/chat/completions"
URL = "https://llm.example.com"
ASKED = Asked("POST", PATH, "llm.example.com")
HOLDER = ec.derive_private_key(0xBEEF, ec.SECP256R1())
STRANGER = ec.derive_private_key(0xF00D, ec.SECP256R1())
ED_HOLDER = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
Key = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


def jwk(key: Key = HOLDER, **extra: object) -> dict[str, object]:
    if isinstance(key, ed25519.Ed25519PrivateKey):
        x = to_base64url(key.public_key().public_bytes_raw())
        return {"kty": "OKP", "crv": "Ed25519", "x": x, **extra}
    numbers = key.public_key().public_numbers()
    x, y = (to_base64url(each.to_bytes(32)) for each in (numbers.x, numbers.y))
    return {"kty": "EC", "crv": "P-256", "x": x, "y": y, **extra}


def bound(key: Key = HOLDER) -> dict[str, object]:
    """The claims of a token that is bound to it."""
    return {"cnf": {"jkt": thumbprint(jwk(key))}}


def signed(header: bytes, payload: bytes, key: Key | None = HOLDER) -> str:
    """A genuine signature over exactly these bytes; None: an RSA key's."""
    signing = f"{to_base64url(header)}.{to_base64url(payload)}"
    if key is None:
        made = jwt.get_algorithm_by_name("RS256").sign(signing.encode(), rsa_key())
    else:
        name = "EdDSA" if isinstance(key, ed25519.Ed25519PrivateKey) else "ES256"
        made = jwt.get_algorithm_by_name(name).sign(signing.encode(), key)
    return f"{signing}.{to_base64url(made)}"


def proof(
    token: str,
    claims: Mapping[str, object] | None = None,
    header: Mapping[str, object] | None = None,
    *,
    key: Key | None = HOLDER,
    asked: Asked = ASKED,
    url: str = URL,
    now_s: int = NOW_S,
) -> str:
    """The good proof for this token and request with changes, genuinely signed."""
    shown = rsa_jwk() if key is None else jwk(key)
    alg = "RS256" if key is None else "ES256" if shown["kty"] == "EC" else "EdDSA"
    head = merged({"typ": "dpop+jwt", "alg": alg, "jwk": shown}, header or {})
    body = {
        "jti": "p-1",
        "htm": asked.method,
        "htu": url + asked.path,
        "iat": now_s,
        "ath": token_hash(token),
    }
    return signed(json.dumps(head).encode(), json.dumps(merged(body, claims or {})).encode(), key)


def digest(parts: Sequence[bytes]) -> bytes:
    return hmac.new(b"k" * 32, repr(list(parts)).encode(), hashlib.sha256).digest()


@dataclass
class Spent:
    """What was used, and what to raise instead of knowing."""

    seen: set[tuple[str, str]] = field(default_factory=set)
    error: Exception | None = None

    async def first(self, tenant: str, digest: str) -> bool:
        if self.error is not None:
            raise self.error
        known = (tenant, digest) in self.seen
        self.seen.add((tenant, digest))
        return not known


def proving(
    spent: Spent | None = None, urls: tuple[str, ...] = (URL,), since_s: int | None = None
) -> Proving:
    return Proving(spent or Spent(), digest, urls, since_s)
