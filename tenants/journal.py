"""Ends of holds that the store could not take, kept in a file until it can: nothing that was used is lost
because the database was away.

A line each, flushed to the disk before it counts.  Told again and again it is still one effect, since
the book answers a repeat with the first result.  Counts and ids only, readable by its owner alone.
Refuses to know: when to try again (book).  Source: MONEY.md §1 ("Outages": streams finish and journal).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tenants.asks import SettleAsk, VoidAsk

End = SettleAsk | VoidAsk

WAITING_MOST = 100_000
"""Ends that may wait for the store; beyond it the caller hears that it is away."""


class JournalFull(Exception):
    """Neither the store nor the journal can take what ended."""


class _Line(msgspec.Struct, frozen=True, omit_defaults=True):
    settle: SettleAsk | None = None
    void: VoidAsk | None = None


class Journal:
    """One process's.  `waiting` is what the file holds."""

    def __init__(self, path: Path) -> None:
        """OSError where it cannot be read or made."""
        self._path = path
        self._waiting = _read(path)
        self._writing = asyncio.Lock()

    @property
    def waiting(self) -> tuple[End, ...]:
        return tuple(self._waiting)

    def __len__(self) -> int:
        return len(self._waiting)

    async def append(self, end: End) -> None:
        """Durable when it returns.  JournalFull."""
        if len(self._waiting) >= WAITING_MOST:
            raise JournalFull(f"{WAITING_MOST} ends wait for the store already")
        async with self._writing:
            try:
                await asyncio.to_thread(_append, self._path, _encoded(end))
            except OSError as why:
                raise JournalFull(f"the journal failed with {type(why).__name__}") from why
            self._waiting.append(end)

    async def taken(self, count: int) -> None:
        """The store has taken the first `count`."""
        async with self._writing:
            rest = self._waiting[count:]
            await asyncio.to_thread(_replace, self._path, rest)
            self._waiting = rest


def _encoded(end: End) -> bytes:
    line = _Line(settle=end) if isinstance(end, SettleAsk) else _Line(void=end)
    return msgspec.json.encode(line) + b"\n"


def _read(path: Path) -> list[End]:
    """A last line without its end was never acknowledged."""
    if not path.exists():
        return []
    whole = path.read_bytes()
    lines = whole[: whole.rfind(b"\n") + 1].splitlines()
    if len(whole) > whole.rfind(b"\n") + 1:
        os.truncate(path, whole.rfind(b"\n") + 1)
    read = (msgspec.json.decode(line, type=_Line) for line in lines)
    return [end for line in read if (end := line.settle or line.void) is not None]


def _append(path: Path, line: bytes) -> None:
    """All of it or, where the disk is full, none of it."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        before = os.fstat(fd).st_size
        try:
            if os.write(fd, line) < len(line):
                raise OSError("the disk took a part of it")
            os.fsync(fd)
        except OSError:
            os.ftruncate(fd, before)
            raise
    finally:
        os.close(fd)


def _replace(path: Path, rest: Sequence[End]) -> None:
    if not rest:
        path.unlink(missing_ok=True)
        return
    fresh = path.with_suffix(".new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.writelines(map(_encoded, rest))
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
