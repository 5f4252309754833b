"""From the directories of a log as they were left to one log that goes on: the way back from a crash.

Each directory's last segment is followed to its end.  Beyond its head, a half-written end was promised to
nobody: it is cut off and `audit.recovered` says so.  The log is the longest that holds everything which
any head and any checkpoint vouches for; the other directories are brought up to it.  Any other fault
refuses to start: evidence is for people to look at, not for us to mend.
Source: SECURITY.md §4 (L8), §6; DESIGN.md, settled question 15.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from security.audit import AuditEvent
from security.audit_catch_up import SourceBroken, catch_up
from security.audit_chain import GENESIS, LINE_BYTES_MAX, Head, Link, leaf, read
from security.audit_checkpoint import (
    CHECKPOINT_FILE,
    Checkpoint,
    PublicKey,
    decode_stored,
    frontier_of,
    read_note,
)
from security.audit_checkpoint import LINE_BYTES_MAX as STORED_BYTES_MAX
from security.audit_files import Disk, Files, Place
from security.audit_signer import AuditKeys
from security.audit_walk import (
    HEAD_FILE,
    Parts,
    Walk,
    hash_at,
    lines_from,
    place_of,
    read_head,
    segment_name,
    segments,
    walk,
)
from security.audit_writer import Tip
from security.merkle import Frontier, grown

GROUP_MAX = 128
TORN_BYTES_MAX = (GROUP_MAX + 2) * LINE_BYTES_MAX


class AuditCorrupt(Exception):
    """The log on disk is not what we left.  Nothing was changed; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Signed:
    """The last whole checkpoint of a directory, and where it ends."""

    checkpoint: Checkpoint | None = None
    tree: Frontier = field(default_factory=Frontier)
    begins: int = 0
    ends: int = 0
    rest_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """A directory as it was left, and found fit by itself."""

    folder: Path
    head: Head | None
    parts: Parts
    walked: Walk
    signed: Signed

    @property
    def count(self) -> int:
        return self.walked.link.count

    @property
    def chain(self) -> str | None:
        return self.head.chain if self.head is not None else self.walked.chain


@dataclass(frozen=True, slots=True)
class Started:
    """`told`: what happened, to be recorded first."""

    files: tuple[Files, ...]
    tip: Tip
    told: tuple[AuditEvent, ...]


def start(
    folders: Sequence[Path],
    *,
    keys: AuditKeys,
    rng: Callable[[int], bytes],
    disk_of: Callable[[Path], Disk],
) -> Started:
    """Lock all directories and bring them to one end.  Raises AuditLocked, AuditCorrupt, OSError."""
    with ExitStack() as undo:
        taken: list[Files] = []
        for folder in folders:
            taken.append(Files.lock(folder, disk_of(folder)))
            undo.callback(taken[-1].close)
        found = [_find(folder, keys) for folder in folders]
        best = _longest(found)
        tip = _tip(found[best], rng)
        told = [AuditEvent(kind="audit.opened", target=tip.place.head.chain)] * (tip.tree.size == 0)
        for index, (each, files) in enumerate(zip(found, taken, strict=True)):
            name = str(index) if len(found) > 1 else None
            if index == best:
                files.go_to(tip.place)
                cut = each.walked.rest_bytes
            else:
                cut = _join(each, files, found[best], tip.place, keys.mac)
            if cut:
                told.append(_recovered("torn_tail", cut, name))
            if each.signed.rest_bytes:
                told.append(_recovered("torn_checkpoint", each.signed.rest_bytes, name))
            if lacked := tip.tree.size - min(each.count, tip.tree.size):
                told.append(_recovered("sink_behind", lacked, name))
        undo.pop_all()
        return Started(tuple(taken), tip, tuple(told))


def _recovered(reason: str, count: int, sink: str | None) -> AuditEvent:
    return AuditEvent(kind="audit.recovered", reason=reason, count=count, target=sink)


def _find(folder: Path, keys: AuditKeys) -> Found:
    head = read_head(folder, keys.mac)
    parts = segments(folder)
    begin, path = parts[-1] if parts else (0, folder / segment_name(0))
    walked = walk(parts[-1:], keys.mac, head, _base(begin, path, head))
    at, fault = walked.link.count, walked.broken.reason if walked.broken else "truncated"
    if head is None and (begin > 0 or at > 1):
        raise _corrupt(folder, f"{HEAD_FILE} is missing or not genuine")
    if head is not None and at < head.link.count:
        raise _corrupt(folder, f"record {at} is at fault ({fault})")
    if head is not None and walked.at_head != head.link.last:
        raise _corrupt(folder, f"the log and {HEAD_FILE} do not belong together")
    if walked.rest_bytes > TORN_BYTES_MAX:
        raise _corrupt(folder, f"record {at} is at fault ({fault})")
    signed = _last_signed(folder, keys.signer.public)
    chain = head.chain if head is not None else walked.chain
    if signed.tree.size < (head.signed if head is not None else 0) or signed.tree.size > at:
        raise _corrupt(folder, f"{CHECKPOINT_FILE} and {HEAD_FILE} do not belong together")
    if signed.checkpoint is not None and signed.checkpoint.chain != chain:
        raise _corrupt(folder, f"{CHECKPOINT_FILE} is of another log")
    return Found(folder, head, parts, walked, signed)


def _base(begin: int, path: Path, head: Head | None) -> Link:
    """The place before a segment: known for the first, vouched for by the head where that ends
    there, else named by the segment's first record (whose own MAC will have to fit it)."""
    if begin == 0:
        return Link(0, GENESIS)
    if head is not None and head.link.count == begin:
        return head.link
    with path.open("rb") as file:
        target = str(read(file.readline(LINE_BYTES_MAX + 1)).get("target"))
    try:
        return Link(begin, bytes.fromhex(target))
    except ValueError:
        return Link(begin, b"")


def _last_signed(folder: Path, public: PublicKey) -> Signed:
    """Reads the end of the file alone."""
    try:
        with (folder / CHECKPOINT_FILE).open("rb") as file:
            size = file.seek(0, 2)
            base = max(0, size - 2 * STORED_BYTES_MAX)
            file.seek(base)
            data = file.read(2 * STORED_BYTES_MAX)
    except FileNotFoundError:
        return Signed()
    ends = data.rfind(b"\n") + 1
    rest_bytes = len(data) - ends
    if ends == 0 and rest_bytes <= STORED_BYTES_MAX and base == 0:
        return Signed(rest_bytes=rest_bytes)
    begins = data.rfind(b"\n", 0, max(0, ends - 1)) + 1
    stored = decode_stored(data[begins:ends])
    checkpoint = read_note(stored.note, public) if stored is not None else None
    tree = frontier_of(stored, checkpoint) if stored is not None and checkpoint else None
    if tree is None or rest_bytes > STORED_BYTES_MAX:
        raise _corrupt(folder, f"{CHECKPOINT_FILE} does not end with a checkpoint of ours")
    return Signed(checkpoint, tree, base + begins, base + ends, rest_bytes)


def _longest(found: Sequence[Found]) -> int:
    """Which directory holds all that any vouches for, and the most.  AuditCorrupt where none does."""
    fit = [
        (each.count, -index)
        for index, each in enumerate(found)
        if all(_holds(each, other) for other in found)
    ]
    if not fit:
        names = ", ".join(str(each.folder) for each in found)
        raise AuditCorrupt(
            f"The audit logs in {names} do not belong together: none holds all that the others vouch "
            "for. Look at each with 'lockgate audit verify'; keep both, and move one aside."
        )
    return -max(fit)[1]


def _holds(each: Found, other: Found) -> bool:
    if other.head is None:
        return True
    if each.chain != other.chain or each.count < other.signed.tree.size:
        return False
    link = other.head.link
    return _hash(each, link.count) == link.last


def _hash(found: Found, count: int) -> bytes | None:
    if count > found.count:
        return None
    if count == found.count:
        return found.walked.link.last
    return GENESIS if count == 0 else hash_at(found.parts, count)


def _tip(best: Found, rng: Callable[[int], bytes]) -> Tip:
    signed = best.signed
    chain = best.chain or rng(16).hex()
    head = Head(chain, best.walked.link, signed.tree.size)
    begin = best.parts[-1][0] if best.parts else 0
    place = Place(head, begin, best.walked.offset, signed.ends)
    lines = islice(lines_from(best.parts, signed.tree.size), best.count - signed.tree.size)
    if signed.checkpoint is None:  # made before there were checkpoints, or hardly begun
        return Tip(place, grown(signed.tree, map(leaf, lines)))
    since = tuple(map(leaf, lines))
    return Tip(place, grown(signed.tree, since), signed.tree, signed.checkpoint.at_ms, since)


def _join(each: Found, files: Files, best: Found, upto: Place, key: bytes) -> int:
    """Bring a directory up to the log.  How many bytes beyond its head had to go."""
    keep, cut = each.count, each.walked.rest_bytes
    if _hash(best, each.count) != each.walked.link.last:
        keep = each.head.link.count if each.head is not None else 0
    begin, offset = place_of(each.parts, keep) or (0, 0)
    for number, path in each.parts:
        if number > begin:
            cut += path.stat().st_size if keep < each.count else 0
            path.unlink()
        elif number == begin and keep < each.count:
            cut = path.stat().st_size - offset
    link = Link(keep, _hash(each, keep) or GENESIS)
    head = Head(each.chain or upto.head.chain, link)
    files.go_to(Place(head, begin, offset, _common_checkpoints(each, best)))
    try:
        catch_up(files, best.folder, upto, key)
    except SourceBroken as why:
        raise _corrupt(best.folder, str(why)) from why
    return cut


def _common_checkpoints(each: Found, best: Found) -> int:
    """How much of a directory's checkpoints to keep: all, where the log has the same last one there."""
    if each.signed.checkpoint is None or each.signed.ends > best.signed.ends:
        return 0
    size = each.signed.ends - each.signed.begins
    tails = []
    for found in (each, best):
        with (found.folder / CHECKPOINT_FILE).open("rb") as file:
            file.seek(each.signed.begins)
            tails.append(file.read(size))
    return each.signed.ends if tails[0] == tails[1] else 0


def _corrupt(folder: Path, fault: str) -> AuditCorrupt:
    return AuditCorrupt(
        f"The audit log in {folder} was changed from outside: {fault}. Look with 'lockgate audit "
        "verify'; keep the directory as evidence and move it aside to start a new log."
    )
