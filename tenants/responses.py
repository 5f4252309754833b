"""Stored responses: begun, kept and removed durably before anybody hears of it.

An asynchronous face on `responses_rows`; each call may raise StoreUnavailable.  How much is kept of each tenant, and of
each principal of it, is counted now and then (`counted`) and added to in between, so that no request sums a table.
Refuses to know: what is said, what is sealed.  The database's clock decides leases and days (`Store.clock_ms`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from policies.shedding import may_hold
from tenants import responses_rows as rows
from tenants.responses_rows import KEPT_S, LEASE_S, SWEEP_MOST, Begun, Row, Whose
from tenants.store import Store
from tenants.tally import Tally

__all__ = ["CHAIN_MAX", "KEPT_S", "LEASE_S", "Begun", "Responses", "Row", "Whose"]

KEPT_MAX: Final = 100_000
"""Of one tenant at a time."""
BYTES_MAX: Final = 2**30
"""Of one tenant, sealed."""
CHAIN_MAX: Final = 128
"""Responses that one conversation goes back over."""


class Responses:
    """`owner` names this process, anew at each start."""

    def __init__(self, store: Store, *, owner: str, clock_ms: Callable[[], int]) -> None:
        self._store = store
        self._owner = owner
        self._now_ms = store.clock_ms(clock_ms)
        self._tally = Tally[str]()
        self._held = Tally[Whose]()

    @property
    def shared(self) -> bool:
        """Whether other processes may keep theirs in the same table."""
        return self._store.shared

    def tenants(self) -> tuple[str, ...]:
        """Those that have any."""
        return self._tally.names()

    def has_room(self, whose: Whose, size_bytes: int) -> bool:
        """Nobody holds so much of their tenant's room that the next of it finds none."""
        (own_many, own), (many, size) = self._held.of(whose), self._tally.of(whose.tenant)
        return may_hold(own_many, many, KEPT_MAX) and may_hold(
            own + size_bytes, size + size_bytes, BYTES_MAX
        )

    async def begin(self, whose: Whose, what: Begun) -> None:
        await self._store.write(
            lambda conn: rows.begin(conn, whose, what, owner=self._owner, now_ms=self._now_ms(conn))
        )
        self._add(whose, 1, len(what.sealed or b""))

    async def progress(self, id_: str) -> bool:
        return await self._store.write(lambda conn: rows.progress(conn, id_, owner=self._owner))

    async def keep(self, whose: Whose, id_: str, status: str, sealed: bytes, version: int) -> bool:
        more = await self._store.write(
            lambda conn: rows.keep(conn, id_, status, sealed, version, owner=self._owner)
        )
        self._add(whose, 0, more or 0)
        return more is not None

    async def abandon(self, id_: str) -> bool:
        return self._gone(
            await self._store.write(lambda conn: rows.abandon(conn, id_, owner=self._owner))
        )

    async def find(self, whose: Whose, id_: str) -> Row | None:
        return await self._store.read(
            lambda conn: rows.find(conn, whose, id_, now_ms=self._now_ms(conn))
        )

    async def chain(self, whose: Whose, id_: str) -> tuple[list[Row], bool]:
        return await self._store.read(
            lambda conn: rows.chain(conn, whose, id_, now_ms=self._now_ms(conn), most=CHAIN_MAX)
        )

    async def remove(self, whose: Whose, id_: str) -> bool:
        return self._gone(await self._store.write(lambda conn: rows.remove(conn, whose, id_)))

    async def cancel(self, whose: Whose, id_: str) -> bool:
        return await self._store.write(lambda conn: rows.cancel(conn, whose, id_))

    async def end_unheard(self, whose: Whose, id_: str) -> bool:
        return await self._store.write(lambda conn: rows.end_unheard(conn, whose, id_))

    async def to_end(self, ids: Sequence[str]) -> list[str]:
        return await self._store.read(lambda conn: rows.to_end(conn, ids))

    async def renew(self, ids: Sequence[str]) -> None:
        if ids:
            await self._store.write(
                lambda conn: rows.renew(conn, ids, owner=self._owner, now_ms=self._now_ms(conn))
            )

    async def recover(self) -> None:
        """Once at start, before serving: what processes that are no more left open is over.  Where others write too,
        nobody knows whose process is no more until its lease is over."""
        if not self._store.shared:
            await self._store.write(
                lambda conn: rows.recover(conn, owner=self._owner, now_ms=self._now_ms(conn))
            )

    async def sweep(self) -> None:
        """Every few seconds, a slice: forget what is over."""
        self._gone(
            await self._store.write(lambda conn: rows.sweep(conn, now_ms=self._now_ms(conn)))
        )

    async def forget(self, tenant: str) -> int:
        """All of a tenant whose secret was destroyed, slice by slice."""
        count = 0
        while some := await self._store.write(lambda conn: rows.forget(conn, tenant)):
            count += some
            if some < SWEEP_MOST:
                break
        self._tally.forget(lambda each: each == tenant)
        self._held.forget(lambda each: each.tenant == tenant)
        return count

    async def sealed_by(self, tenant: str) -> Mapping[int, int]:
        return await self._store.read(lambda conn: rows.sealed_by(conn, tenant))

    async def stale(self, tenant: str, newest: int, after: str) -> list[tuple[str, bytes]]:
        return await self._store.read(lambda conn: rows.stale(conn, tenant, newest, after))

    async def reseal(self, id_: str, old: bytes, new: bytes, version: int) -> bool:
        return await self._store.write(lambda conn: rows.reseal(conn, id_, old, new, version))

    async def counted(self) -> None:
        held = await self._store.read(rows.tally)
        self._held.count(held)
        sums: dict[str, tuple[int, int]] = {}
        for whose, (many, size) in held.items():
            had = sums.get(whose.tenant, (0, 0))
            sums[whose.tenant] = had[0] + many, had[1] + size
        self._tally.count(sums)

    def _gone(self, gone: rows.Gone) -> bool:
        """There is room again at once.  Whether there was any."""
        for whose, size_bytes in gone:
            self._add(whose, -1, -size_bytes)
        return bool(gone)

    def _add(self, whose: Whose, records: int, size_bytes: int) -> None:
        self._held.add(whose, records, size_bytes)
        self._tally.add(whose.tenant, records, size_bytes)
