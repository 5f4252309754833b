"""Registered texts and who may read them: facts in memory, texts sealed in SQL.

A look-up never waits, and what it goes by is a `Snapshot` with a number that grows with every change.
A change is durable in SQL first, then visible here.  Changes are one at a time, and a change goes on when
its caller goes away.  Whoever cannot confirm for a while that SQL still says what is said here, hands
out snapshots that are too old, by which `policies.scope.decide` denies: fail closed.

Expiries are read on the wall clock once, and kept on the monotonic one.  Texts are never kept in memory.
Refuses to know: what is sealed (`security.seal`), executors, HTTP.
Source: SECURITY.md §2 (Authorization at read time; TTL), P6, P8; DESIGN.md, settled 3 and 7.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from sqlalchemy.exc import IntegrityError

from policies.scope.decision import Acl, Snapshot
from policies.scope.labels import Template
from tenants import documents_rows as rows
from tenants import documents_seals as seals
from tenants.documents_rows import Kind, Readers, Record, Sealed, VersionMoved
from tenants.documents_seals import SealedHeads
from tenants.store import Store

__all__ = [
    "Documents",
    "Kind",
    "Readers",
    "Record",
    "RegistryFull",
    "Room",
    "Sealed",
    "VersionMoved",
]

T = TypeVar("T")
TEMPLATE_VERSIONS_MAX: Final = 64
PUBLIC_MAX: Final = 1_000
TEXTS_MAX: Final = 10_000
"""Of one tenant, whose plan may say less: a list of them is looked through on the event loop."""
LISTS_BYTES_MAX: Final = 16 * 2**20
"""Names of readers in all lists of one tenant, whatever its plan: they are in memory."""


class RegistryFull(Exception):
    """The plan has no room for it; says which limit, and how it stands."""

    def __init__(self, limit_name: str, limit: int) -> None:
        super().__init__(f"{limit_name}: {limit} are allowed; delete what is not needed")
        self.limit_name = limit_name
        self.limit = limit


@dataclass(frozen=True, slots=True)
class Room:
    """What a tenant's plan allows altogether; None: no limit of that kind."""

    texts: int | None = None
    tokens: int | None = None


class Documents:
    """`monotonic_ns` and `wall_s` are clocks; `changed` hears of each change of ours."""

    def __init__(
        self,
        store: Store,
        *,
        monotonic_ns: Callable[[], int],
        wall_s: Callable[[], float],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._changed = changed
        self._store = store
        self._monotonic_ns = monotonic_ns
        self._wall_s = wall_s
        self._records: dict[str, Record] = {}
        self._of: dict[str | None, dict[str, Record]] = {}
        self._lists_bytes: Counter[str | None] = Counter()
        self._snapshot: Snapshot | None = None
        self._alone = asyncio.Lock()
        self._changing: set[asyncio.Task[Any]] = set()

    async def load(self) -> None:
        """Once at start, before anybody asks."""
        await self.confirm()

    # What is so now.

    def snapshot(self) -> Snapshot:
        if self._snapshot is None:
            raise RuntimeError("the registry is not loaded; await load() before serving")
        return self._snapshot

    def find(self, id_: str) -> Record | None:
        """What is there, lapsed or not: whether it may be seen is `policies.registered`'s."""
        return self._records.get(id_)

    def acl(self, record: Record) -> Acl:
        """As the snapshot has it; what is not in it names nobody."""
        nobody = Acl(record.tenant or "", record.acl_version, record.content_version, expires_ns=0)
        return self.snapshot().acls.get(record.id, nobody)

    def of(self, tenant: str | None) -> tuple[Record, ...]:
        """All of a tenant's, or the public ones, in the order in which they were registered."""
        return tuple(self._of.get(tenant, {}).values())

    def all(self) -> tuple[Record, ...]:
        return tuple(self._records.values())

    def lapsed(self) -> tuple[Record, ...]:
        """Past their expiry, and still kept."""
        now_ns = self._monotonic_ns()
        acls = self.snapshot().acls.items()
        return tuple(
            self._records[id_]
            for id_, acl in acls
            if acl.expires_ns is not None and now_ns >= acl.expires_ns
        )

    def next_expiry_ns(self) -> int | None:
        """The next that is to come."""
        now_ns = self._monotonic_ns()
        expiries = (acl.expires_ns for acl in self.snapshot().acls.values())
        return min((each for each in expiries if each is not None and each > now_ns), default=None)

    async def texts(
        self, wanted: Sequence[tuple[str, int]]
    ) -> Mapping[tuple[str, int], tuple[bytes, bytes]]:
        """Sealed text and about, by id and version.  StoreUnavailable."""
        return await self._store.read(lambda conn: rows.texts(conn, wanted))

    async def abouts(self, wanted: Sequence[tuple[str, int]]) -> Mapping[tuple[str, int], bytes]:
        """The same without the texts."""
        return await self._store.read(lambda conn: rows.abouts(conn, wanted))

    async def heads(self, tenant: str, head_bytes: int) -> list[SealedHeads]:
        """How what is kept of a tenant's texts begins: by which secret it is sealed.  StoreUnavailable."""
        return await self._store.read(lambda conn: seals.heads(conn, tenant, head_bytes))

    # What changes.  Each is durable and visible when it returns.  StoreUnavailable: nobody knows; the
    # next confirmation reads what SQL says.

    async def create(self, record: Record, sealed: Sealed, room: Room) -> Record:
        """RegistryFull."""
        made = replace(record, tokens={record.content_version: sealed.tokens})

        async def change() -> Record:
            self._check_room(made.tenant, room, 1, sealed.tokens_max)
            self._check_lists(made.tenant, made.readers.named_bytes)
            try:
                now = await self._store.write(lambda conn: rows.create(conn, made, sealed))
            except IntegrityError as why:
                raise VersionMoved(made.id) from why
            self._see({made.id: made}, now)
            return made

        return await self._change(change)

    async def put(
        self,
        id_: str,
        changed: Callable[[Record], Record],
        sealed: Callable[[Record], Sealed] | None,
        room: Room,
    ) -> tuple[Record, Record]:
        """What it was, and what it is now: `changed` of that, with its versions counted up by us.
        `sealed` makes the text of a new content version.  VersionMoved where it is gone."""

        async def change() -> tuple[Record, Record]:
            old = self._records.get(id_)
            if old is None:
                raise VersionMoved(id_)
            new = changed(old)
            text = None
            if new.readers != old.readers:
                self._check_lists(old.tenant, new.readers.named_bytes - old.readers.named_bytes)
            if new.readers != old.readers or new.expires_at_s != old.expires_at_s:
                new = replace(new, acl_version=old.acl_version + 1)
            if sealed is not None:
                version = old.content_version + 1
                kept = old.tokens if old.kind is Kind.TEMPLATE else {}
                if len(kept) >= TEMPLATE_VERSIONS_MAX:
                    raise RegistryFull("versions", TEMPLATE_VERSIONS_MAX)
                new = replace(new, content_version=version)
                text = sealed(new)
                new = replace(new, tokens={**kept, version: text.tokens})
                self._check_room(old.tenant, room, 0, new.tokens_kept - old.tokens_kept)
            now = await self._store.write(lambda conn: rows.put(conn, old, new, text))
            self._see({id_: new}, now)
            return old, new

        return await self._change(change)

    async def remove(self, ids: Iterable[str]) -> tuple[Record, ...]:
        """Those that were there."""

        async def change() -> tuple[Record, ...]:
            gone = [self._records[id_] for id_ in dict.fromkeys(ids) if id_ in self._records]
            if gone:
                at_s = int(self._wall_s())
                named = [each.id for each in gone]
                now = await self._store.write(lambda conn: rows.remove(conn, named, at_s))
                self._see(dict.fromkeys(named), now)
            return tuple(gone)

        return await self._change(change)

    async def forget(self) -> None:
        """Nothing of what was replaced or removed is left in the files.  StoreUnavailable: ask again."""
        await self._store.forget_overwritten()

    async def reseal(
        self, id_: str, version: int, old: tuple[bytes, bytes], new: tuple[bytes, bytes]
    ) -> bool:
        """The same text and about, sealed anew.  False where it is not `old` any more."""
        return await self._store.write(lambda conn: seals.reseal(conn, id_, version, old, new))

    async def count_up(self) -> int:
        """A new snapshot of the same: what was decided before is older than what is revoked now."""

        async def change() -> int:
            now = await self._store.write(rows.count_up)
            self._see({}, now)
            return now

        return await self._change(change)

    async def confirm(self) -> tuple[Record, ...]:
        """That SQL says what is said here, from now on; else read it anew.  Those that were here, and
        are not so any more.  StoreUnavailable: the snapshot grows old."""

        async def change() -> tuple[Record, ...]:
            at_ns = self._monotonic_ns()
            known = None if self._snapshot is None else self._snapshot.id
            if known is not None and known == await self._store.read(rows.generation):
                self._snapshot = replace(self.snapshot(), read_ns=at_ns)
                return ()
            now, found = await self._store.read(rows.load)
            moved = [each for id_, each in self._records.items() if found.get(id_) != each]
            changed = {id_: each for id_, each in found.items() if self._records.get(id_) != each}
            self._see({**{each.id: found.get(each.id) for each in moved}, **changed}, now, at_ns)
            return tuple(moved)

        return await self._change(change)

    # How.

    async def _change(self, change: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async def run() -> T:
            async with self._alone:
                return await change()

        task = asyncio.get_running_loop().create_task(run())
        self._changing.add(task)
        task.add_done_callback(self._changing.discard)
        return await asyncio.shield(task)

    def _check_room(self, tenant: str | None, room: Room, texts: int, tokens: int) -> None:
        mine = self._of.get(tenant, {}).values()
        most = PUBLIC_MAX if tenant is None else min(room.texts or TEXTS_MAX, TEXTS_MAX)
        if texts and len(mine) + texts > most:
            raise RegistryFull("documents", most)
        kept = sum(each.tokens_kept for each in mine)
        if tokens > 0 and room.tokens is not None and kept + tokens > room.tokens:
            raise RegistryFull("document_tokens", room.tokens)

    def _check_lists(self, tenant: str | None, more: int) -> None:
        if more > 0 and self._lists_bytes[tenant] + more > LISTS_BYTES_MAX:
            raise RegistryFull("bytes of readers' names", LISTS_BYTES_MAX)

    def _see(
        self, changed: Mapping[str, Record | None], generation: int, read_ns: int | None = None
    ) -> None:
        """All at once, as the event loop sees it.  What SQL said of the rest is as old as it was."""
        before = self._snapshot or Snapshot(0, 0, {}, frozenset())
        acls, templates = dict(before.acls), set(before.templates)
        for id_, record in changed.items():
            old = self._records.get(id_)
            if old is not None:
                templates -= templates_of(old)
                self._lists_bytes[old.tenant] -= old.readers.named_bytes
            if record is None:
                acls.pop(id_, None)
                if old is not None:
                    del self._records[id_], self._of[old.tenant][id_]
                continue
            self._records[id_] = record
            self._lists_bytes[record.tenant] += record.readers.named_bytes
            self._of.setdefault(record.tenant, {})[id_] = record
            if record.kind is Kind.DOCUMENT:
                acls[id_] = self._acl_of(record, old, before.acls.get(id_))
            templates |= templates_of(record)
        self._snapshot = Snapshot(
            generation,
            before.read_ns if read_ns is None else read_ns,
            acls,
            frozenset(templates),
        )
        if read_ns is None:
            self._changed()

    def _acl_of(self, record: Record, old: Record | None, known: Acl | None) -> Acl:
        """The owner reads.  An expiry that has not changed stays where it is on the monotonic clock,
        wherever the wall clock has gone since (C10)."""
        assert record.tenant is not None
        expires_ns = None
        if record.expires_at_s is not None:
            kept = known is not None and old is not None and old.expires_at_s == record.expires_at_s
            if kept and known is not None:
                expires_ns = known.expires_ns
            else:
                left_ns = int((record.expires_at_s - self._wall_s()) * 1e9)
                expires_ns = self._monotonic_ns() + left_ns
        return Acl(
            tenant=record.tenant,
            acl_version=record.acl_version,
            content_version=record.content_version,
            users=record.readers.users | {(record.issuer, record.owner)},
            groups=record.readers.groups,
            roles=record.readers.roles,
            expires_ns=expires_ns,
        )


def templates_of(record: Record) -> frozenset[Template]:
    """What a label may name of it: each version that is kept."""
    if record.kind is not Kind.TEMPLATE:
        return frozenset()
    return frozenset(Template(record.tenant, record.id, each) for each in record.versions)
