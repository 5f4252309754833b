"""Idempotency keys: claimed, and ended, durably before anybody hears of it.

An asynchronous face on `idempotency_rows`; every call is one operation in the store's group commit, and each may
raise StoreUnavailable: then nobody knows, and the lease tells later.  How much is kept of each tenant is counted
now and then (`counted`) and added to in between, so that no claim sums a table.
Refuses to know: what is asked, what is sealed.  The database's clock decides leases and days (`Store.clock_ms`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from policies.idempotency import Verdict
from tenants import idempotency_rows as rows
from tenants.idempotency_rows import LEASE_S, SWEEP_MOST, TTL_S, Claim, Found
from tenants.store import Store
from tenants.tally import Tally

__all__ = ["LEASE_S", "TTL_S", "Claim", "Found", "IdempotencyKeys"]

KEYS_MAX: Final = 1_000_000
"""Of one tenant within `TTL_S`: a dozen a second all day."""
ANSWERS_BYTES_MAX: Final = 256 * 2**20
"""Of one tenant, sealed."""


class IdempotencyKeys:
    """`owner` names this process, anew at each start."""

    def __init__(self, store: Store, *, owner: str, clock_ms: Callable[[], int]) -> None:
        self._store = store
        self._owner = owner
        self._now_ms = store.clock_ms(clock_ms)
        self._tally = Tally[str]()

    def tenants(self) -> tuple[str, ...]:
        """Those that have any."""
        return self._tally.names()

    def has_room(self, tenant: str, size_bytes: int) -> bool:
        return self._tally.of(tenant)[1] + size_bytes <= ANSWERS_BYTES_MAX

    async def claim(self, ask: Claim) -> Found:
        room = self._tally.of(ask.tenant)[0] < KEYS_MAX
        found = await self._store.write(
            lambda conn: rows.claim(
                conn, ask, owner=self._owner, now_ms=self._now_ms(conn), room=room
            )
        )
        if found.verdict is Verdict.RUN:
            self._tally.add(ask.tenant, 1, 0)
        return found

    async def keep(self, ask: Claim, sealed: bytes, version: int) -> bool:
        """Done, and its answer is told again.  False where the key is somebody else's by now."""
        self._tally.add(ask.tenant, 0, len(sealed))  # so that of many at once each sees the others
        kept = await self._finish(ask, sealed, version, None)
        if not kept:
            self._tally.add(ask.tenant, 0, -len(sealed))
        return kept

    async def close(self, ask: Claim, why: str) -> bool:
        """Done, without an answer."""
        return await self._finish(ask, None, 0, why)

    async def free(self, ask: Claim) -> None:
        if await self._store.write(lambda conn: rows.free(conn, ask.digest, ask.request_id)):
            self._tally.add(ask.tenant, -1, 0)

    async def renew(self, digests: Sequence[str]) -> None:
        if digests:
            await self._store.write(
                lambda conn: rows.renew(conn, digests, owner=self._owner, now_ms=self._now_ms(conn))
            )

    async def sweep(self) -> int:
        """Every few seconds, a slice: forget what is over."""
        return await self._store.write(lambda conn: rows.sweep(conn, now_ms=self._now_ms(conn)))

    async def forget(self, tenant: str) -> int:
        """All answers of a tenant whose secret was destroyed, slice by slice."""
        count = 0
        while some := await self._store.write(lambda conn: rows.forget(conn, tenant)):
            count += some
            if some < SWEEP_MOST:
                break
        return count

    async def drop(self, tenant: str, version: int, why: str) -> int:
        return await self._store.write(lambda conn: rows.drop(conn, tenant, version, why))

    async def counted(self) -> None:
        self._tally.count(await self._store.read(rows.tally))

    async def _finish(
        self, ask: Claim, sealed: bytes | None, version: int, why: str | None
    ) -> bool:
        return await self._store.write(
            lambda conn: rows.finish(conn, ask.digest, ask.request_id, sealed, version, why)
        )
