"""What ran for a gateway that is no more: counts, kept until nobody can ask, written once, at the end.

Theory of operation.  A gateway that is killed takes with it what it knew of its requests, and their holds
would be billed as reserved.  The executor still knows: of those that run, and of the last `KEPT` that
ended, whose end the gateway may not have booked.  When its parent's pipe closes it writes a line each into
a file beside its socket, and the next gateway books them; what was booked before stays as it was.

Counts and an id that means nothing here; no token ids.  Refuses to know: prices, what is billed of it.
Source: MONEY.md §1 ("Crash recovery": usage by reservation id, durable, replayed).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from executor.contract import WORDS_SUFFIX, Cause, Ended, Word
from executor.sequence import Sequence

KEPT: Final = 4096


class LastWords:
    """Owned by the engine."""

    def __init__(self) -> None:
        self._ended: deque[Word] = deque(maxlen=KEPT)

    def ended(self, seq: Sequence, how: Ended) -> None:
        if (word := _word(seq, how)) is not None:
            self._ended.append(word)

    def said(self, living: Iterable[Sequence], start: str) -> list[Word]:
        """All of them, as if those that live were aborted now."""
        running = (_word(seq, seq.ended(Cause.ABORTED)) for seq in living)
        words = (*self._ended, *(word for word in running if word is not None))
        return [msgspec.structs.replace(word, start=start) for word in words]


def _word(seq: Sequence, how: Ended) -> Word | None:
    billed = seq.job.billed
    if billed is None:
        return None
    return Word(
        id=billed.id,
        prompt=billed.prompt,
        prompt_tokens=seq.prompt_tokens,
        ended=how,
        warm=seq.job.warm,
    )


def write(words: Iterable[Word], folder: Path) -> None:
    """Durable, and whole or not there.  OSError."""
    lines = b"".join(msgspec.json.encode(word) + b"\n" for word in words)
    if not lines:
        return
    fresh = folder / f"{os.getpid()}-{os.urandom(4).hex()}.new"
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(lines)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(fresh.with_suffix(WORDS_SUFFIX))
    folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder_fd)
    finally:
        os.close(folder_fd)
