"""API keys for services: minted, recognised, and turned into the digest by which they are stored.

Pure.  Refuses to know where keys are kept: a store holds `digest`s only, and a digest is keyed, so
that a stolen table neither holds keys nor confirms guesses.

    lg_<id>_<secret>     id: 16 of a–z 2–7 (80 random bits), public, for lists, logs and audit
                         secret: base64url of 32 random bytes and a CRC-32 over everything before

The checksum is no secret and proves nothing; it lets a typing error, and most scanning, be refused
before a store is asked.  Source: SECURITY.md §5 (LiteLLM, vLLM rows: full digest, constant time).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

from security.failures import AuthDenied, Denied
from security.strict import base64url, to_base64url

PREFIX = "lg_"
_FORM = re.compile(r"lg_([a-z2-7]{16})_([A-Za-z0-9_-]{48})", re.ASCII)
_CREDENTIAL = re.compile(r"lg_[a-z2-7]{16}_|eyJ[A-Za-z0-9_-]{1,8192}\.", re.ASCII)
_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class NewKey:
    """`secret` is the whole key, shown once and kept by nobody here."""

    id: str
    secret: str = field(repr=False)
    digest: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ParsedKey:
    id: str
    secret: str = field(repr=False)


def mint(rng: Callable[[int], bytes], pepper: bytes) -> NewKey:
    """`rng(n)` gives n random bytes (`os.urandom`)."""
    id_ = base64.b32encode(rng(10)).decode("ascii").lower()
    head, body = f"{PREFIX}{id_}_", rng(_SECRET_BYTES)
    secret = head + to_base64url(body + _checksum(head, body))
    return NewKey(id_, secret, digest(secret, pepper))


def parse(raw: str) -> ParsedKey:
    """Raises AuthDenied for anything that `mint` cannot have made."""
    form = _FORM.fullmatch(raw)
    if form is None:
        raise AuthDenied(Denied.KEY_MALFORMED)
    id_, tail = form.groups()
    data = base64url(tail)  # 48 characters of the alphabet are 36 bytes, in one way only
    body, checksum = data[:_SECRET_BYTES], data[_SECRET_BYTES:]
    if checksum != _checksum(f"{PREFIX}{id_}_", body):
        raise AuthDenied(Denied.KEY_MALFORMED)
    return ParsedKey(id_, raw)


def names_credential(text: str) -> bool:
    """Whether `text` holds one of our keys or a JWT: for what a person may paste in place of an id."""
    return _CREDENTIAL.search(text) is not None


def digest(secret: str, pepper: bytes) -> bytes:
    """What a store keeps and looks up: HMAC-SHA-256 of the whole key under the keyring's pepper."""
    assert len(pepper) >= 32
    return hmac.new(pepper, b"lockgate/api-key/v1\x00" + secret.encode(), hashlib.sha256).digest()


def same(stored: bytes, presented: bytes) -> bool:
    """In constant time."""
    return hmac.compare_digest(stored, presented)


def _checksum(head: str, body: bytes) -> bytes:
    return zlib.crc32(head.encode() + body).to_bytes(4)
