"""Wrapped secrets in the database: kept whole, and leaving nothing behind when they are destroyed."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from security.keyring_tenants import SecretStore
from tenants.secrets import SecretRow, SecretTable
from tenants.store import Store, StoreUnavailable
from tests.tenants.house import folder, run


def wrapped(number: int) -> bytes:
    return f"<wrapped secret number {number:032}>".encode()


def bytes_on_disk(where: Path) -> bytes:
    return b"".join(each.read_bytes() for each in sorted(where.iterdir()))


def test_kept_and_read_again_by_the_protocol_that_security_asks() -> None:
    async def test() -> None:
        with folder() as where:
            for again in (False, True):
                held = Store.open(f"sqlite:///{where}/x.db")
                table: SecretStore = SecretTable(held)
                if not again:
                    assert await table.generation() == 0
                    assert await table.add(tenant="acme", version=1, root="r1", wrapped=wrapped(1))
                    assert await table.generation() == 1
                    assert not await table.add(
                        tenant="acme", version=1, root="r1", wrapped=wrapped(2)
                    )
                    assert await table.generation() == 1
                assert await table.load() == [SecretRow("acme", 1, "r1", wrapped(1))]
                assert "wrapped secret" not in repr(await table.load())
                held.close()

    run(test)


def test_wrapping_again_is_all_or_nothing() -> None:
    async def test() -> None:
        with folder() as where:
            held = Store.open(f"sqlite:///{where}/x.db")
            table = SecretTable(held)
            for version in (1, 2):
                await table.add(tenant="a", version=version, root="r1", wrapped=wrapped(version))
            before = await table.load()
            with pytest.raises(AssertionError, match="never kept"):
                await table.rewrap([("a", 1, "r2", wrapped(3)), ("a", 9, "r2", wrapped(4))])
            assert await table.load() == before
            await table.rewrap([("a", 1, "r2", wrapped(3)), ("a", 2, "r2", wrapped(4))])
            assert [each.root for each in await table.load()] == ["r2", "r2"]
            held.close()

    run(test)


def test_what_is_destroyed_is_in_no_file_while_the_store_is_open() -> None:
    """Among many, so that rows have moved between pages since they were written."""

    async def test() -> None:
        with folder() as where:
            held = Store.open(f"sqlite:///{where}/x.db")
            table = SecretTable(held)
            await asyncio.gather(
                *(
                    table.add(tenant=f"t{i:03}", version=v, root="r1", wrapped=wrapped(2 * i + v))
                    for i in range(60)
                    for v in (0, 1)
                )
            )
            gone = list(range(0, 60, 6))
            assert all(wrapped(2 * i) in bytes_on_disk(where) for i in gone)
            for i in gone:
                await table.destroy(tenant=f"t{i:03}", versions=(0, 1))
            left = bytes_on_disk(where)
            assert [i for i in gone if wrapped(2 * i) in left or wrapped(2 * i + 1) in left] == []
            assert wrapped(2 * 1) in left
            rows = {(each.tenant, each.version): each for each in await table.load()}
            assert len(rows) == 120
            assert rows["t000", 1] == SecretRow("t000", 1, "", b"")
            held.close()

    run(test)


def test_a_log_that_is_kept_busy_is_said() -> None:
    async def test() -> None:
        with folder() as where:
            held = Store.open(f"sqlite:///{where}/x.db")
            table = SecretTable(held)
            await table.add(tenant="a", version=1, root="r1", wrapped=wrapped(1))
            reader = sqlite3.connect(where / "x.db", isolation_level=None)
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM tenant_secret").fetchall()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("tenants.store.sqlite.BUSY_MS", 1)
                with pytest.raises(StoreUnavailable, match="busy"):
                    await table.destroy(tenant="a", versions=(1,))
            assert await table.load() == [SecretRow("a", 1, "", b"")]
            reader.close()
            await table.destroy(tenant="a", versions=(1,))
            assert wrapped(1) not in bytes_on_disk(where)
            held.close()

    run(test)
