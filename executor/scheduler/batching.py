"""When newcomers may join: three policies, of which one is for serving and two are for comparing with.

- continuous: whenever there is room (Orca, OSDI 2022).
- dynamic: when nothing runs, and `size` wait or the oldest has waited `wait_ms`; then nobody joins until
  all have ended.
- static: the same without the wait: whoever is there when the last batch has ended, up to `size`.

Refuses to know: who should join first.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, Protocol


class Batching(StrEnum):
    CONTINUOUS = "continuous"
    DYNAMIC = "dynamic"
    STATIC = "static"


@dataclass(frozen=True, slots=True)
class BatchRule:
    kind: Batching = Batching.CONTINUOUS
    size: int = 16
    wait_ms: int = 50

    def __post_init__(self) -> None:
        assert self.size >= 1
        assert self.wait_ms >= 0


ALWAYS: Final = BatchRule()


class Newcomers(NamedTuple):
    """How many may join now at most; `wake_ns`: if none, when that may be different with no news."""

    most: int
    wake_ns: int | None = None


class Waits(Protocol):
    @property
    def since_ns(self) -> int: ...


def newcomers(
    rule: BatchRule, running: int, waiting: Collection[Waits], rows: int, now_ns: int
) -> Newcomers:
    """`rows`: the most that may run at once."""
    if rule.kind is Batching.CONTINUOUS:
        return Newcomers(rows)  # the rows that are free bound it too, and somebody may be put out
    size = min(rule.size, rows)
    if running:
        return Newcomers(0)
    if rule.kind is Batching.STATIC or len(waiting) >= size or not waiting:
        return Newcomers(size)
    due_ns = min(each.since_ns for each in waiting) + rule.wait_ms * 1_000_000
    return Newcomers(size) if now_ns >= due_ns else Newcomers(0, due_ns)
