"""Registered texts as the house works with them: sealed on the way in, revoked to the last reader on
the way out.

Theory of operation.  Taking a right away is five steps, in this order, and its answer comes after the
last: durable in SQL, under a version that never comes back; visible in memory, so that nothing new is
admitted by it; the executors told, who answer when no look-up can hit any more; running readers, which
were interrupted at once, gone; what was replaced wiped from the files, if not now then by a later round.
A crash in between leaves the first step done and every later one moot, since the keys of all that was
cached die with the process.  What an executor does not acknowledge is owed to it and asked again by
`sweep`, and the caller is told that it is not over.

Refuses to know: HTTP, who may (`policies.registered`; a caller says, of what is replaced), chat templates.
Source: SECURITY.md §2, P6, P8, P12; DESIGN.md, settled 3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import msgspec

from executor.contract import COVERS_MAX
from gateway.errors import ApiError, unavailable
from gateway.live import Live, LiveRequest
from gateway.permission import Permission
from policies.registered import narrower
from policies.scope.labels import Document
from security.cache_keys import CacheKeys
from security.keyring_tenants import SecretGone, TenantSecrets
from security.seal import Place, SealBroken, SealPurpose, Seals
from tenants.documents import Documents, Kind, Record, Room, Sealed, VersionMoved, templates_of
from tenants.store import StoreUnavailable

ABORT_S_MAX: Final = 10.0
"""A reader whose abort is not confirmed by then is the executor's to end, which has been told."""


OVERTAKEN_MAX: Final = 8
"""So often is a change judged anew, because another process changed the same meanwhile."""

Changed = Callable[[Record], Record]
"""Of the record that is replaced: may this be done to it, and what it becomes.  Asked when its turn has
come, so that nobody else's change lies between.  Raises ApiError."""


class Revoker(Protocol):
    """One executor's side of a revocation."""

    async def revoke(self, tags: tuple[bytes, ...], snapshot: int) -> None:
        """Returns when no look-up can hit what rests on one of `tags` and was decided by an older
        snapshot, no such request runs, and what was kept is zeroed.  One that is down keeps nothing,
        and returns at once.  Raises where it does not know; ask again."""


class About(msgspec.Struct, frozen=True):
    """What a text is called.  Sealed like the text: a title says what it is about."""

    title: str | None = None
    variables: tuple[str, ...] = ()


@dataclass(slots=True)
class Registered:
    documents: Documents
    permission: Permission
    secrets: TenantSecrets
    seals: Seals
    keys: CacheKeys
    live: Live
    revokers: Sequence[Revoker]
    log: Callable[..., None]
    mint_id: Callable[[Kind], str]
    _owed: dict[bytes, int] = field(default_factory=dict, repr=False)
    _unwiped: bool = False
    _alarm: asyncio.TimerHandle | None = None

    async def create(
        self, record: Record, text: str, about: About, tokens: Mapping[str, int], room: Room
    ) -> Record:
        """RegistryFull; ApiError where the tenant's secret is gone."""
        if record.tenant is not None:
            try:
                await self.secrets.ensure(record.tenant)
            except SecretGone:
                raise shredded() from None
        sealed = await asyncio.to_thread(self._sealed, record, text, about, tokens)
        made = await self.documents.create(record, sealed, room)
        self._set_alarm()
        return made

    async def rewrite(
        self,
        id_: str,
        text: str,
        about: About,
        tokens: Mapping[str, int],
        room: Room,
        changed: Changed,
    ) -> Record:
        """A new content version, and what else `changed` makes.  A document's old one is gone with
        whoever still reads it; a template's stays, for those who name it."""

        def sealed(new: Record) -> Sealed:
            return self._sealed(new, text, about, tokens)

        old, new = await self._put(id_, changed, sealed, room)
        if new.kind is Kind.DOCUMENT:
            await self._end((old,), wipe=True)
        return new

    async def change(self, id_: str, changed: Changed) -> tuple[Record, Record]:
        """Readers or expiry: what it was, and what it is now."""
        old, new = await self._put(id_, changed, None, Room())
        if old.acl_version != new.acl_version:
            await self._after_change(old, takes_away(old, new))
        return old, new

    async def remove(self, records: Iterable[Record]) -> tuple[Record, ...]:
        gone = await self.documents.remove([each.id for each in records])
        await self._end(gone, wipe=True)
        return gone

    async def text(self, record: Record, version: int | None = None) -> str:
        """Of the newest version, or of one.  ApiError 404 where it is gone meanwhile."""
        found = await self.texts([(record, version or record.content_version)])
        return found[0]

    async def texts(self, wanted: Sequence[tuple[Record, int]]) -> list[str]:
        """In one read.  KeyError where one of them is gone, or cannot be opened any more."""
        rows = await self.documents.texts([(each.id, version) for each, version in wanted])

        def opened() -> list[str]:
            return [
                self._opened(_place(each, version), rows[each.id, version][0])
                for each, version in wanted
            ]

        return await asyncio.to_thread(opened)

    async def abouts(self, wanted: Sequence[tuple[Record, int]]) -> list[About]:
        """In one read.  What is gone meanwhile is called nothing."""
        if not wanted:
            return []
        rows = await self.documents.abouts([(each.id, version) for each, version in wanted])
        return [
            self._about(each, version, rows.get((each.id, version))) for each, version in wanted
        ]

    async def suspended(self, tenant: str) -> None:
        """Everything that was kept under this tenant's secret is out of reach, and stays so after it is
        served again."""
        snapshot = await self.documents.count_up()
        struck = self._withdraw()
        await self._revoke(self._of_secret(tenant), snapshot)
        await _left(struck)

    async def shred(self, tenant: str) -> int:
        """Destroy the tenant's secret and everything registered under it.  How many texts there were.
        Whatever fails in between, it can be asked again."""
        tags = self._of_secret(tenant)
        self._owe(
            tags, await self.documents.count_up()
        )  # first: once it is gone, nothing names them
        await self.secrets.shred(tenant)
        gone = await self.documents.remove([each.id for each in self.documents.of(tenant)])
        self._owe(tags, await self.documents.count_up())  # also by whom began meanwhile
        await self._end(gone, wipe=True)
        return len(gone)

    async def sweep(self) -> tuple[Record, ...]:
        """Every few seconds: confirm, remove what has lapsed, do what is owed.  What was removed."""
        await self._confirm()
        lapsed = self.documents.lapsed()
        gone = await self.remove(lapsed) if lapsed else ()
        if self._owed:
            await self._revoke((), self.documents.snapshot().id)
        if self._unwiped:
            await self._wipe()
        self._set_alarm()
        return gone

    # How.

    async def _put(
        self,
        id_: str,
        changed: Changed,
        sealed: Callable[[Record], Sealed] | None,
        room: Room,
    ) -> tuple[Record, Record]:
        """VersionMoved where it is gone.  What another process has changed is read anew, and judged anew."""
        for _ in range(OVERTAKEN_MAX):
            try:
                return await self.documents.put(id_, changed, sealed, room)
            except VersionMoved:
                await self._confirm()
                if self.documents.find(id_) is None:
                    raise
        raise StoreUnavailable("others write faster than it can be read")

    async def _confirm(self) -> None:
        """What another process has changed or removed is ended here, too."""
        await self._end(await self.documents.confirm(), wipe=False)

    async def _after_change(self, old: Record, ends: bool) -> None:
        """A list that only grew takes nothing from whoever reads by the old one: they are left to
        finish, and what is kept by it to its age.  Where nobody does, it is cleared at once."""
        named = _named(old)
        if ends or not self.live.reading(lambda label: not named.isdisjoint(label.documents)):
            await self._end((old,), wipe=False)
        self._set_alarm()

    async def _end(self, gone: Iterable[Record], *, wipe: bool) -> None:
        """Steps three to five for versions that are over."""
        tags = [tag for each in gone for tag in self._tags(each)]
        struck = self._withdraw()
        await self._revoke(tags, self.documents.snapshot().id)
        await _left(struck)
        if wipe and tags:
            self._unwiped = True
            await self._wipe()

    def _withdraw(self) -> tuple[LiveRequest, ...]:
        struck = self.live.withdraw()
        if struck:
            self.log("authority.withdrawn", kind="registered_text", count=len(struck))
        return struck

    async def _revoke(self, tags: Iterable[bytes], snapshot: int) -> None:
        """Owed until every executor has acknowledged.  Raises ApiError 503 where one has not."""
        self._owe(tags, snapshot)
        owed = dict(self._owed)
        if not owed:
            return
        named, newest = tuple(sorted(owed)), max(owed.values())
        heard = await asyncio.gather(
            *(
                each.revoke(named[at : at + COVERS_MAX], newest)
                for each in self.revokers
                for at in range(0, len(named), COVERS_MAX)
            ),
            return_exceptions=True,
        )
        if failed := [why for why in heard if isinstance(why, BaseException)]:
            self.log("revocation.owed", count=len(named), error=failed[0])
            raise unacknowledged()
        for tag, at in owed.items():
            if self._owed.get(tag) == at:
                del self._owed[tag]

    def _owe(self, tags: Iterable[bytes], snapshot: int) -> None:
        self._owed.update(dict.fromkeys(tags, snapshot))

    async def _wipe(self) -> None:
        """What is left in a busy log is sealed, and goes with the next round."""
        try:
            await self.documents.forget()
            self._unwiped = False
        except StoreUnavailable as why:
            self.log("registered.unwiped", error=why)

    def _set_alarm(self) -> None:
        """Whoever still reads when a document lapses is ended then, and not a sweep later."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = None
        next_ns = self.documents.next_expiry_ns()
        if next_ns is not None:
            left_s = (next_ns - self.permission.monotonic_ns()) / 1e9
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_later(min(left_s, 86_400.0), self._lapse)

    def _lapse(self) -> None:
        self._withdraw()
        self._set_alarm()

    def close(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()

    def _tags(self, record: Record) -> list[bytes]:
        if record.kind is Kind.DOCUMENT and record.tenant is not None:
            return [self.keys.of_document(record.tenant, each) for each in _named(record)]
        return [self.keys.of_template(each) for each in templates_of(record)]

    def _of_secret(self, tenant: str) -> tuple[bytes, ...]:
        """Of every version that there ever was: what is destroyed may be kept under all the same."""
        versions = range(1, self.secrets.newest(tenant) + 1)
        return tuple(self.keys.of_secret(tenant, each) for each in versions)

    def _sealed(self, record: Record, text: str, about: About, tokens: Mapping[str, int]) -> Sealed:
        version = record.content_version
        about_place = replace(_place(record, version), purpose=SealPurpose.ABOUT)
        try:
            return Sealed(
                text=self.seals.seal(_place(record, version), text),
                about=self.seals.seal(about_place, msgspec.json.encode(about).decode()),
                tokens=dict(tokens),
            )
        except SecretGone:
            raise shredded() from None

    def _about(self, record: Record, version: int, sealed: bytes | None) -> About:
        if sealed is None:
            return About()
        place = replace(_place(record, version), purpose=SealPurpose.ABOUT)
        try:
            return msgspec.json.decode(self._opened(place, sealed), type=About)
        except KeyError:
            return About()

    def _opened(self, place: Place, sealed: bytes) -> str:
        try:
            return self.seals.open(place, sealed)
        except SecretGone:
            raise KeyError(place.id) from None
        except SealBroken as why:
            self.log("registered.broken", error=why)
            raise KeyError(place.id) from None


async def _left(struck: Iterable[LiveRequest]) -> None:
    """Until their work is aborted."""
    leaving = [asyncio.ensure_future(each.left.wait()) for each in struck]
    if leaving:
        try:
            await asyncio.wait(leaving, timeout=ABORT_S_MAX)
        finally:
            for each in leaving:
                each.cancel()


def takes_away(old: Record, new: Record) -> bool:
    """Whether somebody may read less than before, or less long."""
    sooner = new.expires_at_s is not None and (
        old.expires_at_s is None or new.expires_at_s < old.expires_at_s
    )
    return sooner or not narrower(old.readers, new.readers)


def _named(record: Record) -> frozenset[Document]:
    return frozenset({Document(record.id, record.acl_version, record.content_version)})


def _place(record: Record, version: int) -> Place:
    return Place(SealPurpose(record.kind.value), record.tenant, record.id, version)


def unacknowledged() -> ApiError:
    return unavailable(
        "The change is in force and nothing new is read by the old right, but its last traces are not "
        "confirmed to be gone yet. That goes on by itself; ask again to hear of its end.",
        code="revocation_pending",
        retry_after_s=5,
    )


def shredded() -> ApiError:
    return ApiError(
        403,
        "permission_error",
        "tenant_shredded",
        "This tenant's secret was destroyed, so nothing can be kept for it. Ask your operator.",
    )
