"""The database goes away and comes back: nothing runs unheld, and nothing that ran is lost.

Source: MONEY.md §1 ("Outages"), §5 cases 3, 6, 13, 35.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from policies.facts import Meters
from policies.verdict import Allow
from tenants import ledger
from tenants.asks import SettleAsk, VoidAsk
from tenants.book import Book
from tenants.journal import Journal, JournalFull
from tenants.store import Store, StoreUnavailable
from tests.servers_postgres import Cluster, needs_postgres
from tests.tenants.house import Clock, ask, folder, opened, record, run, tenant_budget

T = TypeVar("T")

BUDGET = tenant_budget(10**9)
USED = Meters(input=100, output=20)
COSTS = 32_000


@contextmanager
def away(book: Book) -> Iterator[None]:
    """Nothing can be written, and nobody learns whether it was."""
    backend = book._store._writer._backend
    commit = backend.commit

    def fails(work: Callable[[Connection], T]) -> T:
        raise OperationalError("", None, OSError("gone"), connection_invalidated=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "commit", fails)
        yield
    assert backend.commit == commit


async def money(book: Book) -> tuple[int, int]:
    (balance,) = await book.balances([BUDGET])
    return balance.spent_nano_usd, balance.held_nano_usd


def test_what_ended_meanwhile_is_booked_when_the_database_is_back() -> None:
    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            for each in ("ran", "never"):
                assert isinstance(await book.hold(ask(each, BUDGET)), Allow)
            with away(book):
                with pytest.raises(StoreUnavailable):
                    await book.hold(ask("late", BUDGET))
                told = await book.settle("ran", USED, record("ran"))
                assert (told.charge.total_nano_usd, told.repeat) == (COSTS, False)
                assert await book.void("never", record("never"))
                assert book.journalled == 2
                assert book.away
                with pytest.raises(StoreUnavailable):
                    await book.book_journal()
                with pytest.raises(StoreUnavailable):  # whose price nobody here knows
                    await book.settle("foreign", USED)
            assert await book.book_journal() == 3
            assert await book.book_journal() == 0
            await book.sweep()
            assert not book.away
            assert await money(book) == (COSTS, 0)
            again = await book.settle("ran", Meters(output=50))
            assert (again.repeat, again.charge) == (True, told.charge)
            found = await book.explain("ran")
            assert found is not None
            assert found.record == record("ran")

    run(test)


def test_a_gateway_that_ends_meanwhile_leaves_it_to_the_next() -> None:
    async def test() -> None:
        with folder() as where:
            with opened(Clock(), where / "x.db", "p1") as book:
                await book.hold(ask("ran", BUDGET))
                with away(book):
                    await book.settle("ran", USED)
            assert (where / "unbooked.jsonl").stat().st_mode & 0o777 == 0o600
            with opened(Clock(), where / "x.db", "p2") as book:
                assert await book.book_journal() == 1
                assert (await book.recover()).expired == ()
                assert await money(book) == (COSTS, 0)
            assert not (where / "unbooked.jsonl").exists()

    run(test)


def test_a_hold_of_which_nobody_knows_is_voided_once_somebody_can() -> None:
    """The commit was done, and the word of it lost."""

    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            backend = book._store._writer._backend
            commit = backend.commit

            def unheard(work: Callable[[Connection], T]) -> T:
                commit(work)
                raise OperationalError("", None, OSError("gone"), connection_invalidated=True)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(backend, "commit", unheard)
                with pytest.raises(StoreUnavailable):
                    await book.hold(ask("r1", BUDGET))
            assert await money(book) == (0, 50_000)
            await book.sweep()
            assert await money(book) == (0, 0)
            found = await book.explain("r1")
            assert found is not None
            assert found.state == "VOIDED"

    run(test)


def test_who_leaves_while_it_is_away_leaves_no_hold_either() -> None:
    """The hold was made, and the void that follows it was not."""

    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            backend = book._store._writer._backend
            commit, begun, let_go = backend.commit, threading.Event(), threading.Event()
            turns = 0

            def first_alone(work: Callable[[Connection], T]) -> T:
                nonlocal turns
                turns += 1
                if turns > 1:
                    raise OperationalError("", None, OSError("gone"), connection_invalidated=True)
                begun.set()
                let_go.wait(10)
                return commit(work)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(backend, "commit", first_alone)
                asking = asyncio.ensure_future(book.hold(ask("r1", BUDGET)))
                await asyncio.to_thread(begun.wait, 10)
                asking.cancel()
                await asyncio.sleep(0)
                let_go.set()
                with pytest.raises(asyncio.CancelledError):
                    await asking
                with pytest.raises(StoreUnavailable):  # after both
                    await book._store.write(lambda _: None)
            assert await money(book) == (0, 50_000)
            await book.sweep()
            assert await money(book) == (0, 0)

    run(test)


def test_an_end_that_cannot_be_booked_is_not_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            for each in ("a", "b"):
                await book.hold(ask(each, BUDGET))
            with away(book):
                for each in ("a", "b"):
                    await book.settle(each, USED)
            settle = ledger._Page._settle

            def broken(self: Any, request_id: str, *more: Any) -> Any:
                assert request_id != "b"
                return settle(self, request_id, *more)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(ledger._Page, "_settle", broken)
                with pytest.raises(AssertionError):
                    await book.book_journal()
            assert book.journalled == 1
            assert not book.away
            assert await book.book_journal() == 1
            assert await money(book) == (2 * COSTS, 0)

    run(test)


def test_where_the_journal_fails_too_the_caller_hears_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            await book.hold(ask("a", BUDGET))
            await book.hold(ask("b", BUDGET))
            path = where / "unbooked.jsonl"
            with away(book):
                await book.settle("a", USED)
                before = path.read_bytes()
                write = os.write
                monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:7]))
                with pytest.raises(StoreUnavailable, match="booked"):
                    await book.settle("b", USED)
                monkeypatch.undo()
            assert path.read_bytes() == before  # not half a line
            assert await book.book_journal() == 1
            assert await money(book) == (COSTS, 50_000)

    run(test)


def test_a_torn_last_line_was_never_acknowledged(tmp_path: Path) -> None:
    async def test() -> None:
        path = tmp_path / "j"
        journal = Journal(path)
        ends = (SettleAsk("a", USED, record("a")), VoidAsk("b"))
        for end in ends:
            await journal.append(end)
        with path.open("ab") as file:
            file.write(b'{"void":{"request_id":"c"')
        again = Journal(path)
        assert again.waiting == ends
        await again.append(VoidAsk("d"))
        assert Journal(path).waiting == (*ends, VoidAsk("d"))
        await again.taken(2)
        assert Journal(path).waiting == (VoidAsk("d"),)

    run(test)


def test_it_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        monkeypatch.setattr("tenants.journal.WAITING_MOST", 1)
        journal = Journal(tmp_path / "j")
        await journal.append(VoidAsk("a"))
        with pytest.raises(JournalFull, match="wait"):
            await journal.append(VoidAsk("b"))

    run(test)


@pytest.mark.slow
@needs_postgres
@pytest.mark.parametrize("paused", (False, True), ids=("killed", "silent"))
def test_a_real_server_goes_and_comes_back(paused: bool) -> None:
    """Killed, everything at once; or silent, as behind a cable that was pulled."""

    async def test() -> None:
        server = Cluster()
        try:
            server.sql("CREATE DATABASE book")
            with folder() as where:
                store = await asyncio.to_thread(Store.open, server.url("book"))
                book = Book(
                    store, owner="p", clock_ms=Clock(), journal=Journal(where / "unbooked.jsonl")
                )
                assert isinstance(await book.hold(ask("ran", BUDGET)), Allow)
                server.pause() if paused else server.kill()
                begun_s = time.monotonic()
                with pytest.raises(StoreUnavailable):
                    await book.hold(ask("late", BUDGET))
                assert time.monotonic() - begun_s < 12  # never a hang
                assert (await book.settle("ran", USED)).charge.total_nano_usd == COSTS
                if paused:
                    server.resume()
                else:
                    await asyncio.to_thread(server.start)
                for _ in range(50):
                    try:
                        while await book.book_journal():
                            pass
                        await book.sweep()
                        break
                    except StoreUnavailable:
                        await asyncio.sleep(0.1)
                assert book.journalled == 0
                assert await money(book) == (COSTS, 0)
                assert await book.open_holds() == 0
                await asyncio.to_thread(store.close)
        finally:
            server.close()

    run(test)
