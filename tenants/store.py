"""SQL, reached from an event loop: one writer that commits in groups, one reader beside it.

Refuses to know: what is written.  Operations are plain functions over a `Connection`, so that the
same code runs on PostgreSQL.  Source: MONEY.md §1 (WAL, FULL, BEGIN IMMEDIATE, group commit).

Theory of operation.  A durable commit costs an fsync of milliseconds, whatever is in it.  The writer
thread takes everything that waits, runs each operation in a savepoint of one transaction, commits
once, and only then tells the callers.  An operation that raises is rolled back alone; a commit that
fails fails them all, and then nobody knows: an error means *unknown*.  Operations run in the order
they were submitted, and also when their caller has stopped listening.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DatabaseError, OperationalError

from tenants.schema import SchemaMismatch, check, prepare

T = TypeVar("T")

GROUP_MOST = 256
"""Operations in one commit."""
WAITING_MOST = 8192
"""Operations that may wait; beyond it the store is not keeping up, and says so."""
BUSY_MS = 5_000
CHECKED_BYTES_MOST = 256 * 1024 * 1024
"""Up to this size a database is checked from end to end when it is opened."""


class StoreUnavailable(Exception):
    """The store cannot answer now; what was asked may or may not have happened.  Retryable."""


class StoreRefused(Exception):
    """The store cannot be opened at all; says what was found, what was expected, what to do."""


@dataclass(frozen=True, slots=True)
class _Job:
    op: Callable[[Connection], Any]
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


@dataclass(frozen=True, slots=True)
class _Raised:
    why: Exception


class _Worker:
    """One thread, one connection, one bounded queue."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._jobs: queue.Queue[_Job | None] = queue.Queue(WAITING_MOST + 1)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, op: Callable[[Connection], T]) -> asyncio.Future[T]:
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
            self._engine.dispose()

    def _run(self) -> None:
        more = True
        while more:
            group: list[_Job] = []
            job = self._jobs.get()
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
            if group:
                _tell(group, self._commit(group))

    def _commit(self, group: Iterable[_Job]) -> list[Any]:
        """The operations' results, or what each raised, in order."""
        jobs = list(group)
        try:
            with self._engine.begin() as conn:
                outcomes = [_attempt(conn, job.op) for job in jobs]
        except Exception as why:  # noqa: BLE001 — whatever it was, every caller must hear of it
            return [_Raised(_unavailable(why)) for _ in jobs]
        return outcomes


def _attempt(conn: Connection, op: Callable[[Connection], Any]) -> Any:
    savepoint = conn.begin_nested()
    try:
        result = op(conn)
    except OperationalError as why:
        savepoint.rollback()
        return _Raised(_unavailable(why))
    except Exception as why:  # noqa: BLE001 — handed to the caller whose operation it was
        savepoint.rollback()
        return _Raised(why)
    savepoint.commit()
    return result


def _unavailable(why: Exception) -> StoreUnavailable:
    """Names the kind of error only: a driver's message may quote parameters."""
    cause = getattr(why, "orig", None) or why
    unavailable = StoreUnavailable(f"the store failed with {type(cause).__name__}; try again")
    unavailable.__cause__ = why
    return unavailable


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


class Store:
    """Open with `Store.open`; close it when everything that writes has ended."""

    def __init__(self, writer: Engine, reader: Engine, lock_fd: int, path: Path) -> None:
        self._writer = _Worker(writer, "store-writer")
        self._reader = _Worker(reader, "store-reader")
        self._lock_fd = lock_fd
        self._path = path
        self._emptying = threading.Lock()

    @classmethod
    def open(cls, database_url: str) -> Store:
        """Raises StoreRefused.  Holds a lock on the file: a second process is refused, since each
        would take the other's holds for those of the dead."""
        path = sqlite_path(database_url)
        lock_fd = _lock(path)
        try:
            writer = engine(path, write=True)
            try:
                _prepare(writer, path)
            except BaseException:
                writer.dispose()
                raise
            return cls(writer, engine(path, write=False), lock_fd, path)
        except BaseException:
            os.close(lock_fd)
            raise

    async def write(self, op: Callable[[Connection], T]) -> T:
        """Run `op` and commit.  Raises what `op` raised, or StoreUnavailable.  A caller that is
        cancelled stops waiting, it does not undo."""
        return await self._writer.submit(op)

    def write_soon(self, op: Callable[[Connection], Any]) -> None:
        """Submit without waiting, after everything submitted before."""
        self._writer.submit(op).add_done_callback(_heard)

    async def read(self, op: Callable[[Connection], T]) -> T:
        """Run `op` on the reader, which sees what is committed and can write nothing."""
        return await self._reader.submit(op)

    async def forget_overwritten(self) -> None:
        """Bring the write-ahead log into the file and empty it, so that what was overwritten or deleted
        before is in neither.  StoreUnavailable where others kept it busy; try again."""

        def alone() -> bool:
            with self._emptying:  # two at once get in each other's way
                return _empty_wal(self._path)

        if not await asyncio.to_thread(alone):
            raise StoreUnavailable("the write-ahead log is busy and keeps what was overwritten")

    def close(self) -> None:
        self._writer.close()
        self._reader.close()
        os.close(self._lock_fd)


def _heard(future: asyncio.Future[Any]) -> None:
    """Nobody awaits it; take note of its exception, so that asyncio does not complain."""
    if not future.cancelled():
        future.exception()


def sqlite_path(database_url: str) -> Path:
    try:
        url = make_url(database_url)
    except ArgumentError as why:
        raise StoreRefused("database_url is no URL; expected sqlite:///path/to/file.db") from why
    if url.get_backend_name() != "sqlite":
        raise StoreRefused(
            f"database_url names {url.get_backend_name()!r}, which is not supported yet; "
            "use sqlite:///path/to/file.db"
        )
    if not url.database or url.database == ":memory:":
        raise StoreRefused("database_url names no file; the book must outlive the process")
    return Path(url.database)


def engine(path: Path, *, write: bool) -> Engine:
    """SQLite with transactions that begin when we say so (the driver's own habit is later)."""
    made = create_engine(
        URL.create("sqlite", database=str(path)),
        pool_size=1,
        max_overflow=0,
        hide_parameters=True,
        connect_args={"check_same_thread": False, "timeout": BUSY_MS / 1000},
    )

    def on_connect(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode = WAL" if write else "PRAGMA query_only = ON")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA secure_delete = FAST")  # what is overwritten is not left behind
        connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
        connection.execute("PRAGMA foreign_keys = ON")

    def on_begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    event.listen(made, "connect", on_connect)
    event.listen(made, "begin", on_begin)
    return made


def _empty_wal(path: Path) -> bool:
    """On a connection of its own: a checkpoint cannot run within a transaction."""
    with closing(sqlite3.connect(path, timeout=BUSY_MS / 1000, isolation_level=None)) as connection:
        busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy


def _lock(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Made before SQLite opens it, so that it and its journals are never readable by others.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        lock_fd = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as why:
        raise StoreRefused(
            f"{path} cannot be opened for writing ({why.strerror}); check the path and its owner"
        ) from why
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as why:
        os.close(lock_fd)
        raise StoreRefused(
            f"{path} is in use by another process; stop it, or name another --state-dir"
        ) from why
    return lock_fd


def _prepare(writer: Engine, path: Path) -> None:
    """Look first, without so much as switching the journal mode of a file that is not ours."""
    probe = engine(path, write=False)
    try:
        with probe.begin() as conn:
            if path.stat().st_size <= CHECKED_BYTES_MOST:
                found = conn.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
                if found != "ok":
                    raise SchemaMismatch("is damaged; restore it from a backup")
            check(conn)
        with writer.begin() as conn:
            prepare(conn)
    except SchemaMismatch as why:
        raise StoreRefused(f"{path} {why}") from why
    except DatabaseError as why:
        raise StoreRefused(
            f"{path} is no readable database ({type(why.orig).__name__}); "
            "restore it from a backup, or name another file"
        ) from why
    finally:
        probe.dispose()
