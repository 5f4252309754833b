"""A local issuer for development mode: an ES256 key on this machine, tokens like a real issuer's.

Refuses to be one in production: its name ends in `.invalid` (RFC 2606), which no real issuer can
have, and `is_dev_issuer` lets a production configuration refuse it.  Its tokens take the same road
as everybody's: a rule, a key-set file, `tokens.verify`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from policies.facts import Role
from security.jwks import public_jwk, thumbprint
from security.keyring import KeyringError, create_secret_file, read_secret_file
from security.tokens import ClaimNames, IssuerRule

ISSUER = "https://dev.lockgate.invalid/"
AUDIENCE = "lockgate"
KEY_FILE = "dev-issuer.pem"
JWKS_FILE = "dev-jwks.json"
PEM_BYTES_MAX = 16_384
_MAKE_ONE = "'openssl genpkey -algorithm ed25519 -out FILE' makes one."
NO_TAGS: Mapping[str, str] = MappingProxyType({})
RULE = IssuerRule(
    issuer=ISSUER,
    audience=AUDIENCE,
    algorithms=("ES256",),
    claims=ClaimNames(
        tenant="tenant",
        user="sub",
        project="project",
        groups="groups",
        roles="roles",
        service_class="class",
        tags="tags",
    ),
)


def is_dev_issuer(name: str) -> bool:
    """Also for spellings of the name that a URL reader would take for it."""
    return "lockgate.invalid" in name.casefold()


@dataclass(frozen=True, slots=True)
class DevIssuer:
    jwks_path: Path
    kid: str
    _key: EllipticCurvePrivateKey = field(repr=False)

    def mint(
        self,
        *,
        tenant: str | None,
        user: str,
        now_s: int,
        ttl_s: int,
        jti: str,
        roles: Sequence[Role] = (),
        project: str | None = None,
        groups: Sequence[str] = (),
        service_class: str | None = None,
        tags: Mapping[str, str] = NO_TAGS,
        bound_to: str | None = None,
    ) -> str:
        """`bound_to`: the thumbprint of the key that its holder must prove (RFC 9449)."""
        claims: dict[str, object] = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": user,
            "iat": now_s,
            "exp": now_s + ttl_s,
            "jti": jti,
        }
        optional: dict[str, object] = {
            "tenant": tenant,
            "project": project,
            "class": service_class,
            "roles": [role.value for role in roles],
            "groups": list(groups),
            "tags": dict(tags),
            "cnf": None if bound_to is None else {"jkt": bound_to},
        }
        claims |= {name: value for name, value in optional.items() if value}
        headers = {"typ": "at+jwt", "kid": self.kid}
        return jwt.encode(claims, self._key, algorithm="ES256", headers=headers)


def open_dev_issuer(state_dir: Path, *, rng: Callable[[int], bytes] = os.urandom) -> DevIssuer:
    """Read the issuer's key under `state_dir`, creating it on first start.  Raises KeyringError."""
    path = state_dir / KEY_FILE
    if not path.exists() and not path.is_symlink():
        fresh = generate_private_key(SECP256R1())
        pem = fresh.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        create_secret_file(path, pem, rng=rng)
    try:
        key = load_pem_private_key(read_secret_file(path, bytes_max=4096), password=None)
    except ValueError as error:
        raise KeyringError(f"{path} is not a private key. Delete it to have a new one.") from error
    if not isinstance(key, EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
        raise KeyringError(f"{path} is not a P-256 key. Delete it to have a new one.")
    jwk = public_jwk(key.public_key())
    kid = thumbprint(jwk)
    public = {"keys": [{**jwk, "kid": kid, "alg": "ES256", "use": "sig"}]}
    jwks_path = state_dir / JWKS_FILE
    draft = jwks_path.with_name(f".{JWKS_FILE}.{rng(8).hex()}")
    draft.write_text(json.dumps(public, indent=1) + "\n")
    draft.replace(jwks_path)  # a reader sees the old set or the new, never half of one
    return DevIssuer(jwks_path, kid, key)


def holders_thumbprint(path: Path) -> str:
    """Of the key that a token is to be bound to (RFC 9449): a PEM file, P-256 or Ed25519, its private or its
    public half.  Raises KeyringError."""
    try:
        with path.open("rb") as file:
            data = file.read(PEM_BYTES_MAX)
        private = b"PRIVATE KEY" in data
        key: object = load_pem_private_key(data, None) if private else load_pem_public_key(data)
    except OSError as error:
        raise KeyringError(f"{path} cannot be read: {error.strerror}.") from error
    except (TypeError, ValueError, UnsupportedAlgorithm) as error:
        raise KeyringError(f"{path} is no PEM key without a password. {_MAKE_ONE}") from error
    if isinstance(key, EllipticCurvePrivateKey | Ed25519PrivateKey):
        key = key.public_key()
    if isinstance(key, EllipticCurvePublicKey) and key.curve.name == "secp256r1":
        return thumbprint(public_jwk(key))
    if isinstance(key, Ed25519PublicKey):
        return thumbprint(public_jwk(key))
    raise KeyringError(f"{path} is neither a P-256 nor an Ed25519 key. {_MAKE_ONE}")
