"""Following a log's files: segments in their order, the head, the chain to its end or its first fault.

Reads only.  Standard library alone, as all that `audit_verify` needs.  Refuses to judge: a start
(`audit_start`) and the offline check make different things of the same walk.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from security.audit_chain import (
    HEAD_BYTES,
    LINE_BYTES_MAX,
    Broken,
    Head,
    Link,
    decode_head,
    follow,
    hash_in,
    read,
)

HEAD_FILE = "head.json"
SEGMENT = re.compile(r"audit-(\d{12})\.jsonl", re.ASCII)

Seen = Callable[[int, bytes], None]
"""A good record's number and line."""
Parts = Sequence[tuple[int, Path]]
"""Segments: each one's first record number and path, in order."""


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
    parts: Parts,
    key: bytes | None,
    head: Head | None,
    link: Link,
    seen: Seen | None = None,
) -> Walk:
    """Follow the chain from `link` through `parts` to its end or its first fault."""
    chain: str | None = None
    recovered, offset, path = 0, 0, None
    at_head = _hash_at(head, link)
    for number, (start, path) in enumerate(parts):
        offset = 0
        for line in lines(path):
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
            if seen is not None:
                seen(link.count, line)
            link, offset = after, offset + len(line)
            at_head = at_head or _hash_at(head, link)
    return Walk(link, chain, at_head, recovered, segment=path, offset=offset)


def _hash_at(head: Head | None, link: Link) -> bytes | None:
    return link.last if head is not None and head.link.count == link.count else None


def lines(path: Path) -> Iterator[bytes]:
    """Lines with their ends, none longer than one byte too many."""
    with path.open("rb") as file:
        while line := file.readline(LINE_BYTES_MAX + 1):
            yield line


def place_of(parts: Parts, count: int) -> tuple[int, int] | None:
    """The segment and the offset after the log's first `count` records; None where it has fewer."""
    for start, path in reversed(parts):
        if start < count or start == 0:
            offset, at = 0, start
            for line in lines(path):
                if at == count:
                    break
                offset, at = offset + len(line), at + 1
            return (start, offset) if at == count else None
    return None


def hash_at(parts: Parts, count: int) -> bytes | None:
    """What record `count - 1` names as its hash, unchecked."""
    for start, path in reversed(parts):
        if start < count:
            for at, line in enumerate(lines(path), start + 1):
                if at == count:
                    return hash_in(line)
            return None
    return None


def lines_from(parts: Parts, count: int) -> Iterator[bytes]:
    """All lines from record `count` on, unchecked."""
    for at, (start, path) in enumerate(parts):
        if at + 1 < len(parts) and parts[at + 1][0] <= count:
            continue
        for number, line in enumerate(lines(path), start):
            if number >= count:
                yield line
