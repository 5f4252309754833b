"""The registry over a real store: what is durable, what is seen, and what another's writing changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policies.facts import Role
from tenants.documents import (
    Documents,
    Kind,
    Readers,
    Record,
    RegistryFull,
    Room,
    Sealed,
    VersionMoved,
)
from tenants.store import Store
from tests.tenants.house import folder, run

LEASE = Record(
    id="doc_1",
    kind=Kind.DOCUMENT,
    tenant="acme",
    issuer="idp",
    owner="alice",
    content_version=1,
    acl_version=1,
    created_at_s=1,
    changed_at_s=1,
    expires_at_s=1_000,
    tokens={},
    readers=Readers(
        frozenset({("idp", "bob")}), frozenset({("idp", "law")}), frozenset({Role.FINANCE})
    ),
)
SEALED = Sealed(b"sealed text", b"sealed about", {"m": 10})


class Time:
    ns = 0
    s = 900.0


def registry(store: Store, time: Time) -> Documents:
    return Documents(store, monotonic_ns=lambda: time.ns, wall_s=lambda: time.s)


def test_a_registry_reads_back_what_it_wrote_and_sees_what_another_wrote() -> None:
    async def test() -> None:
        with folder() as where:
            store, time = Store.open(f"sqlite:///{where}/x.db"), Time()
            one, other = registry(store, time), registry(store, time)
            await one.load()
            await other.load()
            made = await one.create(LEASE, SEALED, Room())
            assert other.find("doc_1") is None
            assert await other.confirm() == ()
            assert other.find("doc_1") == made == one.find("doc_1")
            assert other.snapshot() == one.snapshot()
            assert other.acl(made).expires_ns == 100_000_000_000
            time.s += 86_400  # C10: what is known does not move with the wall clock
            narrower = replace(LEASE.readers, users=frozenset())
            old, new = await one.put("doc_1", lambda r: replace(r, readers=narrower), None, Room())
            assert (old.acl_version, new.acl_version) == (1, 2)
            assert one.acl(new).expires_ns == 100_000_000_000
            with pytest.raises(VersionMoved):  # made for a version that is over
                await other.put("doc_1", lambda r: replace(r, expires_at_s=None), None, Room())
            assert await other.confirm() == (old,)  # what must be revoked there
            assert other.acl(new).users == {("idp", "alice")}
            time.ns = 100_000_000_000
            assert [each.id for each in one.lapsed()] == ["doc_1"]
            await one.remove(["doc_1", "doc_1", "doc_none"])
            assert await one.texts([("doc_1", 1)]) == {}
            with pytest.raises(VersionMoved):  # an id is never used again
                await one.create(LEASE, SEALED, Room())
            assert one.snapshot().id == 3
            store.close()

    run(test)


def test_room_is_counted_over_all_of_a_tenant() -> None:
    async def test() -> None:
        with folder() as where:
            store = Store.open(f"sqlite:///{where}/x.db")
            kept = registry(store, Time())
            await kept.load()
            await kept.create(LEASE, SEALED, Room(2, 25))
            await kept.create(replace(LEASE, id="doc_2"), SEALED, Room(2, 25))
            for room, limit in ((Room(2, 100), "documents"), (Room(9, 25), "document_tokens")):
                with pytest.raises(RegistryFull) as full:
                    await kept.create(replace(LEASE, id="doc_3"), SEALED, room)
                assert full.value.limit_name == limit
            other = replace(LEASE, id="doc_3", tenant="globex")
            await kept.create(other, SEALED, Room(1, 10))
            store.close()

    run(test)


def test_what_is_sealed_anew_takes_the_place_of_what_was_read_and_of_nothing_else() -> None:
    async def test() -> None:
        with folder() as where:
            store = Store.open(f"sqlite:///{where}/x.db")
            one = registry(store, Time())
            await one.load()
            await one.create(LEASE, SEALED, Room())
            await one.create(replace(LEASE, id="doc_2", tenant="globex"), SEALED, Room())
            found = await one.heads("acme", 6)
            assert [(each.id, each.version, each.text, each.about) for each in found] == [
                ("doc_1", 1, b"sealed", b"sealed")
            ]
            old, new = (SEALED.text, SEALED.about), (b"anew", b"anew too")
            assert await one.reseal("doc_1", 1, old, new)
            assert not await one.reseal("doc_1", 1, old, (b"late", b"late"))  # another was first
            assert not await one.reseal("doc_1", 2, new, (b"late", b"late"))
            assert await one.texts([("doc_1", 1)]) == {("doc_1", 1): new}
            assert await one.texts([("doc_2", 1)]) == {("doc_2", 1): old}
            store.close()

    run(test)
