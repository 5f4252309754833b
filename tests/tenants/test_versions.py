"""Every revision, one after the other, makes what the tables say; and none loses what was there."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, make_url, text

from policies.verdict import Allow
from tenants.schema import metadata, versions
from tenants.store import Store, StoreRefused, postgres
from tenants.store.postgres import PostgresBackend
from tenants.store.sqlite import SqliteBackend
from tests.servers_postgres import database, needs_postgres
from tests.tenants.house import Clock, ask, folder, opened, run, tenant_budget

Backend = SqliteBackend | PostgresBackend


@pytest.fixture(
    params=("sqlite", pytest.param("postgresql", marks=(pytest.mark.slow, needs_postgres)))
)
def empty(request: pytest.FixtureRequest) -> Iterator[Backend]:
    if request.param == "sqlite":
        with folder() as where:
            backend: Backend = SqliteBackend(where / "x.db", write=True)
            yield backend
            backend.close()
        return
    with database() as url:
        backend = PostgresBackend(make_url(url), write=True)
        yield backend
        backend.close()


def test_the_names_are_all_of_them_in_order() -> None:
    scripts = ScriptDirectory(str(versions.MIGRATIONS)).walk_revisions()
    assert tuple(each.revision for each in reversed(list(scripts))) == versions.REVISIONS


def differences(conn: Connection) -> list[Any]:
    return list(compare_metadata(MigrationContext.configure(conn), metadata))


def from_nothing(conn: Connection) -> None:
    versions._version.create(conn)
    versions.upgrade(conn, versions.REVISIONS[-1])


@pytest.mark.parametrize("made", (from_nothing, versions.prepare))
def test_they_make_what_the_tables_say(empty: Backend, made: Callable[[Connection], None]) -> None:
    empty.commit(made)
    assert empty.commit(differences) == []
    assert empty.commit(_partial_indexes) == {
        *("reservation_held", "outbox_due", "request_faulted"),
        *("reservation_tag_binding", "reservation_tag_client"),
    }
    empty.commit(versions.prepare)  # again: nothing to do
    assert empty.commit(versions.check) == versions.REVISIONS[-1]


def _partial_indexes(conn: Connection) -> set[str]:
    """What the comparison does not look at."""
    word = f"{conn.dialect.name}_where"
    return {
        str(index["name"])
        for table in metadata.tables
        for index in inspect(conn).get_indexes(table)
        if index.get("dialect_options", {}).get(word) is not None
    }


def test_a_book_of_before_alembic_keeps_its_money() -> None:
    """Version 3, as it counted itself, with a hold in the middle."""

    def old(conn: Connection) -> None:
        versions._version.create(conn)
        versions.upgrade(conn, "0003")
        conn.execute(text("DROP TABLE alembic_version"))
        conn.execute(text("CREATE TABLE schema_version (version INTEGER NOT NULL)"))
        conn.execute(text("INSERT INTO schema_version VALUES (3)"))

    async def test() -> None:
        with folder() as where:
            backend = SqliteBackend(where / "x.db", write=True)
            backend.commit(old)
            backend.close()
            with closing(sqlite3.connect(where / "x.db")) as raw, raw:
                for at, (state, amount, charge) in enumerate(
                    (("SETTLED", 50_000, 32_000), ("HELD", 50_000, 0))
                ):
                    raw.execute(
                        "INSERT INTO reservation VALUES (?, 'acme', 'search', 'alice', 'idp', NULL, 'm',"
                        " 'interactive', ?, ?, 'm@0', 100, 50, 1, NULL, '', ?, ?, ?, 0, 1, 'p0', ?, ?,"
                        " NULL)",
                        (
                            f"old{at}",
                            '["acme","idp","alice"]',
                            '["acme","search"]',
                            amount,
                            charge,
                            state,
                            Clock().ms,
                            Clock().ms + 60_000,
                        ),
                    )
                raw.execute(
                    "INSERT INTO price VALUES ('m@0', 'm', 0, 200000000, 50000000, 200000000,"
                    " 600000000, '1.0')"
                )
            budget = tenant_budget(10**9)
            with opened(Clock(), where / "x.db") as book:
                (balance,) = await book.balances([budget])
                assert (balance.spent_nano_usd, balance.held_nano_usd) == (32_000, 50_000)
                assert isinstance(await book.hold(ask("new", budget)), Allow)
                assert (await book.recover()).expired == ("old1",)
                (balance,) = await book.balances([budget])
                assert (balance.spent_nano_usd, balance.held_nano_usd) == (82_000, 50_000)

    run(test)


@pytest.mark.slow
@needs_postgres
def test_two_gateways_that_start_at_once_make_one_schema() -> None:
    async def test() -> None:
        with database() as url:
            stores = await asyncio.gather(*(asyncio.to_thread(Store.open, url) for _ in range(4)))
            for store in stores:
                assert await store.read(versions.check) == versions.REVISIONS[-1]
                await asyncio.to_thread(store.close)

    run(test)


@pytest.mark.slow
@needs_postgres
def test_who_is_not_let_in_hears_why() -> None:
    with database() as url, pytest.raises(StoreRefused, match="InvalidCatalogName"):
        Store.open(url.replace("/t", "/nowhere-t", 1))


def test_a_server_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="check that it runs"):
        postgres.opened(make_url(f"postgresql://me:hunter2@/x?host={tmp_path}"))
