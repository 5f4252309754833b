"""The drill: a book is copied while it is written, lost, and put back; and its money is what it was."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli.app import app
from policies.facts import Meters
from policies.verdict import Allow
from tenants.backup import Copy, back_up, look_through, restore
from tenants.store import Store, StoreRefused, file_of
from tests.servers_postgres import cluster, database, needs_postgres
from tests.tenants.house import Clock, ask, folder, opened, record, run, tenant_budget

BUDGET = tenant_budget(10**9)
COSTS = 32_000


async def money(path: Path, owner: str) -> tuple[int, int]:
    """After a start, as the server does it."""
    with opened(Clock(), path, owner) as book:
        await book.recover()
        (balance,) = await book.balances([BUDGET])
        return balance.spent_nano_usd, balance.held_nano_usd


def test_the_drill() -> None:
    async def test() -> None:
        with folder() as where:
            path, kept = where / "book.db", where / "kept.db"
            with opened(Clock(), path) as book:
                for each in ("done", "open"):
                    assert isinstance(await book.hold(ask(each, BUDGET)), Allow)
                await book.settle("done", Meters(input=100, output=20), record("done"))
                copied = await asyncio.to_thread(back_up, path, kept)
                await book.void("open")  # after the copy: not in it
                with pytest.raises(StoreRefused, match="in use"):
                    restore(kept, path, replace=True)
            assert (copied.requests, copied.open, copied.ledger_entries) == (2, 1, 1)
            assert copied.spent_nano_usd == COSTS
            assert stat.S_IMODE(kept.stat().st_mode) == 0o600
            assert look_through(kept) == copied
            with pytest.raises(StoreRefused, match="replace"):
                restore(kept, path)
            restore(kept, path, replace=True)
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            # What ran when it was copied is charged as reserved: nobody knows any more.
            assert await money(path, "p2") == (COSTS + 50_000, 0)
            assert await money(where / "book.db.before", "p2") == (COSTS, 0)
            with pytest.raises(StoreRefused, match="move it away"):
                restore(kept, path, replace=True)
            for lost in where.glob("book.db*"):
                lost.unlink()
            restored = restore(kept, path)
            assert restored.sha256 == copied.sha256
            assert await money(path, "p2") == (COSTS + 50_000, 0)
            assert not list(where.glob(".*part*"))

    run(test)


def test_a_copy_that_is_taken_under_load_is_whole() -> None:
    async def test() -> None:
        with folder() as where, opened(Clock(), where / "book.db") as book:

            async def load(number: int) -> None:
                for at in range(30):
                    request_id = f"{number}-{at}"
                    await book.hold(ask(request_id, tenant_budget(10**12)))
                    await book.settle(request_id, Meters(input=100, output=20))

            loads = asyncio.gather(*(load(number) for number in range(8)))
            copies: list[Copy] = []
            while not loads.done():
                to = where / f"{len(copies)}.copy"
                copies.append(await asyncio.to_thread(back_up, where / "book.db", to))
            await loads
            assert copies
            for copied in copies:
                settled = copied.requests - copied.open
                assert copied.spent_nano_usd == settled * COSTS
                assert copied.ledger_entries == settled

    run(test)


@pytest.mark.parametrize("how", ("itself", "link", "hard link", "full", "unlinkable"))
def test_what_fails_leaves_the_book_where_it_is(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next start would begin an empty one, with every budget new."""
    with folder() as where:
        path, source = where / "book.db", where / "kept.db"
        Store.open(f"sqlite:///{path}").close()
        back_up(path, source)
        match how:
            case "itself":
                source = path
            case "link":
                source.unlink()
                source.symlink_to(path)
            case "hard link":
                source.unlink()
                os.link(path, source)
            case "full":
                monkeypatch.setattr(os, "fsync", lambda _: _fails(28))
            case _:
                monkeypatch.setattr(os, "link", lambda *_: _fails(1))
        before = path.read_bytes()
        with pytest.raises(StoreRefused):
            restore(source, path, replace=True)
        assert path.read_bytes() == before
        assert not (where / "book.db.before").exists()
        assert not list(where.glob(".*part*"))


def test_a_book_with_its_log_is_no_copy() -> None:
    async def test() -> None:
        with folder() as where:
            with opened(Clock(), where / "book.db") as book:
                await book.hold(ask("r1", BUDGET))
                for each in ("book.db", "book.db-wal"):  # as whoever was killed leaves them
                    (where / f"left-{each}").write_bytes((where / each).read_bytes())
            assert (where / "left-book.db-wal").stat().st_size
            with pytest.raises(StoreRefused, match="lockgate backup"):
                restore(where / "left-book.db", where / "other.db")
            assert not (where / "other.db").exists()
            copied = back_up(where / "left-book.db", where / "kept.db")
            assert copied.requests == 1

    run(test)


@pytest.mark.parametrize("side", ("-wal", "-shm", "-journal", ".lock", ".before"))
def test_the_names_of_the_books_own_files_are_no_copys(side: str) -> None:
    with folder() as where:
        Store.open(f"sqlite:///{where}/book.db").close()
        (where / f"book.db{side}").unlink(missing_ok=True)
        with pytest.raises(StoreRefused, match="own files"):
            back_up(where / "book.db", where / f"book.db{side}")


def test_a_link_to_a_book_is_that_book() -> None:
    with folder() as where:
        Store.open(f"sqlite:///{where}/book.db").close()
        (where / "link.db").symlink_to(where / "book.db")
        held = Store.open(f"sqlite:///{where}/book.db")
        with pytest.raises(StoreRefused, match="in use"):
            Store.open(f"sqlite:///{where}/link.db")
        held.close()
        assert file_of(f"sqlite:///{where}/link.db") == (where / "book.db").resolve()


def _fails(number: int) -> None:
    raise OSError(number, os.strerror(number))


def _torn(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    whole[8192:20000] = b"\x7f" * (20000 - 8192)
    path.write_bytes(whole)


@pytest.mark.parametrize(
    ("spoil", "says"),
    (
        (_torn, "damaged|no database"),
        (lambda path: path.write_bytes(b"not a database at all" * 100), "no database"),
        (lambda path: path.write_bytes(b""), "empty"),
        (lambda path: path.unlink(), "no file"),
    ),
)
def test_what_is_no_whole_copy_is_not_put_back(spoil: Callable[[Path], object], says: str) -> None:
    with folder() as where:
        Store.open(f"sqlite:///{where}/book.db").close()
        back_up(where / "book.db", where / "kept.db")
        spoil(where / "kept.db")
        before = (where / "book.db").read_bytes()
        with pytest.raises(StoreRefused, match=says):
            restore(where / "kept.db", where / "book.db", replace=True)
        assert (where / "book.db").read_bytes() == before


def test_a_disk_that_is_full_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with folder() as where:
        Store.open(f"sqlite:///{where}/book.db").close()

        monkeypatch.setattr(os, "fsync", lambda _: _fails(28))
        with pytest.raises(StoreRefused, match="space"):
            back_up(where / "book.db", where / "kept.db")
        assert sorted(each.name for each in where.iterdir() if "kept" in each.name) == []


def test_the_commands(tmp_path: Path) -> None:
    state = tmp_path / "state"
    Store.open(f"sqlite:///{state}/lockgate.db").close()
    runner = CliRunner()
    where = ["--state-dir", str(state), "--json"]
    done = runner.invoke(app, ["backup", str(tmp_path / "kept.db"), *where])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["requests"] == 0
    again = runner.invoke(app, ["backup", str(tmp_path / "kept.db"), *where])
    assert again.exit_code == 1
    (state / "lockgate.db").unlink()
    done = runner.invoke(app, ["restore", str(tmp_path / "kept.db"), *where])
    assert done.exit_code == 0, done.output
    assert (state / "lockgate.db").is_file()


@pytest.mark.slow
@needs_postgres
def test_the_drill_on_postgresql() -> None:
    """With its own tools, as deploy/README.md says."""

    async def test() -> None:
        with database() as url, database() as fresh, folder() as where:
            store = await asyncio.to_thread(Store.open, url)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Store, "clock_ms", lambda _, ours: lambda conn: ours())
                from tests.tenants.house import Where

                patch.setattr(Where, "url", staticmethod(lambda _: url))
                with opened(Clock(), where / "x") as book:
                    await book.hold(ask("done", BUDGET))
                    await book.settle("done", Meters(input=100, output=20), record("done"))
                await asyncio.to_thread(store.close)
                kept = where / "book.dump"
                server = cluster()
                where.chmod(0o777)
                server._run("pg_dump", "-Fc", "-f", str(kept), "-d", url)
                server._run("pg_restore", "--exit-on-error", "-d", fresh, str(kept))
                patch.setattr(Where, "url", staticmethod(lambda _: fresh))
                with opened(Clock(), where / "x", "p2") as book:
                    (balance,) = await book.balances([BUDGET])
                    assert (balance.spent_nano_usd, balance.held_nano_usd) == (COSTS, 0)
                    assert isinstance(await book.hold(ask("next", BUDGET)), Allow)

    run(test)
