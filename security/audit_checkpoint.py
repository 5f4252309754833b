"""Signed checkpoints: how large the log was, and its Merkle root, in a form that can be kept elsewhere.

    lockgate/audit/<chain>          the origin
    12345                           records
    <base64>                        the root over them
    time 1764460800000              milliseconds
    <empty line>
    — <key name> <base64: four bytes that name the key, then the Ed25519 signature>

Whoever keeps one finds an end cut off or a record rewritten later, be it by somebody with all our keys.
In a log's folder, `checkpoints.log` holds one JSON line for each, with the tree's frontier (so that a
start need not read the whole log) and the proof that the one before it begins it.

Signing is `audit_signer`'s.  Imports nothing but the standard library, and `cryptography` where a
signature is looked at.  Source: C2SP signed-note and tlog-checkpoint; RFC 9162 §2.1.4; RFC 8032.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from security.audit_chain import canonical, read
from security.merkle import HASH_BYTES, Frontier, verify_consistency

CHECKPOINT_FILE = "checkpoints.log"
ORIGIN = "lockgate/audit/"
NOTE_BYTES_MAX = 4096
LINE_BYTES_MAX = 8192
_ED25519 = b"\1"
_TEXT = re.compile(
    r"lockgate/audit/([0-9a-f]{32})\n(0|[1-9][0-9]{0,15})\n([A-Za-z0-9+/]{43}=)\ntime ([0-9]{1,16})\n"
)
_SIGNATURE = re.compile(r"— ([^\s+]{1,80}) ([A-Za-z0-9+/]{91}=)\n")
_VKEY = re.compile(r"([^\s+]{1,80})\+([0-9a-f]{8})\+([A-Za-z0-9+/]{44})")


@dataclass(frozen=True, slots=True)
class PublicKey:
    """`name` says whose it is; a verifier chooses by name and id, then trusts the signature alone."""

    name: str
    raw: bytes

    @property
    def id(self) -> bytes:
        return hashlib.sha256(self.name.encode() + b"\n" + _ED25519 + self.raw).digest()[:4]

    def __str__(self) -> str:
        """The one line by which it is handed on."""
        return f"{self.name}+{self.id.hex()}+{_base64(_ED25519 + self.raw)}"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    chain: str
    size: int
    root: bytes
    at_ms: int

    def text(self) -> str:
        return f"{ORIGIN}{self.chain}\n{self.size}\n{_base64(self.root)}\ntime {self.at_ms}\n"


@dataclass(frozen=True, slots=True)
class Stored:
    """A line of `checkpoints.log`, unchecked but for its form."""

    note: str
    frontier: tuple[bytes, ...]
    consistency: tuple[bytes, ...]


def parse_public_key(line: str) -> PublicKey | None:
    match = _VKEY.fullmatch(line.strip())
    if match is None:
        return None
    data = base64.b64decode(match[3])
    key = PublicKey(match[1], data[1:])
    return key if data[:1] == _ED25519 and key.id.hex() == match[2] else None


def note_of(text: str, key: PublicKey, signature: bytes) -> str:
    """A signed note: `text` (whole lines, none empty) under its signature."""
    return f"{text}\n— {key.name} {_base64(key.id + signature)}\n"


def open_note(note: str, key: PublicKey | None) -> str | None:
    """The text of a note; None where it is none, or not signed by `key`.  Without a key nobody says
    who signed.  Signatures of others (witnesses) may stand beside ours."""
    text, gap, signatures = note.partition("\n\n")
    lines = [_SIGNATURE.fullmatch(line) for line in signatures.splitlines(keepends=True)]
    if not gap or not lines or len(note) > NOTE_BYTES_MAX:
        return None
    found: list[bytes] = []
    for line in lines:
        data = base64.b64decode(line[2]) if line is not None else b""
        if line is None or _base64(data) != line[2]:
            return None  # one signature has one writing
        if key is not None and line[1] == key.name:
            found.append(data)
    text += "\n"
    if key is not None and not any(
        _is_signed(key, text.encode(errors="replace"), each) for each in found
    ):
        return None
    return text


def read_note(note: str, key: PublicKey | None) -> Checkpoint | None:
    """None where it is no checkpoint, or not signed by `key`."""
    text = open_note(note, key)
    match = _TEXT.fullmatch(text) if text is not None else None
    if match is None:
        return None
    root = base64.b64decode(match[3])
    checkpoint = Checkpoint(match[1], int(match[2]), root, int(match[4]))
    return checkpoint if checkpoint.text() == text else None


def _is_signed(key: PublicKey, text: bytes, signature: bytes) -> bool:
    # Here and not above: chain and tree can be verified without it.
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if signature[:4] != key.id:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(key.raw).verify(signature[4:], text)
    except (InvalidSignature, ValueError):
        return False
    return True


def encode_stored(stored: Stored) -> bytes:
    value: dict[str, object] = {
        "note": stored.note,
        "frontier": to_base64(stored.frontier),
        "consistency": to_base64(stored.consistency),
    }
    line = canonical(value) + b"\n"
    assert len(line) <= LINE_BYTES_MAX
    return line


def decode_stored(line: bytes) -> Stored | None:
    """None for anything but what `encode_stored` made, byte for byte."""
    value = read(line) if len(line) <= LINE_BYTES_MAX else {}
    note, frontier = value.get("note"), hashes_in(value.get("frontier"))
    consistency = hashes_in(value.get("consistency"))
    if not isinstance(note, str) or frontier is None or consistency is None:
        return None
    stored = Stored(note, frontier, consistency)
    return stored if encode_stored(stored) == line else None


def frontier_of(stored: Stored, checkpoint: Checkpoint) -> Frontier | None:
    """The tree that a checkpoint was made of; None where the two do not fit."""
    if checkpoint.size.bit_count() != len(stored.frontier):
        return None
    frontier = Frontier(checkpoint.size, stored.frontier)
    return frontier if frontier.root() == checkpoint.root else None


def continues(stored: Stored, before: Checkpoint | None, after: Checkpoint) -> bool:
    """Whether the proof beside a checkpoint holds: the one before it begins it."""
    if before is None:
        return not stored.consistency
    return before.chain == after.chain and verify_consistency(
        before.size, before.root, after.size, after.root, stored.consistency
    )


def to_base64(hashes: Sequence[bytes]) -> str:
    return _base64(b"".join(hashes))


def hashes_in(text: object) -> tuple[bytes, ...] | None:
    if not isinstance(text, str):
        return None
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    if len(data) % HASH_BYTES or _base64(data) != text:
        return None
    return tuple(data[at : at + HASH_BYTES] for at in range(0, len(data), HASH_BYTES))


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
