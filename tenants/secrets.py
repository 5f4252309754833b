"""Tenants' secrets as they are kept: wrapped bytes by tenant and version, and nothing that unwraps them.

A row outlives its bytes: what is destroyed leaves its number taken.  Refuses to know: roots' meaning,
what a secret protects.  Source: SECURITY.md §6 (Keys: shredding = destroy the wrapped secret).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import IntegrityError

from tenants import generations
from tenants.generations import Of
from tenants.schema import tenant_secret
from tenants.store import Store


@dataclass(frozen=True, slots=True)
class SecretRow:
    """`root` and `wrapped` are empty once it is destroyed."""

    tenant: str
    version: int
    root: str
    wrapped: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class SecretTable:
    """In the database of the directory.  Every call is durable when it returns; StoreUnavailable."""

    store: Store

    async def load(self) -> Sequence[SecretRow]:
        def op(conn: Connection) -> list[SecretRow]:
            return [SecretRow(*row) for row in conn.execute(select(tenant_secret))]

        return await self.store.read(op)

    async def generation(self) -> int:
        """Another one as soon as anything of what `load` reads has changed."""
        return await self.store.read(lambda conn: generations.generation(conn, Of.SECRETS))

    async def add(self, *, tenant: str, version: int, root: str, wrapped: bytes) -> bool:
        """False where there is that version already, which another gateway has made."""

        def op(conn: Connection) -> None:
            generations.count_up(conn, Of.SECRETS)
            conn.execute(insert(tenant_secret).values(row))

        row = {"tenant": tenant, "version": version, "root": root, "wrapped": wrapped}
        try:
            await self.store.write(op)
        except IntegrityError:
            return False
        return True

    async def rewrap(self, rows: Iterable[tuple[str, int, str, bytes]]) -> None:
        await self._put([SecretRow(*row) for row in rows])

    async def destroy(self, *, tenant: str, versions: Iterable[int]) -> None:
        await self._put([SecretRow(tenant, version, "", b"") for version in versions])

    async def _put(self, rows: Sequence[SecretRow]) -> None:
        """All or none, and nothing of what was there stays in the file or its log."""

        def op(conn: Connection) -> None:
            generations.count_up(conn, Of.SECRETS)
            for row in rows:
                found = conn.execute(
                    update(tenant_secret)
                    .where(
                        tenant_secret.c.tenant == row.tenant, tenant_secret.c.version == row.version
                    )
                    .values(root=row.root, wrapped=row.wrapped)
                )
                assert found.rowcount == 1, "a secret that was never kept"

        await self.store.write(op)
        await self.store.forget_overwritten()
