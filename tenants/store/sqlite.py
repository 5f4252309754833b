"""SQLite: one file, one process, one writer.  Source: MONEY.md §1 (WAL, FULL, BEGIN IMMEDIATE)."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import DatabaseError

from tenants.schema.versions import SchemaMismatch, check, prepare
from tenants.sql import changed, drive
from tenants.store.refused import StoreRefused

T = TypeVar("T")

BUSY_MS = 5_000
CHECKED_BYTES_MOST: Final = 256 * 1024 * 1024
"""Up to this size a database is checked from end to end when it is opened."""


class SqliteBackend:
    """A connection that writes, or one that only reads."""

    def __init__(self, path: Path, *, write: bool) -> None:
        self.engine = engine(path, write=write)

    def commit(self, work: Callable[[Connection], T]) -> T:
        with self.engine.begin() as conn:
            return work(conn)

    def close(self) -> None:
        self.engine.dispose()


def sqlite_path(url: URL) -> Path:
    """Where the file really lies, so that the lock beside it is one, by whatever link it is named.
    Raises StoreRefused."""
    if not url.database or url.database == ":memory:":
        raise StoreRefused("database_url names no file; the book must outlive the process")
    return Path(url.database).resolve()


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
        connection.execute(
            "PRAGMA secure_delete = ON"
        )  # what is overwritten or freed is not left behind
        connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
        connection.execute("PRAGMA foreign_keys = ON")

    def on_begin(connection: Connection) -> None:
        drive(connection, "BEGIN IMMEDIATE" if write else "BEGIN", (), changed)

    event.listen(made, "connect", on_connect)
    event.listen(made, "begin", on_begin)
    return made


def opened(path: Path) -> tuple[SqliteBackend, SqliteBackend]:
    """Who writes and who reads, the schema up to date.  The file must be locked.  StoreRefused."""
    writer = SqliteBackend(path, write=True)
    try:
        _prepare(writer.engine, path)
    except BaseException:
        writer.close()
        raise
    return writer, SqliteBackend(path, write=False)


def empty_wal(path: Path) -> bool:
    """On a connection of its own: a checkpoint cannot run within a transaction."""
    with closing(sqlite3.connect(path, timeout=BUSY_MS / 1000, isolation_level=None)) as connection:
        busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy


def rewrite(path: Path) -> bool:
    """Every page anew.  What is overwritten or freed is zeroed, but where pages were balanced, copies of what
    was moved stay in their gaps."""
    with closing(sqlite3.connect(path, timeout=BUSY_MS / 1000, isolation_level=None)) as connection:
        try:
            connection.execute("VACUUM")
        except sqlite3.OperationalError:
            return False
    return True


def lock(path: Path) -> int:
    """A descriptor that holds the file for this process.  StoreRefused."""
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
