"""A store of wrapped secrets without a database, which can be made to fail."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Row:
    tenant: str
    version: int
    root: str
    wrapped: bytes


@dataclass
class MemoryStore:
    """`failing`: changes are refused.  `gate`: changes say that they are `entered`, and wait for it."""

    rows: dict[tuple[str, int], Row] = field(default_factory=dict)
    failing: bool = False
    changes: int = 0
    gate: asyncio.Event | None = None
    entered: asyncio.Event = field(default_factory=asyncio.Event)

    async def load(self) -> Sequence[Row]:
        return list(self.rows.values())

    async def generation(self) -> int:
        return self.changes

    async def add(self, *, tenant: str, version: int, root: str, wrapped: bytes) -> bool:
        await self._ready()
        if (tenant, version) in self.rows:
            return False
        self.changes += 1
        self.rows[tenant, version] = Row(tenant, version, root, wrapped)
        return True

    async def rewrap(self, rows: Iterable[tuple[str, int, str, bytes]]) -> None:
        await self._ready()
        self.changes += 1
        self.rows.update({(row[0], row[1]): Row(*row) for row in rows})

    async def destroy(self, *, tenant: str, versions: Iterable[int]) -> None:
        await self._ready()
        self.changes += 1
        for version in versions:
            self.rows[tenant, version] = Row(tenant, version, "", b"")

    async def _ready(self) -> None:
        self.entered.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.failing:
            raise ConnectionError
