"""A copy of the book in a file, taken while it is written, and put back when nobody is.

A copy is whole or it is not there, and is looked through from end to end before anybody is told of it.
It holds what the database holds: no text in clear, tenants' secrets wrapped by a root key that is not
in it.  PostgreSQL has tools of its own (deploy/README.md).
Refuses to know: where copies belong, how long they are kept.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, case, func, select
from sqlalchemy.exc import DatabaseError

from tenants import schema
from tenants.postings import SPEND
from tenants.schema.versions import SchemaMismatch, check
from tenants.store import sqlite
from tenants.store.refused import StoreRefused

_R, _L = schema.reservation, schema.ledger_entry
_READ_BYTES = 1 << 20
_SIDE = ("-wal", "-shm", "-journal", ".lock", ".before")
"""What names beside a book's are its own: SQLite's logs, our lock, the one that was replaced."""


@dataclass(frozen=True, slots=True)
class Copy:
    """What a copy holds.  `spent_nano_usd` is the ledger's own total, `open` the requests that ran."""

    path: Path
    size_bytes: int
    sha256: str
    revision: str
    requests: int
    open: int
    ledger_entries: int
    spent_nano_usd: int


def back_up(path: Path, to: Path) -> Copy:
    """Copy the book at `path`, which may be in use, to a new file.  StoreRefused."""
    if to.exists():
        raise StoreRefused(f"{to} is there already; name a new file")
    if not path.is_file():
        raise StoreRefused(f"there is no book at {path}; check --config or --state-dir")
    if to.resolve() in {Path(f"{path.resolve()}{side}") for side in _SIDE}:
        raise StoreRefused(f"{to} is a name that the book's own files have; name another")
    part = _new(to)
    try:
        with (
            closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as source,
            closing(sqlite3.connect(part)) as target,
        ):
            source.backup(target)  # at once: writers go on beside it, in the write-ahead log
        _durable(part)
        found = look_through(part)
        part.replace(to)
        _durable(to.parent)
    except (sqlite3.Error, OSError) as why:
        raise StoreRefused(f"{path} cannot be copied ({why})") from why
    finally:
        _away(part)
    return _named(found, to)


def restore(source: Path, path: Path, *, replace: bool = False) -> Copy:
    """Put a copy where the book belongs.  Nobody may have the book open.  With `replace` a book that is
    there is kept beside it, named `….before`.  StoreRefused."""
    if not source.is_file():
        raise StoreRefused(f"there is no file {source}")
    for log in (Path(f"{source}-wal"), Path(f"{source}-journal")):
        if log.exists() and log.stat().st_size:
            raise StoreRefused(
                f"{source} is a book and no copy: {log} holds a part of it. Copy it with `lockgate backup`, and "
                "restore that"
            )
    lock_fd = sqlite.lock(path)
    try:
        if path.samefile(source):
            raise StoreRefused(f"{source} is the book itself; name a copy of it")
        there = path.stat().st_size > 0
        if there and not replace:
            raise StoreRefused(f"there is a book at {path}; --replace keeps it as {path}.before")
        part = _new(path)
        try:
            _copy(source, part)
            found = look_through(part, called=source)  # the copy's copy: the source stays as it is
            if there:
                _keep(path)
            # From here on the book is the copy; until here it is what it was.
            part.replace(path)
            _durable(path.parent)
        except OSError as why:
            raise StoreRefused(f"{path} cannot be written ({why}); nothing was changed") from why
        finally:
            _away(part)
    finally:
        os.close(lock_fd)
    return _named(found, path)


def _copy(source: Path, part: Path) -> None:
    with source.open("rb") as read, part.open("wb") as write:
        while chunk := read.read(_READ_BYTES):
            write.write(chunk)
    _durable(part)


def _keep(path: Path) -> None:
    """The book that is there gets a second name, under which it stays."""
    before = path.with_name(f"{path.name}.before")
    if before.exists():
        raise StoreRefused(f"{before} is there already; move it away first")
    if not sqlite.empty_wal(path):
        raise StoreRefused(f"{path} is being read; stop whoever reads it")
    for log in (f"{path}-wal", f"{path}-shm"):  # empty, and not the copy's
        Path(log).unlink(missing_ok=True)
    os.link(path, before)


def look_through(path: Path, *, called: Path | None = None) -> Copy:
    """From end to end, and what the ledger in it comes to.  StoreRefused, which names it as `called`."""
    name = called or path
    engine = sqlite.engine(path, write=False)
    try:
        with engine.begin() as conn:
            damage = conn.exec_driver_sql("PRAGMA integrity_check(1)").scalar_one()
            if damage != "ok":
                raise StoreRefused(f"{name} is damaged; take another copy")
            revision = check(conn)
            if revision is None:
                raise StoreRefused(f"{name} is empty; name a copy of a book")
            requests, running = conn.execute(
                select(func.count(), func.sum(case((_R.c.state == "HELD", 1), else_=0)))
            ).one()
            entries, spent = _ledger(conn)
    except SchemaMismatch as why:
        raise StoreRefused(f"{name} {why}") from why
    except DatabaseError as why:
        raise StoreRefused(f"{name} is no database of Lockgate's; name a copy of a book") from why
    finally:
        engine.dispose()
    size, digest = _digest(path)
    return Copy(path, size, digest, revision, requests, int(running or 0), entries, spent)


def _ledger(conn: Connection) -> tuple[int, int]:
    signed = case((_L.c.credit == SPEND, _L.c.amount), else_=0) - case(
        (_L.c.debit == SPEND, _L.c.amount), else_=0
    )
    entries, spent = conn.execute(select(func.count(), func.sum(signed)).select_from(_L)).one()
    return int(entries), int(spent or 0)


def _digest(path: Path) -> tuple[int, str]:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_READ_BYTES):
            digest.update(chunk)
    return path.stat().st_size, digest.hexdigest()


def _new(path: Path) -> Path:
    """A file beside `path` that nobody else can read, and that what was killed left no name for."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except OSError as why:
        raise StoreRefused(f"{part} cannot be made ({why.strerror})") from why
    return part


def _away(part: Path) -> None:
    for each in (part, Path(f"{part}-wal"), Path(f"{part}-shm"), Path(f"{part}-journal")):
        each.unlink(missing_ok=True)


def _durable(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _named(found: Copy, path: Path) -> Copy:
    return Copy(
        **{name: getattr(found, name) for name in Copy.__dataclass_fields__} | {"path": path}
    )
