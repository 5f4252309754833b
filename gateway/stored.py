"""Stored responses as the house works with them: sealed on the way in, opened for whose they are alone.

Sealed under the tenant's secret and bound to their id, so that a record put in another's row opens nowhere, and
destroying the secret destroys all of them.  Whether there is room is decided before anything is done for one; what was
paid for is then kept.  Refuses to know: HTTP, what an item or a response says, who may read what it was made from.
Source: DESIGN.md, settled 7; SECURITY.md P8, P10, P12.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

import msgspec

from gateway.errors import ApiError, from_deny, not_found, unavailable
from gateway.kept import Basis
from gateway.registered import shredded
from gateway.tape import Tape
from policies.facts import Principal
from policies.verdict import Deny, Reason
from security.keyring_tenants import SecretGone, TenantSecrets
from security.seal import Place, SealBroken, SealPurpose, Seals, secret_version
from tenants.responses import Begun, Responses, Row, Whose
from tenants.responses_rows import OPEN
from tenants.store import Store, StoreUnavailable

COUNTED_EVERY: Final = 12
"""In sweeps: once a minute."""
LOOK_S: Final = 0.2
CANCEL_LOOKS: Final = 15
"""By then whoever works on it has ended it, or is taken to have gone."""
ROOM_BYTES: Final = 64 * 1024
"""Of an answer, on top of what was asked."""


class Content(msgspec.Struct, frozen=True):
    """`items`: what was put in; `response`: what came of it; both as JSON.  `events`: its stream, where it was
    made in the background as one; nothing until it is over."""

    items: bytes
    response: bytes
    basis: Basis
    events: bytes | None = None


@dataclass(frozen=True, slots=True)
class Found:
    row: Row
    content: Content


@dataclass(slots=True)
class AtWork:
    """A response that is made here in the background.  `begun`: it is in the database; `now`: as it is told by now, None before it has begun;
    `streamed`: its events were asked for; `claim`: of the key by which it was asked for; `cancelling`: it is ended because
    somebody asked for that."""

    tape: Tape
    begun: Callable[[], bool]
    now: Callable[[], bytes | None]
    streamed: Callable[[], bool]
    claim: str | None = None
    task: asyncio.Task[None] | None = None
    cancelling: bool = False

    async def cancel(self) -> None:
        """Until it is over: what was generated is billed, and what there is of it is kept."""
        self.cancelling = True
        await self.end()

    async def end(self) -> None:
        self.tape.abandon()
        if self.task is not None:
            await asyncio.wait([self.task])


class Stored:
    """One for a gateway.  `running`: what is made here in the background."""

    def __init__(
        self, table: Responses, seals: Seals, secrets: TenantSecrets, log: Callable[..., None]
    ) -> None:
        self.table = table
        self._seals = seals
        self._secrets = secrets
        self._log = log
        self.running: dict[str, AtWork] = {}
        self._open: set[str] = set()
        self._sweeps = 0
        self._watching: asyncio.Task[None] | None = None

    async def begin(self, who: Principal, what: Begun, content: Content | None, size: int) -> None:
        """Before anything is done for it.  `size`: of what was asked.  Raises ApiError 403, 503."""
        whose = whose_of(who)
        try:
            await self._secrets.ensure(whose.tenant)
            if not self.table.has_room(whose, size + ROOM_BYTES):
                raise full()
            if content is not None:
                sealed, version = await self._sealed(whose.tenant, what.id, content)
                what = Begun(what.id, what.model, what.background, what.previous, sealed, version)
            await self.table.begin(whose, what)
        except SecretGone:
            raise shredded() from None
        except StoreUnavailable as why:
            raise down() from why
        self._open.add(what.id)

    async def progress(self, id_: str) -> None:
        try:
            await self.table.progress(id_)
        except StoreUnavailable as why:
            self._log("responses.unkept", error=why)

    async def keep(self, who: Principal, id_: str, status: str, content: Content) -> bool:
        """It is over.  False where it is not kept: it was removed meanwhile, or that failed and is logged."""
        whose = whose_of(who)
        self._open.discard(id_)
        try:
            sealed, version = await self._sealed(whose.tenant, id_, content)
            return await self.table.keep(whose, id_, status, sealed, version)
        except (SecretGone, StoreUnavailable) as why:
            self._log("responses.unkept", error=why)
            return False

    async def abandon(self, id_: str) -> None:
        """Nothing came of it.  Where that cannot be said, its lease will."""
        self._open.discard(id_)
        try:
            await self.table.abandon(id_)
        except StoreUnavailable as why:
            self._log("responses.unkept", error=why)

    async def find(self, who: Principal, id_: str) -> Found | None:
        """None where there is none of theirs, and where nothing opens it any more.  Raises ApiError 403, 503."""
        whose = whose_of(who)
        try:
            row = await self.table.find(whose, id_)
        except StoreUnavailable as why:
            raise down() from why
        return None if row is None else await self._found(whose.tenant, row)

    async def chain(self, who: Principal, id_: str) -> tuple[list[Found], bool]:
        """It and what it went on from, the first first, as far as it is there: False where a part of it is gone.
        Raises ApiError 403, 503."""
        whose = whose_of(who)
        try:
            rows, whole = await self.table.chain(whose, id_)
        except StoreUnavailable as why:
            raise down() from why
        found = [each for row in rows if (each := await self._found(whose.tenant, row))]
        return found, whole and len(found) == len(rows)

    async def remove(self, who: Principal, id_: str) -> bool:
        try:
            return await self.table.remove(whose_of(who), id_)
        except StoreUnavailable as why:
            raise down() from why

    async def cancel(self, who: Principal, id_: str) -> None:
        """What is made in the background ends, at whichever gateway.  Waits for it, but not for ever: whoever does not
        answer by then has gone, or finds it cancelled."""
        if (work := self.running.get(id_)) is not None:
            await work.cancel()
            return
        try:
            wanted = await self.table.cancel(whose_of(who), id_)
            for _ in range(CANCEL_LOOKS if wanted else 0):
                await asyncio.sleep(LOOK_S)
                row = await self.table.find(whose_of(who), id_)
                if row is None or row.status not in OPEN:
                    return
            if wanted:
                await self.table.end_unheard(whose_of(who), id_)
        except StoreUnavailable as why:
            raise down() from why

    async def cancel_claimed(self, claims: Collection[str]) -> bool:
        """The same of what was begun here by one of these keys; False where nothing was."""
        works = [each for each in self.running.values() if each.claim in claims]
        for work in works:
            await work.cancel()
        return bool(works)

    def watch(self) -> None:
        """While anything is made here in the background: whether another gateway was asked to end it."""
        if self.table.shared and (self._watching is None or self._watching.done()):
            self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while self.running:
            await asyncio.sleep(LOOK_S)
            try:
                begun = tuple(id_ for id_, work in self.running.items() if work.begun())
                for id_ in await self.table.to_end(begun):
                    if (work := self.running.get(id_)) is not None:
                        await work.cancel()
            except StoreUnavailable as why:
                self._log("responses.unwatched", error=why)

    async def aclose(self) -> None:
        """What still runs ends, and is kept as what it came to."""
        await asyncio.gather(*(work.end() for work in tuple(self.running.values())))
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    # Again and again, while the house stands.

    async def renew(self) -> None:
        await self.table.renew(tuple(self._open))

    async def sweep(self) -> None:
        """A slice of what is over, and whatever a crash left of a tenant whose secret was destroyed."""
        await self.table.sweep()
        self._sweeps += 1
        if self._sweeps % COUNTED_EVERY == 0:
            await self.table.counted()
        for tenant in self.table.tenants():
            if self._secrets.is_shredded(tenant):
                await self.table.forget(tenant)

    async def reseal(self, tenant: str) -> tuple[int, int]:
        """What an old secret sealed, under the newest: how many were sealed anew, and how many are damaged."""
        try:
            newest = self._secrets.current(tenant).version
        except SecretGone:
            return 0, 0
        count = damaged = 0
        after = ""
        while some := await self.table.stale(tenant, newest, after):
            for id_, old in some:
                after = id_
                try:
                    new = await asyncio.to_thread(self._anew, _place(tenant, id_), old)
                except (SecretGone, SealBroken) as why:
                    damaged += 1
                    self._log("responses.broken", error=why)
                    continue
                count += await self.table.reseal(id_, old, new, secret_version(new))
        return count, damaged

    # How.

    def _anew(self, place: Place, old: bytes) -> bytes:
        return self._seals.seal_bytes(place, self._seals.open_bytes(place, old))

    async def _sealed(self, tenant: str, id_: str, content: Content) -> tuple[bytes, int]:
        def work() -> bytes:
            packed = zlib.compress(msgspec.msgpack.encode(content), 1)
            return self._seals.seal_bytes(_place(tenant, id_), packed)

        record = await asyncio.to_thread(work)
        return record, secret_version(record)

    async def _found(self, tenant: str, row: Row) -> Found | None:
        if row.sealed is None:
            return None  # it runs, and nobody has been told of it
        sealed = row.sealed

        def work() -> Content:
            packed = self._seals.open_bytes(_place(tenant, row.id), sealed)
            return msgspec.msgpack.decode(zlib.decompress(packed), type=Content)

        try:
            return Found(row, await asyncio.to_thread(work))
        except SecretGone:
            return None
        except SealBroken as why:
            self._log("responses.broken", error=why)
            return None


async def open_stored(
    store: Store,
    owner: str,
    clock_ms: Callable[[], int],
    seals: Seals,
    secrets: TenantSecrets,
    log: Callable[..., None],
) -> Stored:
    """`owner` names this process, anew at each start."""
    table = Responses(store, owner=owner, clock_ms=clock_ms)
    await table.recover()
    await table.counted()
    return Stored(table, seals, secrets, log)


def whose_of(who: Principal) -> Whose:
    """Raises ApiError 403 for who belongs to no tenant."""
    if who.tenant is None:
        raise from_deny(Deny(Reason.NO_TENANT))
    return Whose(who.tenant, who.project or "", who.issuer, who.user)


def _place(tenant: str, id_: str) -> Place:
    return Place(SealPurpose.RESPONSE, tenant, id_, 1)


def absent() -> ApiError:
    """One body for what is not there, is another's, has lapsed and cannot be opened."""
    return not_found(
        "There is no such response, or it is not yours. Only responses made with store: true are kept, for 30 days.",
        code="response_not_found",
    )


def full() -> ApiError:
    return ApiError(
        403,
        "permission_error",
        "responses_full",
        "There is no room to store it: nobody may keep more than three times what is left of their tenant's room. "
        "Delete responses of yours that are no longer needed, or ask with store: false.",
        param="store",
    )


def down() -> ApiError:
    return unavailable(
        "Stored responses could not be reached, so nothing was done. Try again.",
        code="responses_down",
    )
