"""A tenant is deleted: its sums stay to the last unit, and its name is nowhere."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing as closed_after
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, insert

from policies.facts import Budget, Meters
from policies.periods import CLOSING_MS, Month, month
from policies.tags import Origin, Tag
from tenants import closing, deletion, schema
from tenants.adjustments import AdjustAsk, Kind
from tenants.backup import back_up
from tenants.book import Book
from tenants.deleting import Deleting
from tenants.finance import Finance
from tenants.pseudonyms import names_of, tombstone
from tenants.reports import COLUMNS, Asked
from tenants.reports.facts import Slice
from tenants.resealing import Both, MonthDiffers, chained
from tenants.schema.classified import FATES, Fate
from tenants.scopes import BudgetAccount, tag_account
from tenants.store import Store, StoreUnavailable
from tenants.store.sqlite import SqliteBackend, empty_wal
from tests.tenants.finance_kit import PEOPLE, edit, house, rows
from tests.tenants.house import Clock, ask, folder, on_both, record, run
from tests.tenants.test_failpoints import Backend, Died, Failpoints
from tests.tenants.test_forgetting import digest, keeper, text_of_all

pytestmark = pytest.mark.usefixtures("on_both")
__all__ = ["on_both"]

OCTOBER, NOVEMBER = month("2026-10"), month("2026-11")
TENANT = "wonderland-inc"
"""A name that nothing else has in it."""
OURS = [
    replace(dims, tenant=TENANT, project=dims.project and f"looking-glass{number}", user=f"{dims.user}@rabbit-hole",
            issuer=f"https://wonderland-inc.example/{dims.issuer}")
    for number, dims in enumerate(PEOPLE)
    if dims.tenant == "acme"
]  # fmt: skip
TAGS = (
    Tag("env", "prod", Origin.KEY),
    Tag("team", "looking-glass", Origin.KEY),
    Tag("who", "cheshire", Origin.CLIENT),
)
NAMES = ("wonderland", "looking-glass", "rabbit-hole", "cheshire")


async def lives(book: Book, finance: Finance, clock: Clock) -> None:
    """In a month that is closed and one that is not, beside another tenant; a refund, a credit, a top-up; somebody whose
    usage is still to come."""
    theirs = replace(PEOPLE[0], tenant="globex")
    for start_ms in (OCTOBER.start_ms, NOVEMBER.start_ms):
        for number, dims in enumerate((*OURS, theirs)):
            clock.ms = start_ms + 5_000 + number
            of, price = (
                f"r{start_ms}-{number}",
                replace(ask().price, id=f"{dims.model}@0", model=dims.model),
            )
            budgets = (BudgetAccount("tenant", dims.tenant, Budget(10**12)),)
            tags = TAGS if dims.tenant == TENANT else TAGS[:1]
            await book.hold(ask(of, *budgets, dims=dims, price=price, tags=tags))
            await book.settle(of, Meters(input=7 + number), record(of, dims, device_ns=3))
        if start_ms == OCTOBER.start_ms:
            clock.ms = OCTOBER.end_ms + CLOSING_MS
            await finance.close(OCTOBER, actor="op", reason="month")
    clock.ms = NOVEMBER.start_ms + 10 * 86_400_000
    await book.hold(ask("late", dims=OURS[0]))
    clock.ms += 61_000
    await book.sweep()
    for kind, more in (
        (Kind.CREDIT, {}),
        (Kind.REFUND, {"request_id": f"r{OCTOBER.start_ms}-0"}),
        (Kind.TOP_UP, {"budget": BudgetAccount("user", json.dumps([TENANT, OURS[0].issuer, OURS[0].user], separators=(",", ":")), Budget(5))}),
        (Kind.TOP_UP, {"budget": BudgetAccount("tag", tag_account(TENANT, "team", "looking-glass"), Budget(5))}),
        (Kind.TOP_UP, {"budget": BudgetAccount("project", json.dumps([TENANT, "looking-glass0"], separators=(",", ":")), Budget(5))}),
    ):  # fmt: skip
        given: dict[str, Any] = {"actor": "idp:cheshire", "reason": "for wonderland", **more}
        clock.ms += 1
        await book.adjust(
            AdjustAsk(id=f"a{clock.ms}", kind=kind, tenant=TENANT, nano_usd=5, **given)
        )
    await finance._store.write(_furnish)


def _furnish(conn: Connection) -> None:
    """A row in every other table that can name it."""
    by = {"actor": "idp:cheshire", "reason": "said wonderland-inc"}
    regs = {"kind": "document", "tenant": TENANT, "issuer": "idp", "owner": "cheshire",
            "content_version": 1, "acl_version": 1, "created_at_s": 1, "changed_at_s": 1}  # fmt: skip
    for table, row in (
        (schema.api_key, {"id": "k1", "digest": b"d", "tenant": TENANT, "user": "cheshire", "name": "cheshire",
                          "roles": "[]", "groups": '["cheshire"]', "limits": "null", "created_at_s": 1,
                          "tags": '[["team","cheshire"]]'}),
        (schema.revocation, {"kind": "subject", "tenant": TENANT, "issuer": "i", "value": "cheshire",
                             "at_s": 1, "until_s": 2**40, **by}),
        (schema.suspension, {"tenant": TENANT, "at_s": 1, **by}),
        (schema.budget_override, {"tenant": TENANT, "scope": "user", "issuer": "", "name": "cheshire", "budget": "{}"}),
        (schema.tenant_secret, {"tenant": TENANT, "version": 1, "root": "", "wrapped": b""}),
        (schema.idempotency, {"digest": "x", "tenant": TENANT, "body": b"", "request_id": "r", "metered": False,
                              "state": "DONE", "owner": "o", "lease_until_ms": 0, "expires_at_ms": 2**60,
                              "sealed_bytes": 0, "secret_version": 1}),
        (schema.response, {"id": "resp_1", "tenant": TENANT, "project": "p", "issuer": "i", "user": "cheshire",
                           "model": "m", "status": "completed", "background": False, "created_at_ms": 0,
                           "expires_at_ms": 2**60, "owner": "o", "lease_until_ms": 0, "cancelling": False,
                           "sealed": b"s", "sealed_bytes": 1, "secret_version": 1}),
        (schema.registration, {"id": "doc_1", **regs}),
        (schema.registration_text, {"id": "doc_1", "version": 1, "sealed_text": b"s", "sealed_about": b"s", "tokens": "{}"}),
        (schema.registration_reader, {"id": "doc_1", "kind": "user", "issuer": "i", "name": "cheshire"}),
        (schema.erasure, {"tenant": TENANT, "issuer": "i", "user": "cheshire", "at_ms": 1, "actor": "cheshire"}),
        (schema.outbox, {"id": "evt", "kind": "k", "scope": "tenant", "account": TENANT, "window_id": "w", "threshold": 1,
                         "payload": TENANT, "at_ms": 1, "attempts": 0, "next_at_ms": 1}),
        (schema.change, {"at_s": 1, "tenant": TENANT, "kind": "subject_revoked", "subject": "cheshire", "detail": "", **by}),
    ):  # fmt: skip
        conn.execute(insert(table).values(row))


def _many_keys(conn: Connection) -> None:
    """So many that whole pages become free."""
    rest = {"tenant": TENANT, "roles": "[]", "groups": "[]", "limits": "null", "created_at_s": 1}
    rest["tags"] = "[]"
    keys = [
        {
            "id": f"many{at}",
            "digest": f"{at}".encode(),
            "user": f"cheshire{at}",
            "name": "x" * 300,
            **rest,
        }
        for at in range(1500)
    ]
    conn.execute(insert(schema.api_key), keys)


async def cuts(finance: Finance) -> dict[str, list[Any]]:
    """Every report, by what its rows come to; by what names nobody, with their groups."""
    named, found = {"tenant", "project", "user"}, {}
    for by in COLUMNS:
        asked = Asked(by=(by,), of=Slice(from_ms=0, to_ms=2**60))
        every = [row async for row in finance.every(asked)]
        keys = [() if by in named else tuple(row.group.values()) for row in every]
        sums = [tuple(getattr(row, name) for name in row.__dataclass_fields__)[1:] for row in every]
        found[by] = sorted(zip(keys, sums, strict=True), key=repr)
    return found


async def deleted(
    deleting: Deleting, meanwhile: Callable[[], Awaitable[None]] | None = None
) -> str:
    """`meanwhile`: between the last look and the first step."""
    of = await deleting.begin(TENANT, actor="idp:operator", reason="Wonderland-Inc left")
    of = replace(of, at_ms=0)  # long ago, so that everybody has heard
    hashed = __import__("hashlib").sha256()
    async for part in deleting.export(TENANT):
        hashed.update(part)
    await deleting.accept(of, hashed.hexdigest())
    if meanwhile is not None:
        await meanwhile()
    await deleting.finish(of)
    return of.pseudonym


def test_only_the_names_go() -> None:
    async def test() -> None:
        clock = Clock()
        with folder() as where, house(clock, where / "x.db") as (book, finance):
            await lives(book, finance, clock)
            before, spend = await cuts(finance), await book.spend(from_ms=0, to_ms=2**60)
            mine = await book.spend(from_ms=0, to_ms=2**60, tenant=TENANT)
            sealed, _ = await finance.verify(OCTOBER) or pytest.fail("it is closed")
            exported = b"".join(
                [part async for part in Deleting(keeper(finance, clock)).export(TENANT)]
            )
            lines = [json.loads(line) for line in exported.splitlines()]
            kept = [name for name in ("reservation", "ledger_entry", "adjustment", "usage_event")
                    if lines[-1]["rows"][name] > 1]  # fmt: skip
            assert len(kept) == 4
            assert {line["row"]["tenant"] for line in lines[1:-1] if "tenant" in line["row"]} == {
                TENANT
            }
            assert not [
                line
                for line in lines[1:-1]
                if {"digest", "sealed_text", "wrapped"} & set(line["row"])
            ]
            pseudonym = await deleted(Deleting(keeper(finance, clock)))
            assert await cuts(finance) == before
            assert await book.spend(from_ms=0, to_ms=2**60) == spend
            assert await book.spend(from_ms=0, to_ms=2**60, tenant=pseudonym) == mine
            assert await finance.knows(TENANT) is False
            text = (await text_of_all(finance)).lower()
            assert [name for name in NAMES if name in text] == []
            now, seal = await finance.verify(OCTOBER) or pytest.fail("it is closed")
            (link,) = await finance.seals(OCTOBER)
            assert (
                (link.old_sha256, link.new_sha256)
                == (sealed.sha256, now.sha256)
                == (sealed.sha256, seal.sha256)
            )
            assert (link.changed, link.spend_nano_usd) == (len(OURS), sealed.spend_nano_usd)
            assert chained([link], now.sha256)
            assert chained([], now.sha256)
            assert not chained([link], sealed.sha256)
            assert not chained([link, link], now.sha256)
            assert (await finance.reconcile(Slice(from_ms=0, to_ms=2**60))).ledger_agrees
            await book.settle(
                "late", Meters(input=5), record("late", OURS[0])
            )  # brings no name back
            assert [name for name in NAMES if name in (await text_of_all(finance)).lower()] == []
            clock.ms = NOVEMBER.end_ms + CLOSING_MS
            await finance.close(NOVEMBER, actor="op", reason="month")

    run(test)


def test_no_byte_of_a_name_is_left_in_the_files(request: pytest.FixtureRequest) -> None:
    """In the database, its log, or a backup of it, free pages included."""
    if "postgresql" in request.node.name:
        pytest.skip("a server's files are its own: rows are versions until it vacuums")

    async def test() -> None:
        clock = Clock()
        with folder() as where:
            path = where / "x.db"
            with house(clock, path) as (book, finance):
                await lives(book, finance, clock)
                for number in range(300):  # so that pages split, merge and become free
                    dims = replace(OURS[number % 3], user=f"rabbit-hole{number * 7919 % 1000}")
                    await book.hold(ask(f"n{number * 7919 % 1000:04}", dims=dims))
                    await book.settle(
                        f"n{number * 7919 % 1000:04}",
                        Meters(input=1),
                        record(f"n{number * 7919 % 1000:04}", dims),
                    )
                await finance._store.write(_many_keys)
                assert b"rabbit-hole" in path.read_bytes() + Path(f"{path}-wal").read_bytes()
                await deleted(Deleting(keeper(finance, clock)))
                copy = back_up(path, where / "copy.db").path
                data = b"".join(each.read_bytes() for each in (path, Path(f"{path}-wal"), copy))
                assert [name for name in NAMES if name.encode() in data.lower()] == []

    run(test)


@pytest.mark.parametrize("late", (False, True))
def test_a_month_that_was_edited_is_not_sealed_anew(late: bool) -> None:
    """Seen before anything is destroyed; or, where it is edited then, before anything of it is renamed."""

    async def test() -> None:
        clock = Clock()
        with folder() as where, house(clock, where / "x.db") as (book, finance):
            await lives(book, finance, clock)
            statement = "UPDATE ledger_entry SET amount = amount + 1 WHERE kind = 'settle' AND tenant = 'globex'"
            kept = await rows(finance, "SELECT * FROM period")
            deleting = Deleting(keeper(finance, clock))
            if not late:
                await edit(finance, statement)
            with pytest.raises(MonthDiffers, match="2026-10"):
                await deleted(deleting, lambda: edit(finance, statement) if late else _nothing())
            (of,) = await rows(finance, "SELECT * FROM tenant_deletion")
            assert (of["export_sha256"] is not None) is late
            assert await rows(finance, "SELECT * FROM period") == kept
            assert await rows(finance, "SELECT * FROM period_seal") == []

    run(test)


async def _nothing() -> None:
    return None


def test_each_table_has_the_fate_that_is_written() -> None:
    """Dropped and renamed tables hold its rows before, and none afterwards."""

    async def test() -> None:
        clock = Clock()
        with folder() as where, house(clock, where / "x.db") as (book, finance):
            await lives(book, finance, clock)
            counts = {name: len(await rows(finance, f'SELECT * FROM "{name}"')) for name in FATES}
            await deleted(Deleting(keeper(finance, clock)))
            for name, fate in FATES.items():
                now = len(await rows(finance, f'SELECT * FROM "{name}"'))
                if fate is Fate.DROPPED and name not in {"pseudonym_salt", "budget_window"}:
                    assert now < counts[name], name
                elif fate is Fate.RENAMED and name not in {"change", "tenant_deletion"}:
                    assert now == counts[name] > 0, name

    run(test)


def test_files_that_could_not_be_written_anew_are_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is over all the same; the next process tries again, and then no more."""
    tried: list[bool] = []

    async def busy(self: Store, *, rewrite: bool = False) -> None:
        if rewrite:
            tried.append(rewrite)
        if len(tried) < 3:
            raise StoreUnavailable("busy")

    async def test() -> None:
        clock = Clock()
        with folder() as where, house(clock, where / "x.db") as (book, finance):
            await lives(book, finance, clock)
            monkeypatch.setattr(Store, "forget_overwritten", busy)
            await deleted(Deleting(keeper(finance, clock)))
            for _ in range(3):
                await keeper(finance, clock).sweep()
            assert tried == [True, True, True]

    run(test)


# Wherever it dies.


def _step(conn: Connection, failing: Callable[[], int]) -> Month | bool:
    of = deletion.find(conn, digest, TENANT)
    assert of is not None
    if of.tenant is None:
        return False
    names = names_of(conn, TENANT, digest, b"s" * 32)
    return deletion.step(conn, of, names, now_ms=failing())


def _reseal(conn: Connection, period: Month, now_ms: int) -> None:
    of = deletion.find(conn, digest, TENANT)
    assert of is not None
    both, place = Both(period, TENANT, of.pseudonym), closing.Place()
    while True:
        part, found, onwards = closing.read_page(conn, period, place)
        both.take(part, found)
        if onwards is None:
            break
        place = onwards
    deletion.reseal(conn, of, both, now_ms=now_ms)


def _lived_on(backend: Backend, failpoints: Failpoints) -> bool:
    try:
        with failpoints.in_(backend):
            while (left := backend.commit(lambda conn: _step(conn, lambda: 1))) is not False:
                if isinstance(left, Month):
                    backend.commit(lambda conn, of=left: _reseal(conn, of, 1))  # type: ignore[misc]
        return True
    except Died:
        return False
    finally:
        backend.close()


def _all(path: Path) -> list[str]:
    with closed_after(sqlite3.connect(path)) as raw:
        return [
            repr(sorted(raw.execute(f'SELECT * FROM "{name}"').fetchall(), key=repr))
            for name in sorted(schema.metadata.tables)
            if name != "registration_state"  # counts how often it was looked at
        ]


@pytest.mark.slow
def test_wherever_it_dies_it_goes_on_to_the_same_end(request: pytest.FixtureRequest) -> None:
    if "postgresql" in request.node.name:
        pytest.skip("the story is copied as a file")

    async def prepared(path: Path) -> None:
        clock = Clock()
        with house(clock, path) as (book, finance):
            await lives(book, finance, clock)

            def begun(conn: Connection) -> None:
                at = {"drawn": "deleted:1", "now_ms": 1, "actor": "op", "reason": "r"}
                of = deletion.begin(conn, digest, TENANT, **at)  # type: ignore[arg-type]
                deletion.exported(conn, of, "0" * 64)

            await finance._store.write(begun)
        assert empty_wal(path)

    with folder() as where:
        run(lambda: prepared(where / "first.db"))

        def fresh(name: str) -> Path:
            shutil.copyfile(where / "first.db", where / name)
            return where / name

        counting, whole = Failpoints(), fresh("whole.db")
        assert _lived_on(SqliteBackend(whole, write=True), counting)
        wanted = _all(whole)
        assert counting.passed > 60
        for dies_at in range(1, counting.passed + 1):
            path = fresh("dies.db")
            assert not _lived_on(SqliteBackend(path, write=True), Failpoints(dies_at))
            assert _lived_on(SqliteBackend(path, write=True), Failpoints())
            assert _all(path) == wanted, f"dead at step {dies_at}"
            for log in ("-wal", "-shm"):
                Path(f"{path}{log}").unlink(missing_ok=True)


# Broken on purpose.


def _seals_without_looking(patch: pytest.MonkeyPatch) -> None:
    find = closing.find

    def trusting(conn: Connection, name: str) -> Any:
        kept = find(conn, name)
        return kept and replace(kept, sha256=Trusting(kept.sha256 or ""))

    class Trusting(str):
        __slots__ = ()

        def __ne__(self, _: object) -> bool:
            return False

        __hash__ = str.__hash__

    patch.setattr(closing, "find", trusting)


def _keeps_the_salt(patch: pytest.MonkeyPatch) -> None:
    end = deletion._end

    def salted(conn: Connection, of: Any, now_ms: int) -> None:
        end(conn, of, now_ms)
        conn.execute(insert(schema.pseudonym_salt).values(tenant=of.tenant, salt=b"s"))

    patch.setattr(deletion, "_end", salted)


def _renames_no_projects(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("tenants.pseudonyms.Names.other", lambda self, kind, what: what)


def _renames_behind_the_gate(patch: pytest.MonkeyPatch) -> None:
    """As if a month that is closed were open."""
    patch.setattr("tenants.deletion.closed_until", lambda *_, **__: 0)


@pytest.mark.parametrize(
    ("broken", "test"),
    (
        (_seals_without_looking, lambda: test_a_month_that_was_edited_is_not_sealed_anew(True)),
        (_keeps_the_salt, test_only_the_names_go),
        (_renames_no_projects, test_only_the_names_go),
        (_renames_behind_the_gate, test_only_the_names_go),
    ),
    ids=lambda each: each.__name__.strip("_"),
)
def test_one_that_is_broken_is_caught(
    broken: Callable[[pytest.MonkeyPatch], None],
    test: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken(monkeypatch)
    with pytest.raises((AssertionError, ValueError, pytest.fail.Exception)):
        test()


def test_a_tombstone_is_of_one_name_and_reads_as_none() -> None:
    assert len({tombstone(digest, name) for name in ("acme", "Acme", "acme ")}) == 3
    assert "acme" not in tombstone(digest, "acme")
