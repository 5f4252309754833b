"""Which of those who wait have waited too long: nothing of them is computed any more.

Looks at the queue only when somebody is due.  Refuses to know: what happens to them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from executor.sequence import Key, Sequence

_NEVER_NS: Final = 2**63


class Deadlines:
    """Owned by the engine."""

    def __init__(self) -> None:
        self._due_ns = _NEVER_NS

    def file(self, seq: Sequence) -> None:
        if seq.deadline_ns is not None:
            self._due_ns = min(self._due_ns, seq.deadline_ns)

    def is_due(self, now_ns: int) -> bool:
        return now_ns >= self._due_ns

    def passed(self, waiting: Iterable[Sequence], now_ns: int) -> list[Key]:
        """Of `waiting`, those whose prefill should have begun by now and did not."""
        due: list[Key] = []
        self._due_ns = _NEVER_NS
        for seq in waiting:
            if seq.deadline_ns is None or seq.started:
                continue
            if seq.deadline_ns <= now_ns:
                due.append(seq.key)
            else:
                self._due_ns = min(self._due_ns, seq.deadline_ns)
        return due
