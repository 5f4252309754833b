"""The audit directory as its one writer sees it: lock, head, current segment, and the way back from
a crash.

Refuses to wait, to share, and to judge: `audit_log` brings the thread, `audit_verify` the verdict.
A failed write leaves no trace (the segment is cut back to its last durable record before anything
else is written).  The head lies in the page cache until a segment ends, so it outlives the process
but perhaps not the power; what it counts is durable in any case, since it is written after the sync.

On start the last segment is followed to its end.  Beyond the head, a half-written end was promised
to nobody: it is cut off and `audit.recovered` says so.  Any other fault refuses to start: evidence is
for people to look at, not for us to mend.
Source: SECURITY.md §4 (L8); Pillai et al., OSDI 2014 (what a file system keeps of a crash).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from security.audit import (
    GENESIS,
    LINE_BYTES_MAX,
    AuditEvent,
    Head,
    Link,
    encode,
    encode_head,
    read,
)
from security.audit_verify import HEAD_FILE, read_head, segment_name, segments, walk
from security.keyring import sync_folder

LOCK_FILE = "lock"
GROUP_MAX = 128
TORN_BYTES_MAX = (GROUP_MAX + 2) * LINE_BYTES_MAX


class AuditCorrupt(Exception):
    """The log on disk is not what we left.  Nothing was changed; the message says what to do."""


class AuditLocked(Exception):
    """Another process writes here."""


@dataclass(frozen=True, slots=True)
class Disk:
    """The calls that a disk can refuse, so that tests can refuse them."""

    write: Callable[[int, bytes], int] = os.write
    pwrite: Callable[[int, bytes, int], int] = os.pwrite
    sync: Callable[[int], None] = os.fdatasync
    truncate: Callable[[int, int], None] = os.ftruncate
    sync_folder: Callable[[Path], None] = sync_folder


OS_DISK = Disk()


class Files:
    """Made by `open_files`; used by one thread at a time."""

    def __init__(self, folder: Path, key: bytes, lock: int, disk: Disk, segment_bytes: int) -> None:
        self.head = Head("", Link())
        self._folder = folder
        self._key = key
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._size = 0
        self._dirty = False
        self._lock = lock
        self._fd = -1
        self._head_fd = os.open(folder / HEAD_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def start(self, name: str, *, keep_bytes: int) -> None:
        """Go on with a segment after its first `keep_bytes`, or begin it."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(self._folder / name, flags, 0o600)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._size = fd, keep_bytes
        if os.fstat(fd).st_size > keep_bytes:
            self._cut()
        self._disk.sync_folder(self._folder)

    def write(self, events: list[tuple[AuditEvent, int]]) -> int:
        """Make all durable or none; the first one's number.  Raises OSError."""
        if self._dirty:
            self._cut()
        if events and self._size >= self._segment_bytes:
            self._disk.sync(self._head_fd)
            self.start(segment_name(self.head.link.count), keep_bytes=0)
        first = self.head.link.count
        if self._size == 0 and first > 0 and events:
            # A segment begins with the hash that it follows, so that a start reads only the last.
            told = AuditEvent(kind="audit.segment", target=self.head.link.last.hex())
            events = [(told, events[0][1]), *events]
            first += 1
        if events:
            self._write(events)
        self._write_head()
        return first

    def close(self) -> None:
        """Lets go of everything, whatever fails on the way."""
        try:
            self._disk.sync(self._head_fd)
        except OSError:
            pass  # the records are durable; an older head vouches for fewer of them
        for fd in (self._fd, self._head_fd, self._lock):
            if fd >= 0:
                os.close(fd)

    def _write(self, events: list[tuple[AuditEvent, int]]) -> None:
        lines, link = [], self.head.link
        for event, at_ms in events:
            line, link = encode(event, at_ms, link, self._key)
            lines.append(line)
        data = b"".join(lines)
        self._dirty = True
        written = 0
        while written < len(data):
            written += self._disk.write(self._fd, data[written:])
        self._disk.sync(self._fd)
        self._size, self._dirty = self._size + len(data), False
        self.head = Head(self.head.chain, link)

    def _write_head(self) -> None:
        data = encode_head(self.head, self._key)
        if self._disk.pwrite(self._head_fd, data, 0) != len(data):
            raise OSError("the head was written in part")

    def _cut(self) -> None:
        self._disk.truncate(self._fd, self._size)
        self._disk.sync(self._fd)
        self._dirty = False


def open_files(
    folder: Path,
    *,
    key: bytes,
    clock_ms: Callable[[], int],
    rng: Callable[[int], bytes],
    segment_bytes: int,
    disk: Disk,
) -> Files:
    """Lock the directory and find the end of its chain.  Raises AuditLocked, AuditCorrupt, OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise AuditLocked(
            f"{folder} is in use. Stop the other server, or give this one a state directory of its own."
        ) from error
    head = read_head(folder, key)
    files = Files(folder, key, lock, disk, segment_bytes)
    try:
        _recover(files, folder, key, head, clock_ms, rng)
    except BaseException:
        files.close()
        raise
    return files


def _recover(
    files: Files,
    folder: Path,
    key: bytes,
    head: Head | None,
    clock_ms: Callable[[], int],
    rng: Callable[[int], bytes],
) -> None:
    """Find the end of the chain, cut off what was never promised, and say so in a record."""
    parts = segments(folder)
    start, path = parts[-1] if parts else (0, folder / segment_name(0))
    walked = walk(parts[-1:], key, head, _base(start, path, head))
    at, fault = walked.link.count, walked.broken.reason if walked.broken else "truncated"
    if head is None and (start > 0 or at > 1):
        raise _corrupt(folder, f"{HEAD_FILE} is missing or not genuine")
    if head is not None and at < head.link.count:
        raise _corrupt(folder, f"record {at} is at fault ({fault})")
    if head is not None and walked.at_head != head.link.last:
        raise _corrupt(folder, f"the log and {HEAD_FILE} do not belong together")
    if walked.rest_bytes > TORN_BYTES_MAX:
        raise _corrupt(folder, f"record {at} is at fault ({fault})")
    files.start(path.name, keep_bytes=walked.offset)
    chain = head.chain if head is not None else walked.chain or rng(16).hex()
    files.head = Head(chain, walked.link)
    events = [AuditEvent(kind="audit.opened", target=chain)] if at == 0 else []
    if walked.rest_bytes:
        torn = AuditEvent(kind="audit.recovered", reason="torn_tail", count=walked.rest_bytes)
        events.append(torn)
    files.write([(event, clock_ms()) for event in events])


def _base(start: int, path: Path, head: Head | None) -> Link:
    """The place before a segment: known for the first, vouched for by the head where that ends
    there, else named by the segment's first record (whose own MAC will have to fit it)."""
    if start == 0:
        return Link(0, GENESIS)
    if head is not None and head.link.count == start:
        return head.link
    with path.open("rb") as file:
        target = str(read(file.readline(LINE_BYTES_MAX + 1)).get("target"))
    try:
        return Link(start, bytes.fromhex(target))
    except ValueError:
        return Link(start, b"")


def _corrupt(folder: Path, fault: str) -> AuditCorrupt:
    return AuditCorrupt(
        f"The audit log in {folder} was changed from outside: {fault}. Look with 'lockgate audit "
        "verify'; keep the directory as evidence and move it aside to start a new log."
    )
