"""One thread that runs what waits, a group at a time.

Theory of operation.  A durable commit costs an fsync of milliseconds, whatever is in it.  The thread
takes everything that waits, runs it in one transaction, commits once, and only then tells the callers.
Mostly nothing raises, so a group runs without savepoints; where something does, the transaction is
rolled back and the group run again, each operation in a savepoint, so that who raised is undone alone.
An operation must therefore bear being run again: what it does, it does to the database.
A commit that fails fails them all, and then nobody knows: an error means *unknown*.

What is asked in large numbers (holds, settlements) is not an operation each: `Asked` says what, and all
that is asked of one `turn` in a group is one call of it, before the group's other operations.  Else they
run in the order they were submitted, and also when their caller has stopped listening.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, IntegrityError

T = TypeVar("T")
A = TypeVar("A")
Op = Callable[[Connection], Any]

GROUP_MOST = 256
"""Operations in one commit."""
BUSY_FROM, GATHER_S = 4, 0.001
"""After a group of so many, whoever they answered is about to ask again: the next group waits this long
for them, instead of beginning with the first alone (PostgreSQL's `commit_siblings`, `commit_delay`)."""
WAITING_MOST = 8192
"""Operations that may wait; beyond it the store is not keeping up, and says so."""


class StoreUnavailable(Exception):
    """The store cannot answer now; what was asked may or may not have happened.  Retryable."""


class Backend(Protocol):
    """A connection to one database, used by one thread."""

    def commit(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a transaction of its own and commit.  Raises what `work` raised, with nothing
        done, or what the database raised."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Asked(Generic[A]):
    """One of many: `turn` answers all of a group at once, in order; an exception among its answers is
    that one's alone."""

    turn: Callable[[Connection, Sequence[A]], Sequence[Any]]
    what: A


@dataclass(frozen=True, slots=True)
class _Job:
    op: Op | Asked[Any]
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


@dataclass(frozen=True, slots=True)
class _Raised:
    why: Exception


class Worker:
    """One thread, one backend, one bounded queue."""

    def __init__(self, backend: Backend, name: str) -> None:
        self._backend = backend
        self._jobs: queue.Queue[_Job | None] = queue.Queue(WAITING_MOST + 1)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, op: Callable[[Connection], T] | Asked[Any]) -> asyncio.Future[T]:
        if self._closed:
            raise StoreUnavailable("the store is closed")
        if self._jobs.qsize() >= WAITING_MOST:
            raise StoreUnavailable(f"more than {WAITING_MOST} operations wait for the store")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put_nowait(_Job(op, future, loop))
        return future

    def close(self) -> None:
        """What was submitted is done first."""
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
            self._thread.join()

    def _run(self) -> None:
        more, busy = True, False
        while more:
            group: list[_Job] = []
            job = self._jobs.get()
            if busy and job is not None:
                time.sleep(GATHER_S)
            while True:
                if job is None:
                    more = False
                    break
                group.append(job)
                if len(group) == GROUP_MOST:
                    break
                try:
                    job = self._jobs.get_nowait()
                except queue.Empty:
                    break
            busy = len(group) >= BUSY_FROM
            if group:
                _tell(group, self._commit([each.op for each in group]))
        self._backend.close()

    def _commit(self, ops: Sequence[Op | Asked[Any]]) -> list[Any]:
        """The operations' results, or what each raised, in order."""
        outcomes: list[Any] = []

        def together(conn: Connection) -> None:
            outcomes[:] = []
            outcomes[:] = _together(conn, ops)

        try:
            self._backend.commit(together)
            return outcomes
        except Exception as why:  # noqa: BLE001 — handed to the caller whose operation it was
            if outcomes:  # it was the commit
                return [_Raised(unavailable(why)) for _ in ops]
            if len(ops) == 1 or _gone(why):
                return [_Raised(_as_told(why)) for _ in ops]
        try:
            return self._backend.commit(lambda conn: [_alone(conn, op) for op in ops])
        except Exception as why:  # noqa: BLE001 — whatever it was, every caller must hear of it
            return [_Raised(unavailable(why)) for _ in ops]


def _together(conn: Connection, ops: Sequence[Op | Asked[Any]]) -> list[Any]:
    outcomes: list[Any] = [None] * len(ops)
    turns: dict[Any, list[int]] = {}
    for at, op in enumerate(ops):
        if isinstance(op, Asked):
            turns.setdefault(op.turn, []).append(at)
    for turn, places in turns.items():
        answers = turn(conn, [ops[at].what for at in places])  # type: ignore[union-attr]
        for at, answer in zip(places, answers, strict=True):
            outcomes[at] = _Raised(answer) if isinstance(answer, Exception) else answer
    for at, op in enumerate(ops):
        if not isinstance(op, Asked):
            outcomes[at] = op(conn)
    return outcomes


def _alone(conn: Connection, op: Op | Asked[Any]) -> Any:
    savepoint = conn.begin_nested()
    try:
        (result,) = _together(conn, [op])
    except Exception as why:
        if _gone(why):
            raise
        savepoint.rollback()
        return _Raised(_as_told(why))
    savepoint.commit()
    return result


def _gone(why: Exception) -> bool:
    """Not this operation's failure but the transaction's: the backend tries it again, or nobody does."""
    if isinstance(why, DBAPIError):
        return why.connection_invalidated or in_the_way(why)
    return isinstance(why, StoreUnavailable)


def in_the_way(why: DBAPIError) -> bool:
    """Another gateway's transaction was; this one was undone, and is to be run again."""
    return _sqlstate(why) in {"40001", "40P01"}


def _sqlstate(why: DBAPIError) -> str:
    """Empty where the database says none."""
    state: Any = getattr(why.orig, "sqlstate", None)
    return state if isinstance(state, str) else ""


def _as_told(why: Exception) -> Exception:
    """What the database refused for what was asked of it is the operation's own; the rest says that it
    cannot answer now (classes of PostgreSQL's SQLSTATE: data, integrity, syntax)."""
    if isinstance(why, DBAPIError):
        state = _sqlstate(why)
        own = state[:2] in {"22", "23", "42"} if state else isinstance(why, IntegrityError)
        return why if own else unavailable(why)
    return unavailable(why) if isinstance(why, OSError) else why  # TimeoutError is one


def unavailable(why: Exception) -> StoreUnavailable:
    """Names the kind of error only: a driver's message may quote parameters."""
    if isinstance(why, StoreUnavailable):
        return why
    cause = getattr(why, "orig", None) or why
    told = StoreUnavailable(f"the store failed with {type(cause).__name__}; try again")
    told.__cause__ = why
    return told


def _tell(group: list[_Job], outcomes: list[Any]) -> None:
    """One wake-up a loop, however many wait."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Job, Any]]] = {}
    for job, outcome in zip(group, outcomes, strict=True):
        by_loop.setdefault(job.loop, []).append((job, outcome))
    for loop, told in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, told)
        except RuntimeError:  # that loop has ended; nobody listens
            continue


def _resolve(told: list[tuple[_Job, Any]]) -> None:
    for job, outcome in told:
        if job.future.done():  # its caller has gone
            continue
        if isinstance(outcome, _Raised):
            job.future.set_exception(outcome.why)
        else:
            job.future.set_result(outcome)
