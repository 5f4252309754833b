"""How many records there are of each, a tenant or one within it, and how many bytes: as last counted, and by what this
process has added since, so that no request sums a table.  Refuses to know: what is kept, how much may be.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Tally(Generic[K]):
    def __init__(self) -> None:
        self._kept: dict[K, tuple[int, int]] = {}

    def names(self) -> tuple[K, ...]:
        """Those that have any."""
        return tuple(self._kept)

    def of(self, name: K) -> tuple[int, int]:
        """Records, bytes."""
        return self._kept.get(name, (0, 0))

    def add(self, name: K, records: int, size_bytes: int) -> None:
        had = self.of(name)
        self._kept[name] = had[0] + records, had[1] + size_bytes

    def count(self, counted: Mapping[K, tuple[int, int]]) -> None:
        """Instead of all that was thought so far."""
        self._kept = dict(counted)

    def forget(self, of: Callable[[K], bool]) -> None:
        self._kept = {name: kept for name, kept in self._kept.items() if not of(name)}
