"""The audit log: records become durable before anybody hears of what they record.

Refuses to know what a request is, and never chooses availability: whoever cannot have its record
written in time gets `AuditUnavailable` and must not go on.

Theory of operation.  One thread owns the log.  It takes all that wait (a group), makes them one batch,
hands it to the directories (`audit_sinks`), each of which writes it with one `write` and makes it durable
with one `fdatasync`, and only then answers (group commit: the longer a sync takes, the more share the
next).  A failed group leaves no trace: the files are cut back to the last durable record before anything
else is written.  While no directory can write, the thread tries by itself once in `retry_s`; the first
record that succeeds says that it had failed.  Every `sign_records` records or `sign_s` seconds, and at
the end, a signed checkpoint covers what is new.
Source: SECURITY.md §1 (P11), §6 (OpenBao, Transparency logs).
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from security.audit import AuditEvent, AuditUnavailable, fields
from security.audit_files import OS_DISK, Disk
from security.audit_proof import Proof
from security.audit_signer import AuditKeys
from security.audit_sinks import Changed, Sinks, SinkState
from security.audit_start import GROUP_MAX, Started, start
from security.audit_writer import Composed, Timed, compose, inclusion

BUSY_FROM, GATHER_S = 4, 0.001
"""After a group of so many the next is given this long to come together, as `tenants.store.worker` does: where
many are answered at once, many more are about to be."""


@dataclass(frozen=True, slots=True)
class Tuning:
    segment_bytes: int = 16 * 1024 * 1024
    queue_max: int = 4096
    deadline_s: float = 5.0
    """For whoever waits for a record."""
    sink_deadline_s: float = 1.0
    """For one directory, while another has it."""
    retry_s: float = 1.0
    sign_records: int = 4096
    sign_s: float = 60.0


@dataclass(frozen=True, slots=True)
class _Written:
    number: int
    proof: Proof | None = None


@dataclass(frozen=True, slots=True)
class _Entry:
    event: AuditEvent
    at_ms: int
    proven: bool = False
    done: Future[_Written] = field(default_factory=Future)


class AuditLog:
    def __init__(
        self,
        started: Started,
        *,
        keys: AuditKeys,
        clock_ms: Callable[[], int],
        tuning: Tuning,
        report: Callable[[Changed], None],
    ) -> None:
        self._keys = keys
        self._clock_ms = clock_ms
        self._tuning = tuning
        self._report = report
        self._tip = started.tip
        self._sinks = Sinks(
            started.files,
            started.tip.place,
            keys.mac,
            deadline_s=tuning.sink_deadline_s,
            retry_s=tuning.retry_s,
        )
        self._untold = list(started.told)
        self._queue: queue.Queue[_Entry | None] = queue.Queue(tuning.queue_max)
        self._gate = threading.Lock()  # nobody enters once closed
        self._busy = False
        self._failing = False
        self._stalled = False
        self._closed = False
        self._sign_at_s = time.monotonic() + tuning.sign_s
        self._thread = threading.Thread(target=self._run, name="audit-log", daemon=True)

    @classmethod
    def open(
        cls,
        folders: Sequence[Path],
        *,
        keys: AuditKeys,
        clock_ms: Callable[[], int],
        rng: Callable[[int], bytes] = os.urandom,
        tuning: Tuning = Tuning(),
        disk_of: Callable[[Path], Disk] = lambda _: OS_DISK,
        report: Callable[[Changed], None] = lambda _: None,
    ) -> Self:
        """Take the directories, which hold one log each the same, and go on where it ends.  `report` is
        told from another thread when one falls behind or comes back.  Raises AuditLocked, AuditCorrupt
        (`audit_start`) or OSError."""
        started = start(folders, keys=keys, rng=rng, disk_of=disk_of)
        log = cls(started, keys=keys, clock_ms=clock_ms, tuning=tuning, report=report)
        try:
            # What happened is recorded before anybody is served; a log from before there were checkpoints
            # gets its first one.
            log._write([], sign=not started.tip.signed.size)
        except BaseException:
            log._sinks.close(tuning.deadline_s)
            raise
        log._thread.start()
        return log

    @property
    def chain(self) -> str:
        """Which log this is."""
        return self._tip.place.head.chain

    def sinks(self) -> tuple[SinkState, ...]:
        """Each directory as it stands, in the order given."""
        return self._sinks.states()

    def require_healthy(self) -> None:
        """Raises AuditUnavailable where an append would most likely fail: ask before doing work that
        will have to be recorded."""
        if self._failing or self._stalled or self._closed:
            raise AuditUnavailable

    async def append(self, event: AuditEvent) -> int:
        """The record's number, once it is durable.  Raises AuditUnavailable.  A caller that is
        cancelled leaves its record unwritten only if writing had not begun."""
        return (await self._await(self._enter(event))).number

    async def append_proven(self, event: AuditEvent) -> Proof:
        """The same, and at once a checkpoint over it: the proof that the record stands in the log.  Costs
        one sync more.  Where the checkpoint alone fails, the record stands and the caller is refused."""
        proof = (await self._await(self._enter(event, proven=True))).proof
        assert proof is not None
        return proof

    async def _await(self, entry: _Entry) -> _Written:
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
            return entry.done.result(self._tuning.deadline_s).number
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

    def _enter(self, event: AuditEvent, *, proven: bool = False) -> _Entry:
        fields(event)  # our mistakes show here, in their author's stack
        entry = _Entry(event, self._clock_ms(), proven)
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
        try:
            self._write([], sign=True)
        except Exception:  # noqa: BLE001 — the next start signs what this one could not
            self._failing = True
        self._sinks.close(self._tuning.deadline_s)

    def _gather(self) -> list[_Entry]:
        """All that wait, up to a group; nobody, where it is time to do something without them."""
        group: list[_Entry | None] = []
        try:
            group.append(self._queue.get(timeout=self._patience_s()))
            if self._busy:
                time.sleep(GATHER_S)
            while len(group) < GROUP_MAX:
                group.append(self._queue.get_nowait())
        except queue.Empty:
            pass
        self._busy = len(group) >= BUSY_FROM
        return [entry for entry in group if entry is not None]

    def _patience_s(self) -> float | None:
        if self._failing:
            return self._tuning.retry_s
        if self._sinks.has_changed:
            return 0.0
        waits = [] if self._sinks.all_current else [self._tuning.retry_s]
        if self._tip.unsigned:
            waits.append(max(0.0, self._sign_at_s - time.monotonic()))
        return min(waits, default=None)

    def _commit(self, group: list[_Entry]) -> None:
        ours = [entry for entry in group if entry.done.set_running_or_notify_cancel()]
        due = self._tip.unsigned >= self._tuning.sign_records
        try:
            composed = self._write(
                [(entry.event, entry.at_ms) for entry in ours],
                sign=due or time.monotonic() >= self._sign_at_s,
            )
            self._failing = self._stalled = False  # before anybody hears that it is written
            for number, entry in enumerate(ours, composed.first):
                if not entry.proven:
                    entry.done.set_result(_Written(number))
            self._prove(ours, composed)
        except Exception as error:  # noqa: BLE001 — whatever it is, who waits must be told
            self._failing = True
            for entry in ours:
                if not entry.done.done():
                    entry.done.set_exception(AuditUnavailable(type(error).__name__))

    def _prove(self, ours: list[_Entry], composed: Composed) -> None:
        """Those records that are to be proven: a checkpoint over all there is, and their paths."""
        if not any(entry.proven for entry in ours):
            return
        covered = self._tip
        note = self._write([], sign=True).note
        assert note is not None
        for at, (line, entry) in enumerate(zip(composed.lines, ours, strict=True)):
            if entry.proven:
                number = composed.first + at
                entry.done.set_result(_Written(number, inclusion(covered, number, line, note)))

    def _write(self, events: list[Timed], *, sign: bool) -> Composed:
        """Make all durable, after what is to be told of ourselves."""
        self._sinks.tend()
        for change in self._sinks.changes():
            self._report(change)
            self._untold.append(_told(change))
        told = list(self._untold)
        if self._failing:
            told.insert(0, AuditEvent(kind="audit.recovered", reason="sink_failed"))
        now_ms = self._clock_ms()
        composed = compose(
            self._tip,
            [*((event, now_ms) for event in told), *events],
            keys=self._keys,
            now_ms=now_ms,
            segment_bytes=self._tuning.segment_bytes,
            sign=sign,
        )
        self._sinks.write(composed.batch)
        if composed.after.signed is not self._tip.signed or not self._tip.unsigned:
            self._sign_at_s = time.monotonic() + self._tuning.sign_s
        self._tip = composed.after
        self._untold = []
        count = len(told)
        return replace(composed, first=composed.first + count, lines=composed.lines[count:])


def _told(change: Changed) -> AuditEvent:
    lost = change.reason is not None
    return AuditEvent(
        kind="audit.sink_lost" if lost else "audit.sink_back",
        target=str(change.sink),
        reason=change.reason,
        count=change.lacks if lost else None,
    )
