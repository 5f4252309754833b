"""The audit log's sink: records become durable before anybody hears of what they record.

Refuses to know what a request is, and never chooses availability: whoever cannot have its record
written in time gets `AuditUnavailable` and must not go on.

Theory of operation.  One thread owns the files.  It takes all that wait (a group), writes them with
one `write`, makes them durable with one `fdatasync`, overwrites the head, and only then answers
(group commit: the longer a sync takes, the more share the next).  A failed group leaves no trace: the
file is cut back to the last durable record before anything else is written.  While the sink fails,
the thread tries by itself once in `retry_s`; the first record that succeeds says that it had failed.
Source: SECURITY.md §1 (P11), §6 (OpenBao).
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from security.audit import AuditEvent, AuditUnavailable, fields
from security.audit_files import GROUP_MAX, OS_DISK, Disk, Files, open_files


@dataclass(frozen=True, slots=True)
class Tuning:
    segment_bytes: int = 16 * 1024 * 1024
    queue_max: int = 4096
    deadline_s: float = 5.0
    retry_s: float = 1.0


@dataclass(frozen=True, slots=True)
class _Entry:
    event: AuditEvent
    at_ms: int
    done: Future[int] = field(default_factory=Future)


class AuditLog:
    def __init__(self, files: Files, *, clock_ms: Callable[[], int], tuning: Tuning) -> None:
        self._files = files
        self._clock_ms = clock_ms
        self._tuning = tuning
        self._queue: queue.Queue[_Entry | None] = queue.Queue(tuning.queue_max)
        self._gate = threading.Lock()  # nobody enters once closed
        self._failing = False
        self._stalled = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="audit-log", daemon=True)
        self._thread.start()

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        key: bytes,
        clock_ms: Callable[[], int],
        rng: Callable[[int], bytes] = os.urandom,
        tuning: Tuning = Tuning(),
        disk: Disk = OS_DISK,
    ) -> Self:
        """Take the directory and go on where it ends.  `key` is the keyring's for `audit`.  Raises
        AuditLocked, AuditCorrupt (`audit_files`) or OSError."""
        files = open_files(
            folder,
            key=key,
            clock_ms=clock_ms,
            rng=rng,
            segment_bytes=tuning.segment_bytes,
            disk=disk,
        )
        return cls(files, clock_ms=clock_ms, tuning=tuning)

    def require_healthy(self) -> None:
        """Raises AuditUnavailable where an append would most likely fail: ask before doing work that
        will have to be recorded."""
        if self._failing or self._stalled or self._closed:
            raise AuditUnavailable

    async def append(self, event: AuditEvent) -> int:
        """The record's number, once it is durable.  Raises AuditUnavailable.  A caller that is
        cancelled leaves its record unwritten only if writing had not begun."""
        entry = self._enter(event)
        try:
            async with asyncio.timeout(self._tuning.deadline_s):
                return await asyncio.wrap_future(entry.done)
        except TimeoutError as error:
            self._stall()
            raise AuditUnavailable from error

    def append_blocking(self, event: AuditEvent) -> int:
        """For start, stop and the command line, where no loop runs."""
        entry = self._enter(event)
        try:
            return entry.done.result(self._tuning.deadline_s)
        except TimeoutError as error:
            entry.done.cancel()
            self._stall()
            raise AuditUnavailable from error

    def close(self) -> None:
        """Write what waits, then let go of the directory.  Waits at most the deadline."""
        with self._gate:
            self._closed = True
        self._wake()
        self._thread.join(self._tuning.deadline_s)

    async def aclose(self) -> None:
        await asyncio.to_thread(self.close)

    def _stall(self) -> None:
        """A deadline passed.  The writer is woken, for it may have been in time and the one who
        waited late: then nobody would ask it again, since all ask `require_healthy` first."""
        self._stalled = True
        self._wake()

    def _wake(self) -> None:
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            pass  # it has reason enough to wake

    def _enter(self, event: AuditEvent) -> _Entry:
        fields(event)  # our mistakes show here, in their author's stack
        entry = _Entry(event, self._clock_ms())
        with self._gate:
            if self._closed:
                raise AuditUnavailable
            try:
                self._queue.put_nowait(entry)
            except queue.Full as error:
                raise AuditUnavailable from error
        return entry

    def _run(self) -> None:
        """The writer thread, until closed and empty."""
        while not (self._closed and self._queue.empty()):
            self._commit(self._gather())
        self._files.close()

    def _gather(self) -> list[_Entry]:
        """All that wait, up to a group; nobody, where the sink fails and it is time to try it."""
        group: list[_Entry | None] = []
        try:
            group.append(self._queue.get(timeout=self._tuning.retry_s if self._failing else None))
            while len(group) < GROUP_MAX:
                group.append(self._queue.get_nowait())
        except queue.Empty:
            pass
        return [entry for entry in group if entry is not None]

    def _commit(self, group: list[_Entry]) -> None:
        ours = [entry for entry in group if entry.done.set_running_or_notify_cancel()]
        events = [(entry.event, entry.at_ms) for entry in ours]
        if self._failing:
            told = AuditEvent(kind="audit.recovered", reason="sink_failed")
            events.insert(0, (told, self._clock_ms()))
        try:
            first = self._files.write(events)
        except Exception as error:  # noqa: BLE001 — whatever it is, who waits must be told
            self._failing = True
            for entry in ours:
                entry.done.set_exception(AuditUnavailable(type(error).__name__))
            return
        first += len(events) - len(ours)
        self._failing = self._stalled = False
        for number, entry in enumerate(ours, first):
            entry.done.set_result(number)
