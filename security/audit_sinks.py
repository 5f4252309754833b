"""The directories of one log at work: a record counts when one that is current has it; one that fails or
is late falls behind, and counts again when it has caught up.

Each directory of several has a thread of its own, so that one that hangs holds nobody up longer than its deadline.
While none succeeds, nothing is durable and everybody is told so: where all refuse, all are cut back to
where they were; where all hang, the first that comes back decides.  One that is behind copies what it
lacks from one that is current, by itself at first, and its last steps between two batches.

Refuses to know: what is written, and why.  Used by one thread (`audit_log`'s).
Source: SECURITY.md §6 (OpenBao: a blocking device hangs everything).
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass

from security.audit_catch_up import catch_up
from security.audit_files import Batch, Files, Place

NEAR_RECORDS = 2000
"""What a directory may lack and be waited for, at most one deadline."""


@dataclass(frozen=True, slots=True)
class SinkState:
    """`lacks`: records, as of the last commit.  `reason`: a word, None while it is current."""

    folder: str
    current: bool
    lacks: int = 0
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Changed:
    """A directory fell behind (`reason`) or came back (None)."""

    sink: int
    reason: str | None
    lacks: int


class Sink:
    """One directory and its thread.  `reason` None: it has all there is."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.reason: str | None = None
        self.try_at_s = 0.0
        self.job: Future[None] | None = None
        self._work: queue.SimpleQueue[tuple[Callable[[], None], Future[None]] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._run, name="audit-sink", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        return self.job is not None and not self.job.done()

    def begin(self, work: Callable[[], None]) -> Future[None]:
        assert not self.busy
        self.job = Future()
        self._work.put((work, self.job))
        return self.job

    def end(self, timeout_s: float) -> None:
        self._work.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            work, done = item
            try:
                work()
            except Exception as error:  # noqa: BLE001 — whatever it is, who waits must be told
                done.set_exception(error)
            else:
                done.set_result(None)
        self.files.close()


class Sinks:
    def __init__(
        self,
        files: Sequence[Files],
        place: Place,
        key: bytes,
        *,
        deadline_s: float,
        retry_s: float,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sinks = [Sink(each) for each in files]
        self._place = place
        self._key = key
        self._deadline_s = deadline_s
        self._retry_s = retry_s
        self._monotonic_s = monotonic_s
        self._changes: list[Changed] = []

    @property
    def all_current(self) -> bool:
        return all(each.reason is None for each in self._sinks)

    def states(self) -> tuple[SinkState, ...]:
        """May be asked by any thread."""
        count = self._place.head.link.count
        return tuple(
            SinkState(
                str(each.files.folder),
                (reason := each.reason) is None,
                0 if reason is None else max(0, count - each.files.place.head.link.count),
                reason,
            )
            for each in self._sinks
        )

    @property
    def has_changed(self) -> bool:
        return bool(self._changes)

    def changes(self) -> list[Changed]:
        """What has changed since this was last asked."""
        found, self._changes = self._changes, []
        return found

    def tend(self) -> None:
        """Bring those that are behind a step nearer; one that failed is let be for a while."""
        for sink in self._sinks:
            if sink.reason is None or sink.busy:
                continue
            succeeded = _succeeded(sink.job)
            if sink.job is not None and (error := sink.job.exception()) is not None:
                sink.reason = type(error).__name__
            if succeeded and sink.files.place == self._place:
                self._back(sink)
            elif succeeded or self._monotonic_s() >= sink.try_at_s:
                self._approach(sink, wait_s=self._deadline_s if succeeded else 0)

    def _approach(self, sink: Sink, wait_s: float) -> None:
        sink.try_at_s = self._monotonic_s() + self._retry_s
        source = next(each for each in self._sinks if each.reason is None)
        near = self._lacks(sink) <= NEAR_RECORDS
        job = sink.begin(_copying(sink.files, source.files, self._place, self._key))
        wait([job], timeout=wait_s if near else 0)
        if _succeeded(job):
            self._back(sink)

    def write(self, batch: Batch) -> None:
        """Durable in one directory at least, or in none.  Raises what the last one raised."""
        if len(self._sinks) == 1:  # nobody would go on without it: no hop to its thread and back
            self._sinks[0].files.write(batch)
            self._place = batch.after
            return
        current = [each for each in self._sinks if each.reason is None]
        jobs = {each.begin(_writing(each.files, batch)): each for each in current}
        done, late = wait(jobs, timeout=self._deadline_s)
        while late and not any(_succeeded(job) for job in done):
            more, late = wait(late, return_when=FIRST_COMPLETED)
            done |= more
        if not any(_succeeded(job) for job in done):
            for job in done:
                job.result()
        self._place = batch.after
        for job, sink in jobs.items():
            if job in late:
                self._behind(sink, "deadline")
            elif error := job.exception():
                self._behind(sink, type(error).__name__)

    def close(self, timeout_s: float) -> None:
        for each in self._sinks:
            each.end(timeout_s)

    def _behind(self, sink: Sink, reason: str) -> None:
        sink.reason = reason
        sink.try_at_s = self._monotonic_s() + self._retry_s
        self._changes.append(Changed(self._sinks.index(sink), reason, self._lacks(sink)))

    def _back(self, sink: Sink) -> None:
        assert sink.files.place == self._place
        sink.reason = None
        self._changes.append(Changed(self._sinks.index(sink), None, 0))

    def _lacks(self, sink: Sink) -> int:
        return self._place.head.link.count - sink.files.place.head.link.count


def _succeeded(job: Future[None] | None) -> bool:
    return job is not None and job.done() and job.exception() is None


def _writing(files: Files, batch: Batch) -> Callable[[], None]:
    return lambda: files.write(batch)


def _copying(files: Files, source: Files, upto: Place, key: bytes) -> Callable[[], None]:
    return lambda: catch_up(files, source.folder, upto, key)
