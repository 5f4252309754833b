"""Random bytes of the system, some drawn ahead.

A call of the system lets other threads have the interpreter, and while they write for the book it is not back soon:
what takes a microsecond alone takes ten under load, and a request would make three such calls.
Safe between threads; not across a fork, of which there is none here.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

AHEAD_BYTES = 4096


class Ahead:
    def __init__(self, draw: Callable[[int], bytes] = os.urandom) -> None:
        self._draw = draw
        self._lock = threading.Lock()
        self._drawn = b""
        self._at = 0

    def take(self, count: int) -> bytes:
        """`count` bytes that nobody has had, at most AHEAD_BYTES."""
        with self._lock:
            if self._at + count > len(self._drawn):
                self._drawn, self._at = self._draw(AHEAD_BYTES), 0
            start, self._at = self._at, self._at + count
            return self._drawn[start : self._at]

    def hex(self, count: int) -> str:
        return self.take(count).hex()
