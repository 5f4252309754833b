"""A tenant's deletion, driven: begun, drained, exported, and step by step to its end.

An asynchronous face on `deletion`.  Refuses to know: HTTP, secrets and executors, who may.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Connection

from policies.periods import Month
from tenants import closing, deletion, tenant_export
from tenants.deletion import Deletion, DeletionRefused
from tenants.pseudonyms import SALT_BYTES, names_of, tombstone
from tenants.resealing import Both
from tenants.retention import Retention

__all__ = ["Deleting", "Deletion", "DeletionRefused"]

LEARNT_MS = 35_000
"""By then every gateway has heard that it is suspended, or lets nobody in."""


@dataclass(frozen=True, slots=True)
class Deleting:
    kept: Retention

    async def find(self, tenant: str) -> Deletion | None:
        return await self.kept.store.read(
            lambda conn: deletion.find(conn, self.kept.digest, tenant)
        )

    async def begin(self, tenant: str, *, actor: str, reason: str) -> Deletion:
        drawn = f"deleted:{self.kept.drawn(8).hex()}"

        def op(conn: Connection) -> Deletion:
            return deletion.begin(
                conn, self.kept.digest, tenant,
                drawn=drawn, now_ms=self._now_ms(conn), actor=actor, reason=reason,
            )  # fmt: skip

        return await self.kept.store.write(op)

    async def abandon(self, of: Deletion) -> bool:
        return await self.kept.store.write(lambda conn: deletion.abandon(conn, of))

    async def held(self, tenant: str) -> int:
        return await self.kept.store.read(lambda conn: deletion.held(conn, tenant))

    def export(self, tenant: str) -> AsyncIterator[bytes]:
        return tenant_export.stream(self.kept.store, tenant)

    async def accept(self, of: Deletion, sha256: str) -> None:
        """The export that somebody has is what there is, and its closed months are what was closed.  From here on
        there is no way back.  DeletionRefused, MonthDiffers."""
        tenant = str(of.tenant)
        now_ms = await self.kept.store.read(self._now_ms)
        if self.kept.store.shared and now_ms < of.at_ms + LEARNT_MS:
            wait_s = (of.at_ms + LEARNT_MS - now_ms) // 1000 + 1
            raise DeletionRefused(
                "deletion_too_soon",
                "other gateways may not have heard yet that it is suspended",
                wait_s,
            )
        if await tenant_export.sha256(self.kept.store, tenant) != sha256:
            raise DeletionRefused(
                "export_differs", "this is not what is kept of it now; export it anew"
            )
        for period in await self.kept.store.read(lambda conn: deletion.closed_months(conn, tenant)):
            both = await self._counted(period, of)
            await self.kept.store.read(partial(deletion.check, both=both))
        await self.kept.store.write(lambda conn: deletion.exported(conn, of, sha256))

    async def finish(self, of: Deletion) -> bool:
        """All steps that are left.  DeletionRefused, MonthDiffers: ask again when that is mended.  False: it is over,
        but the files are still to be written anew, which `Retention.sweep` tries again."""
        while (left := await self.kept.store.write(partial(self._step, of=of))) is not False:
            if isinstance(left, Month):
                both = await self._counted(left, of)
                await self.kept.store.write(partial(self._reseal, of=of, both=both))
        return await self.kept.wipe()

    def _step(self, conn: Connection, *, of: Deletion) -> Month | bool:
        assert of.tenant is not None
        drawn = self.kept.drawn(SALT_BYTES)
        names = names_of(conn, of.tenant, self.kept.digest, drawn)
        return deletion.step(conn, of, names, now_ms=self._now_ms(conn))

    def _reseal(self, conn: Connection, *, of: Deletion, both: Both) -> None:
        deletion.reseal(conn, of, both, now_ms=self._now_ms(conn))

    async def _counted(self, period: Month, of: Deletion) -> Both:
        both, place = Both(period, str(of.tenant), of.pseudonym), closing.Place()
        while True:
            page = await self.kept.store.read(
                partial(closing.read_page, period=period, place=place)
            )
            part, rows, onwards = page
            both.take(part, rows)
            if onwards is None:
                return both
            place = onwards

    def tombstone(self, tenant: str) -> str:
        return tombstone(self.kept.digest, tenant)

    def _now_ms(self, conn: Connection) -> int:
        return self.kept.store.clock_ms(self.kept.clock_ms)(conn)
