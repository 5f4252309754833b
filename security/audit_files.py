"""One directory of the audit log as its one writer sees it: lock, head, checkpoints, current segment.

Refuses to wait, to share and to judge: `audit_sinks` brings the thread, `audit_start` the way back from
a crash, `audit_writer` what is to be written.  A batch that fails leaves no trace: what it had written
is cut off before anything else is.  The head lies in the page cache until a segment ends, so it outlives
the process but perhaps not the power; what it counts is durable in any case, since it is written after
the syncs.
Source: SECURITY.md §4 (L8); Pillai et al., OSDI 2014 (what a file system keeps of a crash).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from security.audit_chain import Head, Link
from security.audit_checkpoint import CHECKPOINT_FILE
from security.audit_walk import HEAD_FILE, segment_name
from security.keyring import sync_folder

LOCK_FILE = "lock"


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


@dataclass(frozen=True, slots=True)
class Place:
    """How far a directory is written: the same in all that hold the same log.  `segment` is the first
    record's number of the current one, `size` its bytes, `checkpoints` those of the checkpoints."""

    head: Head
    segment: int = 0
    size: int = 0
    checkpoints: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """What takes a directory from one place to `after`, in this order: the checkpoint, a new segment
    where that of `after` is another, the records, the head."""

    after: Place
    head: bytes
    data: bytes = b""
    checkpoint: bytes = b""


class Files:
    """Made by `lock`; used by one thread at a time."""

    def __init__(self, folder: Path, lock: int, disk: Disk) -> None:
        self.folder = folder
        self.place = Place(Head("", Link()))
        self._disk = disk
        self._lock = lock
        self._segment: int | None = None
        self._fd = -1
        self._dirty = False
        self._is_new_here = True
        self._head_fd = self._open(HEAD_FILE, os.O_RDWR)
        self._checkpoints_fd = self._open(CHECKPOINT_FILE, os.O_WRONLY | os.O_APPEND)

    @classmethod
    def lock(cls, folder: Path, disk: Disk) -> Files:
        """Take the directory, made where it is not there.  Raises AuditLocked, OSError."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            raise AuditLocked(
                f"{folder} is in use. Stop the other server, or give this one a state directory of its own."
            ) from error
        return cls(folder, lock, disk)

    def go_to(self, place: Place) -> None:
        """Cut off whatever lies beyond `place`, and go on from there.  What a killed process had written
        and not synced is durable from now on, before any head counts it.  Raises OSError."""
        self.place, self._dirty = place, True
        self._cut()
        self._disk.sync(self._fd)
        self._disk.sync(self._checkpoints_fd)

    def write(self, batch: Batch) -> None:
        """Make all of it durable, or leave it to be cut off.  Raises OSError."""
        if self._dirty:
            self._cut()
        self._dirty = True
        if batch.checkpoint:
            self._append(self._checkpoints_fd, batch.checkpoint)
        if batch.after.segment != self._segment:
            self._disk.sync(self._head_fd)
            self._start(batch.after.segment)
        if batch.data:
            self._append(self._fd, batch.data)
        if self._disk.pwrite(self._head_fd, batch.head, 0) != len(batch.head):
            raise OSError("the head was written in part")
        if self._is_new_here:
            self._disk.sync(self._head_fd)  # a log with records and no head does not start
            self._is_new_here = False
        self.place, self._dirty = batch.after, False

    def close(self) -> None:
        """Lets go of everything, whatever fails on the way."""
        try:
            self._disk.sync(self._head_fd)
        except OSError:
            pass  # the records are durable; an older head vouches for fewer of them
        for fd in (self._fd, self._checkpoints_fd, self._head_fd, self._lock):
            if fd >= 0:
                os.close(fd)

    def _append(self, fd: int, data: bytes) -> None:
        written = 0
        while written < len(data):
            written += self._disk.write(fd, data[written:])
        self._disk.sync(fd)

    def _start(self, segment: int) -> None:
        """Go on with a segment, or begin it."""
        fd = self._open(segment_name(segment), os.O_WRONLY | os.O_APPEND)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._segment = fd, segment
        self._disk.sync_folder(self.folder)

    def _cut(self) -> None:
        """Back to the place.  A segment that had been begun stays, empty: the next try begins the same."""
        if self._segment is not None and self._segment != self.place.segment:
            self._cut_one(self._fd, 0)
        if self._segment != self.place.segment:
            self._start(self.place.segment)
        self._cut_one(self._fd, self.place.size)
        self._cut_one(self._checkpoints_fd, self.place.checkpoints)
        self._dirty = False

    def _cut_one(self, fd: int, size: int) -> None:
        if os.fstat(fd).st_size > size:
            self._disk.truncate(fd, size)
            self._disk.sync(fd)

    def _open(self, name: str, flags: int) -> int:
        return os.open(self.folder / name, flags | os.O_CREAT | os.O_CLOEXEC, 0o600)
