"""A proof that one record stands in the log at its number, to be checked without the log.

    {"checkpoint": signed note, "index": n, "proof": base64 of hashes, "record": the record's line}

Whoever has the public key checks the note's signature, hashes the line, and climbs to the note's root.
Imports no more than `audit_verify`.  Source: RFC 9162 §2.1.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from security.audit_chain import canonical, leaf, read
from security.audit_checkpoint import (
    CHECKPOINT_FILE,
    PublicKey,
    decode_stored,
    hashes_in,
    read_note,
    to_base64,
)
from security.audit_checkpoint import LINE_BYTES_MAX as STORED_BYTES_MAX
from security.audit_walk import lines_from, segments
from security.merkle import gather, inclusion_spans, verify_inclusion

PROOF_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class Proof:
    """`record`: the line with its end."""

    note: str
    index: int
    record: bytes
    path: tuple[bytes, ...]


def last_note(folder: Path, *, covers: int = 0) -> str | None:
    """The last checkpoint of a directory, unchecked; None where none covers record `covers`."""
    note = None
    try:
        with (folder / CHECKPOINT_FILE).open("rb") as file:
            while line := file.readline(STORED_BYTES_MAX + 1):
                stored = decode_stored(line)
                found = read_note(stored.note, None) if stored is not None else None
                if stored is not None and found is not None and found.size > covers:
                    note = stored.note
    except FileNotFoundError:
        pass
    return note


def prove(folder: Path, index: int, note: str) -> Proof | None:
    """In one pass over the log.  None where the log is not the one that the checkpoint is of."""
    checkpoint = read_note(note, None)
    if checkpoint is None or not 0 <= index < checkpoint.size:
        return None
    parts = segments(folder)
    record = next(lines_from(parts, index), None)
    if record is None:
        return None
    leaves = (leaf(line) for line in lines_from(parts, 0))
    try:
        path = tuple(gather(inclusion_spans(index, checkpoint.size), leaves))
    except ValueError:
        return None
    fits = verify_inclusion(leaf(record), index, checkpoint.size, path, checkpoint.root)
    return Proof(note, index, record, path) if fits else None


def encode_proof(proof: Proof) -> bytes:
    value: dict[str, object] = {
        "checkpoint": proof.note,
        "index": proof.index,
        "proof": to_base64(proof.path),
        "record": proof.record.decode("ascii", "replace").removesuffix("\n"),
    }
    return canonical(value)


def decode_proof(data: bytes) -> Proof | None:
    value = read(data) if len(data) <= PROOF_BYTES_MAX else {}
    note, index, record = value.get("checkpoint"), value.get("index"), value.get("record")
    path = hashes_in(value.get("proof"))
    if not isinstance(note, str) or type(index) is not int or not isinstance(record, str):
        return None
    if path is None or not record.isascii() or "\n" in record:
        return None
    return Proof(note, index, record.encode() + b"\n", path)


def holds(proof: Proof, public: PublicKey | None) -> bool:
    """Whether the record is in the log that the key signs for.  Without a key: in the one that the
    checkpoint speaks of, whoever made it."""
    checkpoint = read_note(proof.note, public)
    if checkpoint is None or read(proof.record).get("seq") != proof.index:
        return False
    return verify_inclusion(
        leaf(proof.record), proof.index, checkpoint.size, proof.path, checkpoint.root
    )
