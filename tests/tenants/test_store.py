"""The writer commits in groups and tells the truth; the file is ours, whole and alone."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
import threading
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, event, insert, select, text
from sqlalchemy.exc import OperationalError

from tenants import schema
from tenants.store import Store, StoreRefused, StoreUnavailable, worker
from tenants.store.sqlite import SqliteBackend
from tests.tenants.house import folder, run


def suspend(conn: Connection, tenant: str) -> str:
    conn.execute(insert(schema.suspension).values(tenant=tenant, at_s=0, actor="t", reason=""))
    return tenant


def suspended(conn: Connection) -> list[str]:
    return sorted(conn.execute(select(schema.suspension.c.tenant)).scalars())


def engine_of(held: Store) -> Engine:
    backend = held._writer._backend
    assert isinstance(backend, SqliteBackend)
    return backend.engine


def test_what_waits_is_committed_together_and_in_order() -> None:
    async def test() -> None:
        with folder() as where:
            held = Store.open(f"sqlite:///{where}/x.db")
            commits: list[None] = []
            event.listen(engine_of(held), "commit", lambda _: commits.append(None))
            gate = threading.Event()
            first = asyncio.ensure_future(held.write(lambda _: gate.wait(10)))
            await asyncio.sleep(0)
            order: list[int] = []
            rest = [
                asyncio.ensure_future(held.write(lambda _, i=i: order.append(i)))  # type: ignore[misc]
                for i in range(100)
            ]
            await asyncio.sleep(0)
            gate.set()
            await asyncio.gather(first, *rest)
            assert order == list(range(100))
            assert len(commits) <= 3
            held.close()

    run(test)


def test_one_that_raises_is_rolled_back_alone() -> None:
    async def test() -> None:
        with folder() as where:
            held = Store.open(f"sqlite:///{where}/x.db")

            def broken(conn: Connection) -> None:
                suspend(conn, "half")
                raise ZeroDivisionError

            done = await asyncio.gather(
                held.write(lambda conn: suspend(conn, "a")),
                held.write(broken),
                held.write(lambda conn: suspend(conn, "b")),
                return_exceptions=True,
            )
            assert [type(each) for each in done] == [str, ZeroDivisionError, str]
            assert await held.read(suspended) == ["a", "b"]
            held.close()

    run(test)


def test_a_failed_commit_fails_everybody_and_the_store_goes_on() -> None:
    async def test() -> None:
        with folder() as where:
            held = Store.open(f"sqlite:///{where}/x.db")
            full = [True]

            def commit(_: Connection) -> None:
                if full.pop():
                    full.append(False)
                    raise sqlite3.OperationalError("disk full")
                full.append(False)

            event.listen(engine_of(held), "commit", commit)
            gate = threading.Event()
            done = asyncio.gather(
                held.write(lambda conn: gate.wait(10) and suspend(conn, "a")),
                held.write(lambda conn: suspend(conn, "b")),
                return_exceptions=True,
            )
            await asyncio.sleep(0)
            gate.set()
            first, second = await done
            assert isinstance(first, StoreUnavailable)
            assert "disk full" not in str(first)
            if not isinstance(second, StoreUnavailable):  # it came too late for that group
                await held.write(lambda conn: conn.execute(schema.suspension.delete()))
            await held.write(lambda conn: suspend(conn, "c"))
            assert await held.read(suspended) == ["c"]
            held.close()

    run(test)


def test_an_operation_that_the_database_refuses_is_unavailable() -> None:
    async def test() -> None:
        with folder() as where:
            held = Store.open(f"sqlite:///{where}/x.db")
            with pytest.raises(StoreUnavailable):
                await held.write(lambda conn: conn.execute(text("SELECT * FROM nowhere")))
            held.close()

    run(test)


def test_the_reader_writes_nothing() -> None:
    async def test() -> None:
        with folder() as where:
            held = Store.open(f"sqlite:///{where}/x.db")
            with pytest.raises(StoreUnavailable) as caught:
                await held.read(lambda conn: suspend(conn, "a"))
            assert isinstance(caught.value.__cause__, OperationalError)
            held.close()

    run(test)


def test_a_cancelled_caller_undoes_nothing() -> None:
    async def test() -> None:
        with folder() as where:
            held = Store.open(f"sqlite:///{where}/x.db")
            gate = threading.Event()
            task = asyncio.ensure_future(
                held.write(lambda conn: gate.wait(10) and suspend(conn, "a"))
            )
            await asyncio.sleep(0)
            task.cancel()
            gate.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            await held.write(lambda _: None)
            assert await held.read(suspended) == ["a"]
            held.close()

    run(test)


def test_it_refuses_when_closed_or_overfull(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        with folder() as where:
            held = Store.open(f"sqlite:///{where}/x.db")
            monkeypatch.setattr(worker, "WAITING_MOST", 0)
            with pytest.raises(StoreUnavailable, match="wait"):
                await held.write(lambda _: None)
            held.close()
            held._writer.close()
            with pytest.raises(StoreUnavailable, match="closed"):
                await held.write(lambda _: None)

    run(test)


def test_what_is_committed_survives_and_is_durable() -> None:
    async def test() -> None:
        with folder() as where:
            held = Store.open(f"sqlite:///{where}/x.db")
            await held.write(lambda conn: suspend(conn, "a"))
            pragma = "SELECT * FROM pragma_synchronous, pragma_journal_mode"
            modes = await held.write(lambda conn: tuple(conn.execute(text(pragma)).one()))
            assert modes == (2, "wal")  # FULL
            assert stat.S_IMODE((where / "x.db").stat().st_mode) == 0o600
            held.close()
            again = Store.open(f"sqlite:///{where}/x.db")
            assert await again.read(suspended) == ["a"]
            again.close()

    run(test)


def _foreign(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE recipes (name TEXT)")
    other.close()


def _newer(path: Path) -> None:
    Store.open(f"sqlite:///{path}").close()
    with sqlite3.connect(path) as mine:
        mine.execute("UPDATE alembic_version SET version_num = '9999'")
    mine.close()


def _short(path: Path) -> None:
    Store.open(f"sqlite:///{path}").close()
    with sqlite3.connect(path) as mine:
        mine.execute("DROP TABLE ledger_entry")
    mine.close()


def _torn(path: Path) -> None:
    Store.open(f"sqlite:///{path}").close()
    whole = bytearray(path.read_bytes())
    whole[8192:20000] = b"\x7f" * (20000 - 8192)
    path.write_bytes(whole)


@pytest.mark.parametrize(
    ("spoil", "says"),
    (
        (lambda path: path.write_bytes(b"not a database at all" * 100), "no readable database"),
        (_foreign, "another program"),
        (_newer, "newer program"),
        (_short, "ledger_entry"),
        (_torn, "backup"),
        (lambda path: path.mkdir(), "cannot be opened"),
    ),
)
def test_a_file_that_is_not_ours_is_refused_untouched(spoil: object, says: str) -> None:
    assert callable(spoil)
    with folder() as where:
        path = where / "x.db"
        spoil(path)
        before = path.read_bytes() if path.is_file() else b""
        with pytest.raises(StoreRefused, match=says):
            Store.open(f"sqlite:///{path}")
        assert before == (path.read_bytes() if path.is_file() else b"")


def test_a_second_process_is_refused_while_the_first_lives() -> None:
    with folder() as where:
        first = Store.open(f"sqlite:///{where}/x.db")
        with pytest.raises(StoreRefused, match="in use"):
            Store.open(f"sqlite:///{where}/x.db")
        first.close()
        Store.open(f"sqlite:///{where}/x.db").close()


@pytest.mark.parametrize(
    ("url", "says"),
    (
        ("mysql://host/db", "not supported"),
        ("sqlite://", "no file"),
        ("sqlite:///:memory:", "no file"),
        ("::", "no URL"),
    ),
)
def test_other_urls_are_refused(url: str, says: str) -> None:
    with pytest.raises(StoreRefused, match=says):
        Store.open(url)


@pytest.mark.slow
def test_two_who_empty_the_log_at_once_do_not_fail_each_other() -> None:
    """A secret that is destroyed and a document that is deleted, say."""

    async def test() -> None:
        with folder() as where:
            held = Store.open(f"sqlite:///{where}/x.db")
            await held.write(lambda conn: conn.execute(text("CREATE TABLE more (x)")))
            for _ in range(10):
                row = text("INSERT INTO more VALUES (randomblob(1000000))")
                await held.write(lambda conn, row=row: conn.execute(row))  # type: ignore[misc]
                await asyncio.gather(*(held.forget_overwritten() for _ in range(8)))
            held.close()

    run(test)
