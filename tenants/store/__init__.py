"""SQL, reached from an event loop: one writer that commits in groups, one reader beside it.

Refuses to know: what is written.  Operations are plain functions over a `Connection`; the same run on
SQLite and on PostgreSQL.  `worker` has the theory of operation.  Source: MONEY.md §1.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, make_url
from sqlalchemy.exc import ArgumentError

from tenants.store import postgres, sqlite
from tenants.store.refused import StoreRefused
from tenants.store.worker import Asked, Backend, StoreUnavailable, Worker

__all__ = ["Store", "StoreRefused", "StoreUnavailable", "file_of"]

T = TypeVar("T")
A = TypeVar("A")


class _File:
    """What only a database in a file has: a lock, and a log that keeps what was overwritten."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock_fd = sqlite.lock(path)
        self._emptying = threading.Lock()

    def empty_log(self) -> bool:
        with self._emptying:  # two at once get in each other's way
            return sqlite.empty_wal(self._path)

    def rewrite(self) -> bool:
        with self._emptying:
            return sqlite.rewrite(self._path)

    def close(self) -> None:
        os.close(self._lock_fd)


class Store:
    """Open with `Store.open`; close it when everything that writes has ended."""

    def __init__(self, writer: Backend, reader: Backend, file: _File | None = None) -> None:
        self._writer = Worker(writer, "store-writer")
        self._reader = Worker(reader, "store-reader")
        self._file = file

    @classmethod
    def open(cls, database_url: str) -> Store:
        """Raises StoreRefused.  Holds a lock on a file: a second process is refused, since each would
        take the other's holds for those of the dead."""
        try:
            url = make_url(database_url)
        except ArgumentError as why:
            raise StoreRefused(
                "database_url is no URL; expected sqlite:///path/to/file.db or postgresql://…"
            ) from why
        kind = url.get_backend_name()
        if kind == "postgresql":
            return cls(*postgres.opened(url))
        if kind != "sqlite":
            raise StoreRefused(
                f"database_url names {kind!r}, which is not supported; "
                "use sqlite:///path/to/file.db or postgresql://user@host/database"
            )
        path = sqlite.sqlite_path(url)
        file = _File(path)
        try:
            return cls(*sqlite.opened(path), file)
        except BaseException:
            file.close()
            raise

    @property
    def shared(self) -> bool:
        """Whether other processes may write it too; then its own clock decides (`clock_ms`)."""
        return self._file is None

    def clock_ms(self, ours: Callable[[], int]) -> Callable[[Connection], int]:
        """The one clock that decides windows and leases: the database's, and of a file the process's."""
        return postgres.database_ms if self.shared else lambda _: ours()

    async def write(self, op: Callable[[Connection], T]) -> T:
        """Run `op` and commit.  Raises what `op` raised, or StoreUnavailable.  A caller that is
        cancelled stops waiting, it does not undo.  `op` may be run again, with nothing done before."""
        return await self._writer.submit(op)

    async def ask(self, turn: Callable[[Connection, Sequence[A]], Sequence[Any]], what: A) -> Any:
        """`write`, for what is asked in large numbers: all that waits is one call of `turn`, which
        answers in order, with a value or with an exception that is that one's alone."""
        return await self._writer.submit(Asked(turn, what))

    def ask_soon(self, turn: Callable[[Connection, Sequence[A]], Sequence[Any]], what: A) -> None:
        """The same without waiting."""
        self._writer.submit(Asked(turn, what)).add_done_callback(_heard)

    async def read(self, op: Callable[[Connection], T]) -> T:
        """Run `op` on the reader, which sees what is committed and can write nothing."""
        return await self._reader.submit(op)

    async def forget_overwritten(self, *, rewrite: bool = False) -> None:
        """Bring the write-ahead log into the file and empty it, so that what was overwritten or deleted
        before is in neither.  `rewrite`: nor in gaps of pages, for which the whole file is written anew and
        who writes waits.  StoreUnavailable where others kept it busy; try again.  PostgreSQL keeps versions of
        rows until it vacuums, and its log beyond that: nothing is promised there."""
        if self._file is None:
            return
        if rewrite and not await asyncio.to_thread(self._file.rewrite):
            raise StoreUnavailable("the file could not be written anew: it was busy, or is full")
        if not await asyncio.to_thread(self._file.empty_log):
            raise StoreUnavailable("the write-ahead log is busy and keeps what was overwritten")

    def close(self) -> None:
        self._writer.close()
        self._reader.close()
        if self._file is not None:
            self._file.close()


def file_of(database_url: str) -> Path | None:
    """The file that holds it; None where that is a server's business.  StoreRefused."""
    url = make_url(database_url)
    return sqlite.sqlite_path(url) if url.get_backend_name() == "sqlite" else None


def _heard(future: asyncio.Future[Any]) -> None:
    """Take note of its exception, so that asyncio does not complain."""
    if not future.cancelled():
        future.exception()
