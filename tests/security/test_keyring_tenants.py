"""Tenants' secrets: wrapped so that no row can be altered or moved, rotated, and destroyed for good."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from security.keyring import Keyring, KeyringError, open_keyring
from security.keyring_roots import add_root, drop_root
from security.keyring_tenants import (
    SecretGone,
    SecretStore,
    TenantSecret,
    TenantSecrets,
    unwrap,
    wrap,
)
from tests.policies.scope import independent
from tests.security.helpers import byte_source, run
from tests.security.secrets_in_memory import MemoryStore, Row

RING = Keyring((b"1" * 32, b"2" * 32), b"e" * 16)
ACME = TenantSecret("acme", 1, b"s" * 32)


def secrets(store: SecretStore, ring: Keyring = RING, seed: int = 0) -> TenantSecrets:
    return TenantSecrets(ring, store, rng=byte_source(seed))


async def loaded(store: SecretStore, ring: Keyring = RING) -> TenantSecrets:
    found = secrets(store, ring, 9)
    await found.load()
    return found


def row(ring: Keyring = RING) -> Row:
    return Row("acme", 1, *wrap(ring, ACME, b"n" * 12))


def test_what_is_wrapped_comes_back_and_shows_nothing() -> None:
    assert unwrap(RING, row()) == ACME
    assert row().root == RING.root_ids[-1]
    assert ACME.secret not in row().wrapped
    assert len(row().wrapped) == 12 + 32 + 16
    assert "sss" not in repr(ACME)


def test_the_envelope_is_the_documented_one() -> None:
    """Key and associated data each bind the row, so that neither alone is what holds it."""
    root = RING.root_ids[-1]
    context = independent.enc(["acme", 1])
    info = b"lockgate/v1" + b"\0\0\0\x0etenant-secrets" + len(context).to_bytes(4) + context
    bound = independent.enc(["tenant-secrets", "acme", 1, root])
    sealed = AESGCM(independent.hkdf(b"2" * 32, info)).encrypt(b"n" * 12, ACME.secret, bound)
    assert row() == Row("acme", 1, root, b"n" * 12 + sealed)


@pytest.mark.parametrize(
    "changed",
    (
        {"tenant": "globex"},
        {"version": 2},
        {"root": RING.root_ids[0]},
        {"wrapped": b""},
        {"wrapped": row().wrapped[:-1]},
        {"wrapped": b"m" + row().wrapped[1:]},
        {"wrapped": row().wrapped + b"x"},
    ),
)
def test_a_row_that_was_altered_or_moved_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(KeyringError, match="was altered") as caught:
        unwrap(RING, replace(row(), **changed))
    assert caught.value.__cause__ is None


def test_no_bit_may_flip() -> None:
    good = row().wrapped
    for at in range(0, 8 * len(good), 7):
        bad = bytearray(good)
        bad[at // 8] ^= 1 << at % 8
        with pytest.raises(KeyringError):
            unwrap(RING, replace(row(), wrapped=bytes(bad)))


def test_a_lost_root_key_is_found_at_the_start() -> None:
    store = MemoryStore({("acme", 1): row()})
    other = Keyring((b"1" * 32, b"3" * 32), b"e" * 16)
    with pytest.raises(KeyringError, match="Restore the file"):
        run(loaded(store, other))


def test_made_once_durable_and_each_tenants_own() -> None:
    async def test() -> None:
        store = MemoryStore()
        mine = secrets(store)
        first, again, other = await asyncio.gather(
            mine.ensure("acme"), mine.ensure("acme"), mine.ensure("globex")
        )
        assert first is again is mine.current("acme")
        assert first.secret != other.secret
        assert len(store.rows) == 2
        reread = await loaded(store)
        assert reread.current("acme") == first
        assert reread.root_ids() == {RING.root_ids[-1]}

    run(test())


def test_nobody_has_a_secret_by_asking() -> None:
    mine = secrets(MemoryStore())
    with pytest.raises(SecretGone):
        mine.current("acme")
    with pytest.raises(SecretGone):
        mine.at("acme", 1)


def test_a_rotated_secret_is_read_until_it_is_retired() -> None:
    async def test() -> None:
        store = MemoryStore()
        mine = secrets(store)
        old = await mine.ensure("acme")
        new = await mine.rotate("acme")
        assert (old.version, new.version) == (1, 2)
        assert mine.current("acme") == new == await mine.ensure("acme")
        assert (await loaded(store)).at("acme", 1) == old
        with pytest.raises(ValueError, match="current"):
            await mine.retire("acme", 2)
        await mine.retire("acme", 1)
        for holder in (mine, await loaded(store)):
            assert holder.current("acme") == new
            with pytest.raises(SecretGone):
                holder.at("acme", 1)
        with pytest.raises(SecretGone):
            await mine.retire("acme", 1)
        assert store.rows["acme", 1] == Row("acme", 1, "", b"")

    run(test())


def test_what_is_shredded_never_comes_back() -> None:
    async def test() -> None:
        store = MemoryStore()
        mine = secrets(store)
        old = [await mine.ensure("acme"), await mine.rotate("acme")]
        other = await mine.ensure("globex")
        assert await mine.shred("acme") == 2
        assert await mine.shred("acme") == 0
        assert await mine.shred("nobody") == 0
        for holder in (mine, await loaded(store)):
            with pytest.raises(SecretGone):
                holder.current("acme")
            with pytest.raises(SecretGone):
                holder.at("acme", 1)
            with pytest.raises(SecretGone):
                await holder.ensure("acme")
            assert holder.current("globex") == other
            assert [holder.newest(each) for each in ("acme", "globex", "nobody")] == [2, 1, 0]
        begun = await mine.rotate("acme")
        assert begun.version == 3
        assert begun.secret not in {each.secret for each in old}
        assert (await loaded(store)).current("acme") == begun == await mine.ensure("acme")

    run(test())


def test_the_root_is_rotated_and_the_old_one_dropped(tmp_path: Path) -> None:
    """The whole rehearsal, with an old copy of the database at its end."""

    async def test() -> None:
        path = tmp_path / "root.key"
        store = MemoryStore()
        before = secrets(store, open_keyring(path))
        kept = [await before.ensure("acme"), await before.rotate("acme")]
        await before.ensure("globex")
        await before.shred("globex")
        old_root = open_keyring(path).root_ids[-1]
        copy = MemoryStore(dict(store.rows))
        new_root = add_root(path)
        after = await loaded(store, open_keyring(path))
        assert await after.rewrap() == 2
        assert await after.rewrap() == 0
        assert after.root_ids() == {new_root}
        drop_root(path, old_root, in_use=after.root_ids())
        reread = await loaded(store, open_keyring(path))
        assert [reread.at("acme", 1), reread.current("acme")] == kept
        with pytest.raises(KeyringError, match=f"Root key {old_root} is not"):
            await loaded(copy, open_keyring(path))

    run(test())


def test_a_store_that_fails_leaves_nothing_half_done() -> None:
    async def test() -> None:
        store = MemoryStore(failing=True)
        mine = secrets(store)
        with pytest.raises(ConnectionError):
            await mine.ensure("acme")
        with pytest.raises(SecretGone):
            mine.current("acme")
        store.failing = False
        assert (await mine.ensure("acme")).version == 2  # the first may have been written
        store.failing = True
        with pytest.raises(ConnectionError):
            await mine.shred("acme")
        with pytest.raises(SecretGone):  # gone here at once, whatever the store says
            mine.current("acme")
        store.failing = False
        assert await mine.rewrap() == 0
        assert await mine.shred("acme") == 1
        assert store.rows["acme", 2].wrapped == b""

    run(test())


def test_a_failed_retirement_can_be_asked_again() -> None:
    async def test() -> None:
        store = MemoryStore()
        mine = secrets(store)
        await mine.ensure("acme")
        await mine.rotate("acme")
        store.failing = True
        with pytest.raises(ConnectionError):
            await mine.retire("acme", 1)
        assert mine.root_ids()
        store.failing = False
        await mine.retire("acme", 1)
        assert store.rows["acme", 1].wrapped == b""
        assert mine.current("acme").version == 2

    run(test())


def test_a_caller_who_goes_away_undoes_nothing() -> None:
    async def test() -> None:
        store = MemoryStore(gate=asyncio.Event())
        mine = secrets(store)
        caller = asyncio.ensure_future(mine.ensure("acme"))
        await store.entered.wait()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert store.gate is not None
        store.gate.set()
        assert (await mine.ensure("acme")).version == 1
        assert len(store.rows) == 1

    run(test())


def test_two_who_begin_at_once_have_one_secret() -> None:
    async def test() -> None:
        store = MemoryStore()
        ours, theirs = await loaded(store), await loaded(store)
        made = await asyncio.gather(ours.ensure("acme"), theirs.ensure("acme"))
        assert made[0] == made[1]
        assert len(store.rows) == 1

    asyncio.run(test())


def test_what_another_changes_is_read() -> None:
    async def test() -> None:
        store = MemoryStore()
        ours, theirs = await loaded(store), await loaded(store)
        await ours.ensure("acme")
        await ours.ensure("globex")
        assert await theirs.refresh() == {"acme", "globex"}
        assert await theirs.refresh() == set()
        assert theirs.current("acme") == ours.current("acme")
        rotated = await ours.rotate("acme")
        assert await theirs.refresh() == {"acme"}
        assert theirs.current("acme") == rotated
        assert theirs.at("acme", 1) == ours.at("acme", 1)
        await ours.retire("acme", 1)
        assert await theirs.refresh() == {"acme"}
        with pytest.raises(SecretGone):
            theirs.at("acme", 1)
        await ours.shred("acme")
        assert await theirs.refresh() == {"acme"}
        assert theirs.is_shredded("acme")
        with pytest.raises(SecretGone):
            await theirs.ensure("acme")
        again = await theirs.rotate("acme")  # somebody means it
        assert again.version == 3
        assert await ours.refresh() == {"acme"}
        assert ours.current("acme") == again
        assert not ours.is_shredded("acme")
        assert ours.current("globex") == theirs.current("globex")

    asyncio.run(test())


def test_two_who_rotate_at_once_make_two_versions() -> None:
    async def test() -> None:
        store = MemoryStore()
        ours, theirs = await loaded(store), await loaded(store)
        await ours.ensure("acme")
        await theirs.refresh()
        made = await asyncio.gather(ours.rotate("acme"), theirs.rotate("acme"))
        assert sorted(each.version for each in made) == [2, 3]
        await ours.refresh()
        await theirs.refresh()
        assert ours.current("acme") == theirs.current("acme")

    asyncio.run(test())


def test_what_was_destroyed_here_does_not_come_back_by_reading() -> None:
    """The store failed to destroy it: it is gone here, and asked for again."""

    async def test() -> None:
        store = MemoryStore()
        ours, theirs = await loaded(store), await loaded(store)
        await ours.ensure("acme")
        await theirs.ensure("globex")
        store.failing = True
        with pytest.raises(ConnectionError):
            await ours.shred("acme")
        store.failing = False
        assert await ours.refresh() == {"globex"}
        assert ours.is_shredded("acme")
        assert await ours.shred("acme") == 1
        assert store.rows["acme", 1].wrapped == b""

    asyncio.run(test())
