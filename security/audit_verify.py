"""Read an audit directory and say whether it is whole: the offline half of P11.

    python -m security.audit_verify DIR… [--public-key KEY] [--checkpoint FILE]… [--proof FILE]…

Refuses to mend anything, and needs no running server and no secret.  Detects, naming the first bad
record: an edit, a drop, a reordering, an insertion, a missing or foreign segment, and an end cut off
before the head.  With the public key also: whatever a signed checkpoint in the directory denies; with
checkpoints kept elsewhere, whatever somebody with all keys put in place of what they cover.  Does not
detect, without a checkpoint kept elsewhere: log, head and checkpoints put back together to an earlier
state; nor, without any key, a log made anew.

Imports only the standard library and its neighbours here (`audit_chain`, `audit_walk`, `audit_checkpoint`,
`merkle`); `cryptography` where signatures are asked for.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from security.audit_chain import Head, Link, leaf
from security.audit_checkpoint import (
    CHECKPOINT_FILE,
    NOTE_BYTES_MAX,
    Checkpoint,
    PublicKey,
    Stored,
    continues,
    decode_stored,
    frontier_of,
    parse_public_key,
    read_note,
)
from security.audit_checkpoint import LINE_BYTES_MAX as STORED_BYTES_MAX
from security.audit_proof import PROOF_BYTES_MAX, decode_proof, holds
from security.audit_walk import Walk, lines_from, read_head, segments, walk
from security.merkle import Frontier


@dataclass(frozen=True, slots=True)
class Verdict:
    """`bad_index` is the number of the first record that is not what it must be, None where all are,
    or where the head or a checkpoint alone is at fault; `reason` is a word.  `torn_bytes` is a
    half-written last line beyond the head: nobody was told that it was durable."""

    ok: bool
    records: int
    bad_index: int | None = None
    reason: str | None = None
    segment: str | None = None
    torn_bytes: int = 0
    recovered: int = 0
    """How many `audit.recovered` records it holds: each a torn end, a lost head or a directory behind."""
    macs_checked: bool = False
    signatures_checked: bool = False
    checkpoints: int = 0
    signed_records: int = 0
    """How many records the checkpoints cover, here or kept elsewhere."""
    bad_checkpoint: int | None = None
    """The number of the first line of `checkpoints.log` that is at fault."""


@dataclass(frozen=True, slots=True)
class Fault:
    reason: str
    index: int | None = None
    checkpoint: int | None = None


class Claims:
    """Checkpoints that wait for the walk to come to their size."""

    def __init__(self, kept: Sequence[Checkpoint]) -> None:
        self.tree = Frontier()
        self.signed = 0
        self.fault: Fault | None = None
        self._kept = sorted(kept, key=lambda each: each.size)
        self._open: dict[int, list[tuple[Checkpoint, int | None]]] = {}
        for each in self._kept:
            self.add(each, None)
        self._judge()

    def add(self, checkpoint: Checkpoint, number: int | None) -> None:
        self._open.setdefault(checkpoint.size, []).append((checkpoint, number))

    def seen(self, index: int, line: bytes) -> None:
        self.tree = self.tree.add(leaf(line))
        self._judge()

    def _judge(self) -> None:
        for checkpoint, number in self._open.pop(self.tree.size, ()):
            if checkpoint.root == self.tree.root():
                self.signed = self.tree.size
            elif self.fault is None:
                self.fault = Fault("rewritten", None, number)

    def rest(self, chain: str | None) -> Fault | None:
        """What the walk's end leaves open."""
        for each in self._kept:
            if chain is not None and each.chain != chain:
                return Fault("another_log")
        if self.fault is None and self._open:
            number = min((each[1] for found in self._open.values() for each in found if each[1] is not None), default=None)  # fmt: skip
            return Fault("truncated", self.tree.size, number)
        return self.fault


def verify(
    folder: Path,
    key: bytes | None,
    *,
    public: PublicKey | None = None,
    kept: Sequence[Checkpoint] = (),
    expect: Head | None = None,
) -> Verdict:
    """Check the whole directory.  OSError where it cannot be read.  `key`: of the records' MACs.
    `public`: of the checkpoints' signatures.  `kept`: checkpoints from elsewhere, whose signature the
    caller has checked.  `expect`: a head from elsewhere (see `audit_chain.decode_head`).

    May be run beside a writing server: head and checkpoints are read first, and records after them are
    only asked to continue the chain."""
    head = read_head(folder, key)
    claims = Claims(kept)
    stored, bad = _checkpoints(folder, public, head)
    for number, each in enumerate(stored):
        claims.add(each, number)
    parts = segments(folder)
    walked = walk(parts, key, head, Link(), claims.seen)
    found = _judge(walked, head) or bad or _signed(stored, head, key, public, walked)
    found = found or claims.rest(walked.chain)
    if found is None and expect is not None:
        found = _against(walk(parts, key, expect, Link()), expect)
    in_segment = found is not None and found.checkpoint is None and walked.segment is not None
    return Verdict(
        ok=found is None,
        records=walked.link.count,
        bad_index=found.index if found is not None else None,
        reason=found.reason if found is not None else None,
        segment=walked.segment.name if in_segment and walked.segment is not None else None,
        torn_bytes=walked.rest_bytes if found is None else 0,
        recovered=walked.recovered,
        macs_checked=key is not None,
        signatures_checked=public is not None,
        checkpoints=len(stored),
        signed_records=claims.signed,
        bad_checkpoint=found.checkpoint if found is not None else None,
    )


def _judge(walked: Walk, head: Head | None) -> Fault | None:
    broken = walked.broken
    if broken is not None and (head is None or not walked.is_torn(head)):
        return Fault(broken.reason, walked.link.count)
    if head is None:
        return Fault("head")
    return _against(walked, head)


def _against(walked: Walk, head: Head) -> Fault | None:
    if walked.link.count < head.link.count:
        return Fault("truncated", walked.link.count)
    if walked.at_head != head.link.last or walked.chain != head.chain:
        return Fault("head")
    return None


def _checkpoints(
    folder: Path, public: PublicKey | None, head: Head | None
) -> tuple[list[Checkpoint], Fault | None]:
    """Those of the directory, each proven to continue the one before it, up to the first fault."""
    found: list[Checkpoint] = []
    try:
        with (folder / CHECKPOINT_FILE).open("rb") as file:
            while line := file.readline(STORED_BYTES_MAX + 1):
                stored = decode_stored(line)
                checkpoint = _checked(stored, public, found[-1] if found else None)
                if checkpoint is None:
                    covered = found[-1].size if found else 0
                    torn = not line.endswith(b"\n") and not file.read(1)
                    vouched = head is not None and head.signed > covered
                    if torn and not vouched:
                        break
                    return found, Fault("checkpoint", None, len(found))
                found.append(checkpoint)
    except FileNotFoundError:
        pass
    return found, None


def _checked(
    stored: Stored | None, public: PublicKey | None, before: Checkpoint | None
) -> Checkpoint | None:
    checkpoint = read_note(stored.note, public) if stored is not None else None
    if stored is None or checkpoint is None or frontier_of(stored, checkpoint) is None:
        return None
    grows = before is None or before.size < checkpoint.size
    return checkpoint if grows and continues(stored, before, checkpoint) else None


def _signed(
    stored: Sequence[Checkpoint],
    head: Head | None,
    key: bytes | None,
    public: PublicKey | None,
    walked: Walk,
) -> Fault | None:
    """Checkpoints that ought to be there, and of this log."""
    covered = stored[-1].size if stored else 0
    if head is not None and covered < head.signed:
        return Fault("checkpoint", None, len(stored))
    if stored and stored[0].chain != walked.chain:
        return Fault("checkpoint", None, 0)
    # A head that nobody can check must not be what excuses their absence.
    if not stored and public is not None and key is None:
        return Fault("unsigned")
    return None


def read_kept(path: Path, public: PublicKey | None) -> Checkpoint | None:
    """A checkpoint from elsewhere: a signed note, alone in its file.  None where it is none."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return read_note(file.read(NOTE_BYTES_MAX + 1), public)


def first_difference(one: Path, other: Path) -> int | None:
    """The first record that two directories of one log do not have alike, as far as both go."""
    pairs = zip(lines_from(segments(one), 0), lines_from(segments(other), 0), strict=False)
    for index, (line, twin) in enumerate(pairs):
        if line != twin and line.endswith(b"\n") and twin.endswith(b"\n"):
            return index
    return None


def sentence(verdict: Verdict, folder: Path) -> str:
    """For people."""
    if verdict.ok:
        covered = f", {verdict.signed_records:,} of them under signed checkpoints" if verdict.signatures_checked else ""  # fmt: skip
        return f"{verdict.records:,} records in {folder}: whole and unchanged{covered}."
    if verdict.bad_index is not None:
        at = f"record {verdict.bad_index:,}"
    elif verdict.bad_checkpoint is not None:
        at = f"checkpoint {verdict.bad_checkpoint:,}"
    else:
        at = {"head": "its head", "unsigned": "the checkpoints' absence"}.get(
            verdict.reason or "", "what a checkpoint from elsewhere covers"
        )
    where = f", in {verdict.segment}" if verdict.bad_index is not None and verdict.segment else ""
    return (
        f"{folder} was changed: {at} is at fault ({verdict.reason}{where}). "
        "Keep the files as they are and compare with a copy."
    )


def check_proof(path: Path, public: PublicKey | None) -> int | None:
    """The number of the record that a proof in a file proves; None where it proves nothing."""
    with path.open("rb") as file:
        proof = decode_proof(file.read(PROOF_BYTES_MAX + 1))
    return proof.index if proof is not None and holds(proof, public) else None


class _Cannot(Exception):
    """It cannot be told; the message says why."""


def main(arguments: Sequence[str] | None = None) -> int:
    """0 whole, 1 changed, 2 cannot be told."""
    parser = argparse.ArgumentParser(prog="python -m security.audit_verify")
    parser.add_argument("folders", type=Path, nargs="*", metavar="DIR")
    parser.add_argument("--public-key", help="the line that 'lockgate audit key' prints")
    parser.add_argument("--checkpoint", type=Path, action="append", default=[], metavar="FILE")
    parser.add_argument("--proof", type=Path, action="append", default=[], metavar="FILE")
    try:
        return _main(parser.parse_args(arguments))
    except _Cannot as why:
        sys.stderr.write(f"audit verify: {why}\n")
    except OSError as error:
        sys.stderr.write(f"audit verify: {error.filename} cannot be read: {error.strerror}.\n")
    except ModuleNotFoundError:
        sys.stderr.write("audit verify: signatures need 'cryptography'; leave out --public-key.\n")
    return 2


def _main(asked: argparse.Namespace) -> int:
    public = parse_public_key(asked.public_key) if asked.public_key is not None else None
    if public is None and asked.public_key is not None:
        raise _Cannot("--public-key is not a line of 'lockgate audit key'.")
    kept = []
    for path in asked.checkpoint:
        found = read_kept(path, public)
        if found is None:
            raise _Cannot(f"{path} is no checkpoint, or not signed by that key.")
        kept.append(found)
    bad = False
    for path in asked.proof:
        index = check_proof(path, public)
        bad |= index is None
        told = "proves nothing" if index is None else f"proves record {index:,}"
        sys.stdout.write(f"{path} {told}.\n")
    for folder in asked.folders:
        verdict = verify(folder, None, public=public, kept=kept)
        bad |= not verdict.ok
        sys.stdout.write(sentence(verdict, folder) + "\n")
    for other in asked.folders[1:]:
        if (index := first_difference(asked.folders[0], other)) is not None:
            bad = True
            sys.stdout.write(f"{asked.folders[0]} and {other} differ from record {index:,} on.\n")
    if public is None:
        sys.stdout.write("note: without --public-key nothing says who wrote it.\n")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
