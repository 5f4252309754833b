"""Read an audit directory and say whether it is whole: the offline half of P11.

Refuses to mend anything, and needs no running server.  Detects, naming the first bad record: an
edit, a drop, a reordering, an insertion, a missing or foreign segment, and an end cut off before
the head.  Does not detect: the end of the log put back to an earlier state *together with* the head
of that time (keep copies of `head.json` elsewhere: `expect` takes one), nor, without the key,
a chain made anew from some point on along with a new head.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from security.audit import HEAD_BYTES, LINE_BYTES_MAX, Broken, Head, Link, decode_head, follow, read

HEAD_FILE = "head.json"
SEGMENT = re.compile(r"audit-(\d{12})\.jsonl", re.ASCII)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`bad_index` is the number of the first record that is not what it must be, None where all are
    or where the head alone is at fault; `reason` is a word.  `torn_bytes` is a half-written last
    line beyond the head: nobody was told that it was durable."""

    ok: bool
    records: int
    bad_index: int | None = None
    reason: str | None = None
    segment: str | None = None
    torn_bytes: int = 0
    recovered: int = 0
    """How many `audit.recovered` records it holds: each a torn end, or a lost head."""
    macs_checked: bool = False


@dataclass(frozen=True, slots=True)
class Walk:
    """Where following the segments came to an end."""

    link: Link
    chain: str | None = None
    """The chain's id, where record 0 was read."""
    at_head: bytes | None = None
    """The hash after the last record that the head counts."""
    recovered: int = 0
    broken: Broken | None = None
    segment: Path | None = None
    offset: int = 0
    """Where in `segment` the last good record ends."""
    rest_bytes: int = 0
    is_last_segment: bool = True

    def is_torn(self, head: Head) -> bool:
        """A last line without its end, beyond everything that the head vouches for."""
        if self.segment is None or not self.is_last_segment or self.link.count < head.link.count:
            return False
        if self.rest_bytes > LINE_BYTES_MAX:
            return False
        with self.segment.open("rb") as file:
            file.seek(self.offset)
            return b"\n" not in file.read(LINE_BYTES_MAX + 1)


def segment_name(start: int) -> str:
    return f"audit-{start:012}.jsonl"


def segments(folder: Path) -> list[tuple[int, Path]]:
    """Each segment's first record number and path, in order."""
    found = [(SEGMENT.fullmatch(path.name), path) for path in folder.iterdir()]
    return sorted((int(match.group(1)), path) for match, path in found if match is not None)


def read_head(folder: Path, key: bytes | None) -> Head | None:
    """None where it is missing or not genuine."""
    try:
        with (folder / HEAD_FILE).open("rb") as file:
            return decode_head(file.read(HEAD_BYTES + 1), key)
    except OSError:
        return None


def walk(
    parts: Sequence[tuple[int, Path]], key: bytes | None, head: Head | None, link: Link
) -> Walk:
    """Follow the chain from `link` through `parts` to its end or its first fault."""
    chain: str | None = None
    recovered, offset, path = 0, 0, None
    at_head = _hash_at(head, link)
    for number, (start, path) in enumerate(parts):
        offset = 0
        for line in _lines(path):
            belongs = offset > 0 or start == link.count
            after = follow(line, link, key) if belongs else Broken("segment")
            if isinstance(after, Broken):
                return Walk(
                    link=link,
                    chain=chain,
                    at_head=at_head,
                    recovered=recovered,
                    broken=after,
                    segment=path,
                    offset=offset,
                    rest_bytes=path.stat().st_size - offset,
                    is_last_segment=number == len(parts) - 1,
                )
            record = read(line)
            if link.count == 0:
                chain = str(record.get("target"))
            recovered += record.get("kind") == "audit.recovered"
            link, offset = after, offset + len(line)
            at_head = at_head or _hash_at(head, link)
    return Walk(link, chain, at_head, recovered, segment=path, offset=offset)


def verify(folder: Path, key: bytes | None, *, expect: Head | None = None) -> Verdict:
    """Check the whole directory.  OSError where it cannot be read.  `expect` is a head kept outside
    (see `audit.decode_head`): the log must contain everything up to it.

    May be run beside a writing server: the head is read first, and records after it are only asked
    to continue the chain."""
    head = read_head(folder, key)
    parts = segments(folder)
    walked = walk(parts, key, head, Link())
    found = _judge(walked, head)
    if found is None and expect is not None:
        found = _against(walk(parts, key, expect, Link()), expect)
    bad_index, reason = found if found is not None else (None, None)
    return Verdict(
        ok=found is None,
        records=walked.link.count,
        bad_index=bad_index,
        reason=reason,
        segment=walked.segment.name if found is not None and walked.segment is not None else None,
        torn_bytes=walked.rest_bytes if found is None else 0,
        recovered=walked.recovered,
        macs_checked=key is not None,
    )


def _judge(walked: Walk, head: Head | None) -> tuple[int | None, str] | None:
    broken = walked.broken
    if broken is not None and (head is None or not walked.is_torn(head)):
        return walked.link.count, broken.reason
    if head is None:
        return None, "head"
    return _against(walked, head)


def _against(walked: Walk, head: Head) -> tuple[int | None, str] | None:
    if walked.link.count < head.link.count:
        return walked.link.count, "truncated"
    if walked.at_head != head.link.last or walked.chain != head.chain:
        return None, "head"
    return None


def _hash_at(head: Head | None, link: Link) -> bytes | None:
    return link.last if head is not None and head.link.count == link.count else None


def _lines(path: Path) -> Iterator[bytes]:
    """Lines with their ends, none longer than one byte too many."""
    with path.open("rb") as file:
        while line := file.readline(LINE_BYTES_MAX + 1):
            yield line
