"""Texts at rest: sealed under their tenant's secret, so that destroying the secret destroys them.

    key    = HKDF-SHA256(secret, "seal/v1" ‖ enc(purpose, tenant, id, version))
    record = 0x01 ‖ secret's version, 4 bytes ‖ nonce, 12 ‖ AES-256-GCM(key, nonce, text)

Purpose, tenant, id, version and the head of the record are authenticated with it, so that no record can
be put in another's place.  A key is one record's, so nonces never meet.  What belongs to no tenant (the
operator's public templates) is sealed under a secret of the keyring's, version 0.

Refuses to know: where records are kept, what a text is for.
Source: SECURITY.md §6 (Keys), P10, P12; NIST SP 800-38D; RFC 5869.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from policies.scope.encoding import enc
from security.keyring_tenants import SecretGone, TenantSecret

FORMAT: Final = b"\x01"
NONCE_BYTES: Final = 12
HEAD_BYTES: Final = 5
KEYRING_VERSION: Final = 0


class SealPurpose(StrEnum):
    """Closed: a new kind of record is a new member."""

    DOCUMENT = "document"
    TEMPLATE = "template"
    ABOUT = "about"  # title and the like: what a text is called says what it is about
    RESPONSE = "response"  # what was asked and answered, where it is stored
    RESULT = "result"  # what was answered by an idempotency key


class SealBroken(Exception):
    """The record is not what was written there: altered, moved, or of another database."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record stands, and nowhere else.  `tenant` None: the operator's."""

    purpose: SealPurpose
    tenant: str | None
    id: str
    version: int

    def encoded(self) -> bytes:
        return enc((self.purpose.value, self.tenant, self.id, self.version))


@dataclass(frozen=True, slots=True)
class Seals:
    """`public`: the keyring's secret.  `current` and `at`: `TenantSecrets`'; what they raise passes."""

    public: bytes = field(repr=False)
    current: Callable[[str], TenantSecret] = field(repr=False)
    at: Callable[[str, int], TenantSecret] = field(repr=False)
    rng: Callable[[int], bytes]

    def seal(self, place: Place, text: str) -> bytes:
        """SecretGone where the tenant has no secret."""
        return self.seal_bytes(place, text.encode())

    def open(self, place: Place, record: bytes) -> str:
        """SecretGone where the secret was destroyed; SealBroken where the record is not this place's."""
        return self.open_bytes(place, record).decode()

    def seal_bytes(self, place: Place, data: bytes) -> bytes:
        version, secret = KEYRING_VERSION, self.public
        if place.tenant is not None:
            newest = self.current(place.tenant)
            version, secret = newest.version, newest.secret
        head = FORMAT + version.to_bytes(4)
        nonce = self.rng(NONCE_BYTES)
        cipher = AESGCM(_key(secret, place))
        return head + nonce + cipher.encrypt(nonce, data, place.encoded() + head)

    def open_bytes(self, place: Place, record: bytes) -> bytes:
        version = secret_version(record)
        if (version == KEYRING_VERSION) != (place.tenant is None):
            raise SealBroken(f"the record of {place.id} is sealed for another owner")
        secret = self.public if place.tenant is None else self.at(place.tenant, version).secret
        head, nonce = record[:HEAD_BYTES], record[HEAD_BYTES : HEAD_BYTES + NONCE_BYTES]
        try:
            return AESGCM(_key(secret, place)).decrypt(
                nonce, record[HEAD_BYTES + NONCE_BYTES :], place.encoded() + head
            )
        except (InvalidTag, ValueError):
            raise SealBroken(
                f"the record of {place.id}, version {place.version}, was altered or moved; restore the "
                "database from a backup"
            ) from None


def secret_version(record: bytes) -> int:
    """Which version of its tenant's secret opens it."""
    if len(record) < HEAD_BYTES + NONCE_BYTES or record[:1] != FORMAT:
        raise SealBroken("this is no sealed record of a format that is known here")
    return int.from_bytes(record[1:HEAD_BYTES])


def _key(secret: bytes, place: Place) -> bytes:
    return HKDF(SHA256(), 32, salt=None, info=b"seal/v1" + place.encoded()).derive(secret)


__all__ = ["Place", "SealBroken", "SealPurpose", "Seals", "SecretGone", "secret_version"]
