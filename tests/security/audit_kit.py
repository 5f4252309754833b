"""Logs and disks for tests of the audit log."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from security.audit import AuditEvent, AuditUnavailable
from security.audit_chain import read
from security.audit_files import Disk
from security.audit_log import AuditLog, Tuning
from security.audit_sinks import Changed
from security.audit_walk import segments
from tests.security.helpers import AUDIT_KEYS, byte_source

EVENT = AuditEvent(kind="request.completed", request_id="r1")
FAST = Tuning(deadline_s=5, retry_s=0.005, sink_deadline_s=5)
QUICK = Disk(sync=lambda _: None, sync_folder=lambda _: None)
"""For tests that open a log hundreds of times and never cut the power."""


@dataclass
class BadDisk:
    """A disk that refuses, hangs or is slow when told to, and remembers the order of calls."""

    error: OSError | None = None
    write_at_most: int | None = None
    truncate_error: OSError | None = None
    head_error: OSError | None = None
    hold: threading.Event | None = None
    held: threading.Event = field(default_factory=threading.Event)
    calls: list[str] = field(default_factory=list)

    def disk(self) -> Disk:
        return Disk(write=self.write, pwrite=self.pwrite, sync=self.sync, truncate=self.truncate)

    def write(self, fd: int, data: bytes) -> int:
        self.calls.append("write")
        if self.error is not None and self.write_at_most is None:
            raise self.error
        if self.write_at_most is not None:
            if self.write_at_most == 0:
                assert self.error is not None
                raise self.error
            data, self.write_at_most = data[: self.write_at_most], 0
        return os.write(fd, data)

    def pwrite(self, fd: int, data: bytes, at: int) -> int:
        self.calls.append("head")
        if self.head_error is not None:
            raise self.head_error
        return os.pwrite(fd, data, at)

    def sync(self, fd: int) -> None:
        self.calls.append("sync")
        if self.hold is not None:
            self.held.set()
            assert self.hold.wait(10)
        if self.error is not None:
            raise self.error
        os.fdatasync(fd)

    def truncate(self, fd: int, size: int) -> None:
        self.calls.append("truncate")
        if self.truncate_error is not None:
            raise self.truncate_error
        os.ftruncate(fd, size)


def opened(
    *folders: Path,
    tuning: Tuning = FAST,
    disks: Sequence[Disk] = (),
    told: list[Changed] | None = None,
) -> AuditLog:
    """`disks`: one for each folder; none: quick ones."""
    of = dict(zip(folders, disks or [QUICK] * len(folders), strict=True))
    return AuditLog.open(
        folders,
        keys=AUDIT_KEYS,
        clock_ms=lambda: 1000,
        rng=byte_source(3),
        tuning=tuning,
        disk_of=of.__getitem__,
        report=(told if told is not None else []).append,
    )


def write(folder: Path, records: int, *more: Path, segment_bytes: int = 1 << 20) -> None:
    """Record 0 is the chain's own."""
    log = opened(folder, *more, tuning=Tuning(segment_bytes=segment_bytes))
    for i in range(records):
        log.append_blocking(AuditEvent(kind="test.record", count=i))
    log.close()


def records(folder: Path) -> list[dict[str, object]]:
    parts = [path.read_bytes() for _, path in segments(folder)]
    return [read(line) for part in parts for line in part.splitlines()]


def kinds(folder: Path) -> list[object]:
    return [record["kind"] for record in records(folder)]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def wait_until(true: Callable[[], bool]) -> None:
    """The writer tries by itself; it cannot be hurried, only watched."""
    pause = threading.Event()
    for _ in range(2000):
        if true():
            return
        pause.wait(0.002)
    pytest.fail("it did not come")


def wait_healthy(log: AuditLog) -> None:
    def healthy() -> bool:
        try:
            log.require_healthy()
        except AuditUnavailable:
            return False
        return True

    wait_until(healthy)


def wait_current(log: AuditLog) -> None:
    wait_until(lambda: all(each.current for each in log.sinks()))
