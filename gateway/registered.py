"""Registered texts as the house works with them: sealed on the way in, revoked to the last reader on
the way out.

Theory of operation.  Taking a right away is five steps, in this order, and its answer comes after the
last: durable in SQL, under a version that never comes back; visible in memory, so that nothing new is
admitted by it, and whoever reads by it interrupted; recorded, while the executors are told, who answer when
no look-up can hit any more; running readers gone; what was replaced wiped from the files.  What an executor does
not acknowledge is owed to it and asked again by `sweep`, as is what could not be wiped, and the caller is
told that it is not over.

A crash in between leaves the first step done and every later one moot: executors end with this process,
and the keys of all that was cached die with both.  Files are wiped once after every start, for what the
process before left there.  What a crash can lose is a record: SQL and the audit log are two, and of a
change that was durable for some milliseconds there is none; the newer version in SQL speaks for itself.

A list that only grew takes nothing from whoever reads by the old one.  They are left to finish; what was
computed by it is out of reach meanwhile, and goes when nobody reads by it any more, or with the next
change that takes something away.

Refuses to know: HTTP, who may (`policies.registered`; a caller says, of what is replaced), chat templates.
Source: SECURITY.md §2, P6, P8, P12; DESIGN.md, settled 3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from gateway.errors import ApiError, unavailable
from gateway.live import Live, LiveRequest
from gateway.permission import Permission
from gateway.revocations import Ending, Revocations
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
    revocations: Revocations
    log: Callable[..., None]
    mint_id: Callable[[Kind], str]
    _outgrown: dict[Document, Record] = field(default_factory=dict, repr=False)
    _unwiped: bool = True  # a process before us may have ended in between
    _wiping: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)
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
        if self._is_dead(made):  # shredded while it was sealed or written
            await self.remove((made,))
            raise shredded()
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
    ) -> tuple[Record, Ending | None]:
        """A new content version, and what else `changed` makes.  A document's old one is gone with
        whoever still reads it; a template's stays, for those who name it."""

        def sealed(new: Record) -> Sealed:
            return self._sealed(new, text, about, tokens)

        old, new = await self._put(id_, changed, sealed, room)
        return new, self._end((old,), wipe=True) if new.kind is Kind.DOCUMENT else None

    async def change(self, id_: str, changed: Changed) -> tuple[Record, Record, Ending | None]:
        """Readers or expiry: what it was, and what it is now."""
        old, new = await self._put(id_, changed, None, Room())
        ending = None
        if takes_away(old, new):
            ending = self._end((old,), wipe=False)
        elif old.acl_version != new.acl_version:
            self._outgrown.update((each, old) for each in _named(old))
            if (cleared := self._clear()) is not None:
                await self.revocations.ask(cleared)
        return old, new, ending

    async def remove(self, records: Iterable[Record]) -> tuple[tuple[Record, ...], Ending | None]:
        """Those that were there."""
        gone = await self.documents.remove([each.id for each in records])
        return gone, self._end(gone, wipe=True)

    async def finish(self, ending: Ending) -> bool:
        """Steps three to five.  Whether it is confirmed: what is not, is owed."""
        word, *_ = await asyncio.gather(
            self.revocations.ask(ending), _left(ending.struck), self._wipe()
        )
        return word

    async def texts(self, wanted: Sequence[tuple[Record, int]]) -> list[str]:
        """KeyError where one of them is gone, or cannot be opened any more."""
        try:
            return await self._texts(wanted)
        except KeyError:  # or was sealed anew meanwhile, and its old secret retired
            return await self._texts(wanted)

    async def _texts(self, wanted: Sequence[tuple[Record, int]]) -> list[str]:
        """In one read."""
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

    async def suspended(self, tenant: str) -> Ending:
        """Everything that was kept under this tenant's secret is out of reach, and stays so after it is
        served again.  StoreUnavailable: ask again."""
        snapshot = await self.documents.count_up()
        tags, struck = self._of_secret(tenant), self._withdraw()
        return self.revocations.owe(Ending(tags, snapshot, tenant=tenant, struck=struck))

    async def shred(self, tenant: str) -> int:
        """Destroy the tenant's secret and everything registered under it.  How many texts there were.
        Whatever fails in between, it can be asked again.  ApiError 503 where it is done, but for an
        executor's word."""
        tags = self._of_secret(tenant)
        # Owed before the secret goes, since nothing names them afterwards; and again for who began meanwhile.
        first = self.revocations.owe(Ending(tags, await self.documents.count_up(), tenant=tenant))
        await self.secrets.shred(tenant)
        gone, ending = await self.remove(self.documents.of(tenant))
        last = Ending(tags, await self.documents.count_up(), tenant=tenant)
        self.revocations.owe(last, instead=first)
        words = [await self.finish(each) for each in (last, ending) if each is not None]
        if not all(words):
            raise unacknowledged()
        return len(gone)

    async def expire(self) -> tuple[Record, ...]:
        """Every few seconds: remove what has lapsed.  StoreUnavailable."""
        lapsed = self.documents.lapsed()
        gone, _ = await self.remove(lapsed) if lapsed else ((), None)
        self._set_alarm()
        return gone

    async def sweep(self) -> tuple[Ending, ...]:
        """Every few seconds: hear of others' changes, and do what is owed, also what a crash left of a
        shredded tenant.  What is confirmed by that."""
        try:
            await self.hear()
            if dead := list(filter(self._is_dead, self.documents.all())):
                await self.remove(dead)
        except StoreUnavailable as why:  # what is owed needs no database
            self.log("registered.unconfirmed", error=why)
        self._clear()
        done = await self.revocations.ask_again()
        await self._wipe()
        return done

    async def hear(self) -> None:
        """What another process has changed or removed is ended here, too.  StoreUnavailable."""
        self._end(await self.documents.confirm(), wipe=False)

    # How.

    def _is_dead(self, record: Record) -> bool:
        """Sealed under a secret that was destroyed: nobody can open it any more."""
        return record.tenant is not None and self.secrets.is_shredded(record.tenant)

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
                found = await self.documents.put(id_, changed, sealed, room)
                self._set_alarm()
                return found
            except VersionMoved:
                await self.hear()
                if self.documents.find(id_) is None:
                    raise
        raise StoreUnavailable("others write faster than it can be read")

    def _end(self, gone: tuple[Record, ...], *, wipe: bool) -> Ending | None:
        """These versions are over, and older ones of the same with them.  Nothing is awaited: what is
        visible is owed."""
        if not gone:
            return None
        self._unwiped |= wipe
        ids = {each.id for each in gone}
        older = [each for each, old in self._outgrown.items() if old.id in ids]
        records = (*gone, *(self._outgrown.pop(each) for each in older))
        ending = Ending(
            tuple(tag for each in records for tag in self._tags(each)),
            self.documents.snapshot().id,
            records=gone,
            struck=self._withdraw(),
        )
        return self.revocations.owe(ending)

    def _clear(self) -> Ending | None:
        """Of the lists that have grown, the old ones by which nobody reads any more."""

        def is_read(outgrown: Document) -> bool:
            return self.live.reading(lambda label: outgrown in label.documents)

        left = [each for each in self._outgrown if not is_read(each)]
        if not left:
            return None
        tags = [tag for each in left for tag in self._tags(self._outgrown.pop(each))]
        return self.revocations.owe(Ending(tuple(tags), self.documents.snapshot().id))

    def _withdraw(self) -> tuple[LiveRequest, ...]:
        struck = self.live.withdraw()
        if struck:
            self.log("authority.withdrawn", kind="registered_text", count=len(struck))
        return struck

    async def _wipe(self) -> None:
        """What is left in a busy log is sealed, and goes with the next round.  Whoever comes meanwhile
        waits for the one that is under way, which is theirs too."""
        async with self._wiping:
            if not self._unwiped:
                return
            self._unwiped = False  # before: what is replaced meanwhile wants another round
            try:
                await self.documents.forget()
            except StoreUnavailable as why:
                self._unwiped = True
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
