"""A directory that was behind gets from another what it lacks, until both hold the same bytes.

Every record is followed as it is copied, so that what was changed in one directory does not spread to
the other.  Works in pieces, each a batch of its own, so whatever ends it half-way leaves a whole log.
Refuses to know which of the two is right: `audit_start` and `audit_sinks` have decided.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from security.audit_chain import Broken, Head, encode_head, follow
from security.audit_checkpoint import CHECKPOINT_FILE
from security.audit_files import Batch, Files, Place
from security.audit_walk import segments

PIECE_BYTES = 1 << 20


class SourceBroken(Exception):
    """What was to be copied is not the log that was written."""


def catch_up(files: Files, source: Path, upto: Place, key: bytes) -> None:
    """From the place of `files`, which begins the source's log, to `upto`.  Raises OSError,
    SourceBroken."""
    files.go_to(files.place)
    if files.place.head.link.count == 0:
        files.place = replace(files.place, head=replace(files.place.head, chain=upto.head.chain))
    for start, path in segments(source):
        if files.place.segment <= start <= upto.segment:
            end = upto.size if start == upto.segment else path.stat().st_size
            _copy_segment(files, start, path, end, key)
    if files.place.head.link != upto.head.link:
        raise SourceBroken(f"{source} ends before record {upto.head.link.count}")
    with (source / CHECKPOINT_FILE).open("rb") as file:
        file.seek(files.place.checkpoints)
        while (lacking := upto.checkpoints - files.place.checkpoints) > 0:
            data = file.read(min(PIECE_BYTES, lacking))
            if not data:
                raise SourceBroken(f"{source / CHECKPOINT_FILE} was cut off")
            _write(files, replace(files.place, checkpoints=files.place.checkpoints + len(data)), key, checkpoint=data)  # fmt: skip
    _write(files, upto, key)


def _copy_segment(files: Files, start: int, path: Path, end: int, key: bytes) -> None:
    if start != files.place.segment:
        if start != files.place.head.link.count:  # else the target would have a gap, too
            raise SourceBroken(f"{path} does not follow record {files.place.head.link.count - 1}")
        _write(files, replace(files.place, segment=start, size=0), key)
    with path.open("rb") as file:
        file.seek(files.place.size)
        for piece in _pieces(file.readline, end - files.place.size):
            link = files.place.head.link
            for line in piece:
                after = follow(line, link, key)
                if isinstance(after, Broken):
                    raise SourceBroken(f"{path}: record {link.count} is at fault ({after.reason})")
                link = after
            data = b"".join(piece)
            head = Head(files.place.head.chain, link, files.place.head.signed)
            _write(files, replace(files.place, head=head, size=files.place.size + len(data)), key, data=data)  # fmt: skip


def _pieces(readline: object, left: int) -> Iterator[list[bytes]]:
    """Whole lines, about `PIECE_BYTES` at once."""
    assert callable(readline)
    piece: list[bytes] = []
    size = 0
    while left > 0 and (line := readline(left)):
        piece.append(line)
        left, size = left - len(line), size + len(line)
        if size >= PIECE_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _write(
    files: Files, after: Place, key: bytes, *, data: bytes = b"", checkpoint: bytes = b""
) -> None:
    files.write(Batch(after, encode_head(after.head, key), data, checkpoint))
