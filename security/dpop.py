"""Proofs of possession (RFC 9449, DPoP): one small JWT a request, by which a stolen token alone is worth nothing.

Pure: the request, the token's text and the time are arguments.  Refuses to know issuers, what was proven
before (`proving`), HTTP.  A proof is read here alone, without the token's being believed, so that what is
wrong with it says nothing about the token (SECURITY.md P8).

The order is fixed: `read` bounds and reads, `check` holds it against the request, `verify` makes the key
and checks the signature, which costs most and comes last.

    member   passes while
    typ      `dpop+jwt`, and no other header than typ, alg, jwk
    alg      ES256, or EdDSA by either of its names (Ed25519 since RFC 9864)
    jwk      public, of that algorithm, as strict as an issuer's (`jwks`)
    htm, htu the request's method; one of the URLs that this request has outside, without query, fragment
    iat      now − 60 s ≤ iat ≤ now + 5 s
    jti      1 to 256 characters; used once (`proving`)
    ath      base64url(SHA-256(token))

Two algorithms, since each more is one more parser before anybody is known: ES256 is what every browser and
SDK makes, Ed25519 what new ones prefer.  RSA keys would make proofs, and the check of strangers' keys, large.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import jwt

from security.failures import AuthDenied, Denied
from security.jwks import BadKeySet, load_key, thumbprint
from security.strict import NotStrict, base64url, json_object, to_base64url

PROOF_BYTES_MAX = 8192
ALGORITHMS: Mapping[str, str] = {"ES256": "ES256", "EdDSA": "EdDSA", "Ed25519": "EdDSA"}
"""As a proof names it, and as a key does."""
PAST_S, FUTURE_S = 60, 5
ID_CHARS_MAX = 256
NONCE_CHARS_MAX = 256
URL_CHARS_MAX = 2048
_DEPTH_MAX = 4
_HEADER = frozenset({"typ", "alg", "jwk"})
_URL = re.compile(
    r"(https?)://([A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::([0-9]{0,5}))?"
    r"((?:/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*)?)(?:[?#][\x21-\x7e]*)?",
    re.ASCII | re.IGNORECASE,
)
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})?", re.ASCII)
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_PORTS = {"https": "443", "http": "80"}
_SIGNATURES = {name: jwt.get_algorithm_by_name(name) for name in set(ALGORITHMS.values())}


@dataclass(frozen=True, slots=True)
class Asked:
    """The request that a proof must be for.  `path`: as it was sent, without the query; `host`: of its
    Host header, which the front has found in its list."""

    method: str
    path: str
    host: str


@dataclass(frozen=True, slots=True)
class Proof:
    """Read, and not believed until `verify`.  `thumbprint`: of its key (RFC 7638)."""

    raw: str = field(repr=False)
    alg: str
    jwk: Mapping[str, object] = field(repr=False)
    thumbprint: str
    method: str
    url: str = field(repr=False)
    issued_at_s: int
    id: str = field(repr=False)
    token_hash: str = field(repr=False)
    nonce: str | None = field(repr=False)


def read(raw: str) -> Proof:
    """Raises AuthDenied and nothing else, whatever it is given."""
    if len(raw) > PROOF_BYTES_MAX:
        raise AuthDenied(Denied.PROOF_SHAPE)
    parts = raw.split(".", 3)
    if len(parts) != 3 or not all(parts):
        raise AuthDenied(Denied.PROOF_SHAPE)
    try:
        head, body, _ = (base64url(part) for part in parts)
        header = json_object(head, depth_max=_DEPTH_MAX)
        claims = json_object(body, depth_max=_DEPTH_MAX)
    except NotStrict as error:
        raise AuthDenied(Denied.PROOF_SHAPE) from error
    if header.keys() != _HEADER or header["typ"] != "dpop+jwt":
        raise AuthDenied(Denied.PROOF_HEADER)
    alg, jwk = header["alg"], header["jwk"]
    if not isinstance(alg, str) or alg not in ALGORITHMS:
        raise AuthDenied(Denied.PROOF_ALGORITHM)
    if not isinstance(jwk, dict):
        raise AuthDenied(Denied.PROOF_KEY)
    try:
        print_ = thumbprint(jwk)
    except BadKeySet as error:
        raise AuthDenied(Denied.PROOF_KEY) from error
    issued = claims.get("iat")
    if type(issued) is not int:  # a bool is an int elsewhere
        raise AuthDenied(Denied.PROOF_CLAIM)
    return Proof(
        raw=raw,
        alg=alg,
        jwk=jwk,
        thumbprint=print_,
        method=_text(claims, "htm", 16),
        url=_text(claims, "htu", URL_CHARS_MAX),
        issued_at_s=issued,
        id=_text(claims, "jti", ID_CHARS_MAX),
        token_hash=_text(claims, "ath", 43),
        nonce=_text(claims, "nonce", NONCE_CHARS_MAX) if "nonce" in claims else None,
    )


def check(proof: Proof, asked: Asked, urls: Sequence[str], token: str, now_s: int) -> None:
    """Whether it is for this request, this token and this minute.  `urls`: see `targets`."""
    if proof.method != asked.method:
        raise AuthDenied(Denied.PROOF_METHOD)
    if normal_url(proof.url) not in targets(asked, urls):
        raise AuthDenied(Denied.PROOF_URL)
    if not now_s - PAST_S <= proof.issued_at_s <= now_s + FUTURE_S:
        raise AuthDenied(Denied.PROOF_TIME)
    if proof.token_hash != token_hash(token):
        raise AuthDenied(Denied.PROOF_TOKEN)


def verify(proof: Proof) -> None:
    """The signature, by the proof's own key.  That the token is bound to this key is `tokens.check`'s."""
    try:
        key = load_key(proof.jwk)
    except BadKeySet as error:
        raise AuthDenied(Denied.PROOF_KEY) from error
    name = ALGORITHMS[proof.alg]
    if key is None or name not in key.algorithms:
        raise AuthDenied(Denied.PROOF_KEY)
    signed, _, signature = proof.raw.rpartition(".")
    if not _SIGNATURES[name].verify(signed.encode("ascii"), key.key, base64url(signature)):
        raise AuthDenied(Denied.PROOF_SIGNATURE)


def token_hash(token: str) -> str:
    """RFC 9449 §4.2, `ath`."""
    return to_base64url(hashlib.sha256(token.encode("latin-1")).digest())


def targets(asked: Asked, urls: Sequence[str]) -> tuple[str | None, ...]:
    """What the request may be called from outside: below each of `urls` (bases as `normal_url` writes
    them), or, where there is none, under its own Host by either scheme, since TLS ends before us."""
    bases = urls or [f"{scheme}://{asked.host}" for scheme in _PORTS]
    return tuple(url for base in bases if (url := normal_url(base + asked.path)) is not None)


def normal_url(text: str) -> str | None:
    """Scheme, host and path in one spelling (RFC 3986 §6.2.2, §6.2.3), without query and fragment; None
    where it is no such URL.  Dot segments stay: the front serves no path that has them."""
    found = _URL.fullmatch(text)
    if found is None:
        return None
    scheme, host, port, path = found[1].lower(), found[2].lower(), found[3], found[4] or "/"
    where = host if port in {None, "", _PORTS[scheme]} else f"{host}:{port}"
    try:
        return f"{scheme}://{where}{_ESCAPE.sub(_escape, path)}"
    except NotStrict:
        return None


def _escape(found: re.Match[str]) -> str:
    if found[1] is None:
        raise NotStrict("not percent-encoded")
    char = chr(int(found[1], 16))
    return char if char in _UNRESERVED else found[0].upper()


def _text(claims: Mapping[str, object], name: str, chars_max: int) -> str:
    value = claims.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= chars_max:
        raise AuthDenied(Denied.PROOF_CLAIM)
    return value
