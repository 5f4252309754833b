"""Who signs checkpoints and purge records: an Ed25519 key that hangs on the first root key.

Derived, as the MAC key of the records is, so there is nothing more to keep or to lose.  Its public half
is for everybody (`lockgate audit key`).  Source: RFC 8032; SECURITY.md §6 (Keys).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from security.audit_checkpoint import PublicKey, note_of
from security.keyring import Keyring, Purpose

NAME = "lockgate-audit/"


@dataclass(frozen=True, slots=True)
class Signer:
    public: PublicKey
    _private: Ed25519PrivateKey = field(repr=False)

    @classmethod
    def of(cls, keyring: Keyring) -> Signer:
        return cls.from_seed(keyring.derive(Purpose.AUDIT_SIGNING), NAME + keyring.id)

    @classmethod
    def from_seed(cls, seed: bytes, name: str) -> Signer:
        private = Ed25519PrivateKey.from_private_bytes(seed)
        return cls(PublicKey(name, private.public_key().public_bytes_raw()), private)

    def note(self, text: str) -> str:
        """`text` signed.  Its first line says what it is, so that no note passes for another kind."""
        return note_of(text, self.public, self._private.sign(text.encode()))


@dataclass(frozen=True, slots=True)
class AuditKeys:
    """What a log is written with: the MAC key of its records and head, and who signs."""

    mac: bytes = field(repr=False)
    signer: Signer

    @classmethod
    def of(cls, keyring: Keyring) -> AuditKeys:
        return cls(keyring.derive(Purpose.AUDIT), Signer.of(keyring))
