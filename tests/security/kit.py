"""An issuer that signs anything, however wrong: what the token tests attack with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from security.failures import AuthDenied, Denied
from security.jwks import KeySet, load
from security.strict import to_base64url
from security.tokens import ClaimNames, Claims, IssuerRule, preparse, verify

ISSUER = "https://idp.test/"
NOW_S = 1_800_000_000
RULE = IssuerRule(
    issuer=ISSUER,
    audience="lockgate",
    algorithms=("ES256", "EdDSA", "RS256"),
    claims=ClaimNames(
        tenant="org",
        user="sub",
        project="prj",
        groups="groups",
        roles="roles",
        service_class="tier",
        tags="labels",
    ),
    leeway_s=30,
)
EC_KEY = ec.derive_private_key(0xC0FFEE, ec.SECP256R1())
ED_KEY = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
HEADER: Mapping[str, object] = {"alg": "ES256", "typ": "at+jwt", "kid": "ec"}
CLAIMS: Mapping[str, object] = {
    "iss": ISSUER,
    "aud": "lockgate",
    "sub": "alice",
    "org": "acme",
    "iat": NOW_S - 10,
    "exp": NOW_S + 600,
    "jti": "t-1",
}
DROP = object()
"""As a claim's or header member's value: leave it out."""


@cache
def rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def ec_jwk(**extra: object) -> dict[str, object]:
    numbers = EC_KEY.public_key().public_numbers()
    return {
        "kty": "EC",
        "crv": "P-256",
        "x": to_base64url(numbers.x.to_bytes(32)),
        "y": to_base64url(numbers.y.to_bytes(32)),
        "kid": "ec",
        **extra,
    }


def ed_jwk(**extra: object) -> dict[str, object]:
    x = ED_KEY.public_key().public_bytes_raw()
    return {"kty": "OKP", "crv": "Ed25519", "x": to_base64url(x), "kid": "ed", **extra}


def rsa_jwk(**extra: object) -> dict[str, object]:
    numbers = rsa_key().public_key().public_numbers()
    n = to_base64url(numbers.n.to_bytes(256))
    return {"kty": "RSA", "n": n, "e": "AQAB", "kid": "rsa", **extra}


def key_set(*keys: Mapping[str, object]) -> bytes:
    return json.dumps({"keys": keys or (ec_jwk(), ed_jwk())}).encode()


def keys(*entries: Mapping[str, object]) -> KeySet:
    return load(key_set(*entries))


def merged(base: Mapping[str, object], changes: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in {**base, **changes}.items() if value is not DROP}


def sign(header: bytes, payload: bytes, alg: str = "ES256") -> str:
    """A genuine signature over exactly these bytes."""
    signing = f"{to_base64url(header)}.{to_base64url(payload)}"
    private = {"ES256": EC_KEY, "EdDSA": ED_KEY}.get(alg) or rsa_key()
    signature = jwt.get_algorithm_by_name(alg).sign(signing.encode(), private)
    return f"{signing}.{to_base64url(signature)}"


def token(
    claims: Mapping[str, object] | None = None,
    header: Mapping[str, object] | None = None,
    alg: str = "ES256",
) -> str:
    """The good token with changes, genuinely signed."""
    head = json.dumps(merged({**HEADER, "alg": alg}, header or {})).encode()
    return sign(head, json.dumps(merged(CLAIMS, claims or {})).encode(), alg)


def accept(
    raw: str, *, rule: IssuerRule = RULE, now_s: int = NOW_S, among: KeySet | None = None
) -> Claims:
    """The way a token goes, without the network."""
    unverified = preparse(raw)
    key = (among or keys()).find(unverified.kid, unverified.alg)
    if key is None:
        raise AuthDenied(Denied.KEY_ID)
    return verify(unverified, rule, key, now_s)


def reason(raw: str, **how: object) -> Denied:
    """Why a token is refused; fails where it is accepted or anything else is raised."""
    with pytest.raises(AuthDenied) as caught:
        accept(raw, **how)  # type: ignore[arg-type]  # passed on as it came
    return caught.value.reason
