"""How many records there are of each tenant and how many bytes: as last counted, and by what this process has added
since, so that no request sums a table.  Refuses to know: what is kept, how much may be.
"""

from __future__ import annotations

from collections.abc import Mapping


class Tally:
    def __init__(self) -> None:
        self._kept: dict[str, tuple[int, int]] = {}

    def tenants(self) -> tuple[str, ...]:
        """Those that have any."""
        return tuple(self._kept)

    def of(self, tenant: str) -> tuple[int, int]:
        """Records, bytes."""
        return self._kept.get(tenant, (0, 0))

    def add(self, tenant: str, records: int, size_bytes: int) -> None:
        had = self.of(tenant)
        self._kept[tenant] = had[0] + records, had[1] + size_bytes

    def count(self, counted: Mapping[str, tuple[int, int]]) -> None:
        """Instead of all that was thought so far."""
        self._kept = dict(counted)

    def forget(self, tenant: str) -> None:
        self._kept.pop(tenant, None)
