"""What is to be written next: records into lines, lines into a batch, a checkpoint when one is due.

Pure: the same batch goes to every directory of the log, so that they hold the same bytes.  A batch
begins with the checkpoint over what is there before it.  None begins a segment without one, so that a
start reads no further back than the last segment.
Refuses to know: disks, threads, time (`now_ms` is an argument).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from security.audit import AuditEvent, encode
from security.audit_chain import Head, encode_head, leaf
from security.audit_checkpoint import Checkpoint, Stored, encode_stored
from security.audit_files import Batch, Place
from security.audit_proof import Proof
from security.audit_signer import AuditKeys
from security.merkle import Frontier, consistency_from, grown, inclusion_from

Timed = tuple[AuditEvent, int]


@dataclass(frozen=True, slots=True)
class Tip:
    """The end of the log.  `signed`: the tree under the last checkpoint, of `signed_at_ms`; `since`: the
    leaves after it, save in a log that was never signed and is to be."""

    place: Place
    tree: Frontier = field(default_factory=Frontier)
    signed: Frontier = field(default_factory=Frontier)
    signed_at_ms: int = 0
    since: tuple[bytes, ...] = ()

    @property
    def unsigned(self) -> int:
        return self.tree.size - self.signed.size


@dataclass(frozen=True, slots=True)
class Composed:
    batch: Batch
    after: Tip
    first: int
    """The number of the first record that was asked for."""
    lines: tuple[bytes, ...]
    """Of those that were asked for."""
    note: str | None
    """The checkpoint that the batch begins with."""


def compose(
    tip: Tip,
    events: Sequence[Timed],
    *,
    keys: AuditKeys,
    now_ms: int,
    segment_bytes: int,
    sign: bool,
) -> Composed:
    """`sign`: whether a checkpoint is due, where there is anything new to cover."""
    rotates = bool(events) and tip.place.size >= segment_bytes
    checkpoint, note = b"", None
    if tip.unsigned and (sign or rotates):
        checkpoint, note, tip = _signed(tip, keys, now_ms)
    head, place = tip.place.head, tip.place
    first = head.link.count
    if rotates:
        place = replace(place, segment=first, size=0)
    if events and place.size == 0 and first > 0:
        # A segment begins with the hash that it follows, so that a start reads only the last.
        told = AuditEvent(kind="audit.segment", target=head.link.last.hex())
        events = [(told, events[0][1]), *events]
        first += 1
    lines, leaves, link, tree = [], list(tip.since), head.link, tip.tree
    for event, at_ms in events:
        line, link = encode(event, at_ms, link, keys.mac)
        lines.append(line)
        leaves.append(leaf(line))
        tree = tree.add(leaves[-1])
    data = b"".join(lines)
    after = replace(place, head=replace(head, link=link), size=place.size + len(data))
    return Composed(
        Batch(after, encode_head(after.head, keys.mac), data, checkpoint),
        replace(tip, place=after, tree=tree, since=tuple(leaves)),
        first,
        tuple(lines[first - head.link.count :]),
        note,
    )


def inclusion(tip: Tip, number: int, line: bytes, note: str) -> Proof:
    """Of a record after the last checkpoint, under `note`, which was made of all of `tip`."""
    at = number - tip.signed.size
    before = grown(tip.signed, tip.since[:at])
    return Proof(note, number, line, tuple(inclusion_from(before, tip.since[at:])))


def _signed(tip: Tip, keys: AuditKeys, now_ms: int) -> tuple[bytes, str, Tip]:
    head = tip.place.head
    assert head.link.count == tip.tree.size
    checkpoint = Checkpoint(head.chain, tip.tree.size, tip.tree.root(), max(0, now_ms))
    proof = consistency_from(tip.signed, tip.since)
    note = keys.signer.note(checkpoint.text())
    line = encode_stored(Stored(note, tip.tree.hashes, tuple(proof)))
    place = replace(
        tip.place,
        head=Head(head.chain, head.link, signed=tip.tree.size),
        checkpoints=tip.place.checkpoints + len(line),
    )
    return line, note, Tip(place, tip.tree, tip.tree, now_ms)
