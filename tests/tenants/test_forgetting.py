"""People are called by pseudonyms: sums stay, budgets hold, and the names are nowhere any more."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from sqlalchemy import LargeBinary, Text, insert

from policies.facts import Budget, Meters
from policies.periods import DAY_MS
from policies.verdict import Allow, Deny
from tenants import schema
from tenants.adjustments import AdjustAsk, Kind
from tenants.book import Book
from tenants.finance import Finance
from tenants.pseudonyms import PSEUDONYM, Names, Person
from tenants.reports import COLUMNS, Asked
from tenants.reports.facts import Slice
from tenants.retention import Periods, Retention
from tenants.schema.classified import COLUMNS as CLASSIFIED
from tenants.schema.classified import FATES, Says
from tests.tenants.finance_kit import PEOPLE, house, rows
from tests.tenants.house import DIMS, NOON_MS, Clock, ask, folder, on_both, record, run, user_budget

pytestmark = pytest.mark.usefixtures("on_both")
__all__ = ["on_both"]

ALICE = Person("acme", "idp", "alice")
HOUR_MS = 3_600_000


def digest(parts: Sequence[bytes]) -> bytes:
    return hmac.new(b"k" * 32, b"\0".join(parts), hashlib.sha256).digest()


def keeper(finance: Finance, clock: Clock, **periods: int | None) -> Retention:
    days: dict[str, Any] = {"request_days": None, "notices_days": None} | periods
    return Retention(finance._store, digest, clock, os.urandom, "lockgate:keys", Periods(**days))


async def lives(book: Book, clock: Clock, days: Sequence[int]) -> None:
    """Everybody asks once on each of these days, and once is refused."""
    for day in days:
        for number, dims in enumerate(PEOPLE):
            clock.ms = NOON_MS + day * DAY_MS + number * HOUR_MS
            of, price = (
                f"d{day}-{number}",
                replace(ask().price, id=f"{dims.model}@0", model=dims.model),
            )
            await book.hold(ask(of, dims=dims, price=price))
            told = replace(record(of, dims, device_ns=3), received_at_ms=clock.ms)
            await book.settle(of, Meters(input=7 + day), told)
            refused = replace(record(f"x{of}", dims), received_at_ms=clock.ms, outcome="denied")
            await book.record(refused)


async def people(finance: Finance) -> dict[tuple[str, str, str], int]:
    """What each comes to, by the one pseudonym that they have."""
    salts = {
        row["tenant"]: row["salt"] for row in await rows(finance, "SELECT * FROM pseudonym_salt")
    }
    sums: dict[tuple[str, str, str], int] = {}
    asked = Asked(by=("tenant", "user"), of=Slice(from_ms=0, to_ms=2**60))
    async for row in finance.every(asked):
        tenant, issuer, user = (str(each) for each in row.group.values())
        names = Names(tenant, digest, bytes(salts[tenant]))
        who = (tenant, PSEUDONYM, names.person(issuer, user))
        sums[who] = sums.get(who, 0) + row.nano_usd
    return sums


async def cuts(finance: Finance) -> dict[str, list[tuple[Any, ...]]]:
    """Every report; by people, what their rows come to."""
    found = {}
    for by in COLUMNS:
        named = ("tenant", by) if by == "user" else (by,)
        asked = Asked(by=named, of=Slice(from_ms=0, to_ms=2**60))
        every = [row async for row in finance.every(asked)]
        keys = [tuple(row.group.values())[: 1 if by == "user" else None] for row in every]
        sums = [tuple(getattr(row, name) for name in row.__dataclass_fields__)[1:] for row in every]
        found[by] = sorted(zip(keys, sums, strict=True), key=repr)
    return found


async def text_of_all(finance: Finance) -> str:
    """All that is kept, as text."""
    names = [table.name for table in schema.metadata.tables.values()]
    return "\n".join([repr(await rows(finance, f'SELECT * FROM "{name}"')) for name in names])


def test_every_column_is_classified() -> None:
    """Who adds a column of text or bytes says whether it names somebody, and what becomes of it."""
    there = {
        table.name: {
            column.name for column in table.columns if isinstance(column.type, Text | LargeBinary)
        }
        for table in schema.metadata.tables.values()
    }
    assert {name: set(columns) for name, columns in CLASSIFIED.items()} == there
    assert FATES.keys() == there.keys()
    for name, columns in CLASSIFIED.items():
        assert Says.TENANT in columns.values() or FATES[name].name != "RENAMED", name


def test_one_person_is_forgotten_and_sums_stay() -> None:
    async def test() -> None:
        clock = Clock()
        with folder() as where, house(clock, where / "x.db") as (book, finance):
            await lives(book, clock, (0, 3))
            before, spend = await cuts(finance), await book.spend(from_ms=0, to_ms=2**60)
            kept = keeper(finance, clock)
            done = await kept.forget(ALICE, actor="op")
            mine = [
                dims
                for dims in PEOPLE
                if (dims.tenant, dims.issuer, dims.user) == ("acme", "idp", "alice")
            ]
            assert (done.renamed, done.waiting) == (4 * len(mine), 0)
            assert await cuts(finance) == before
            assert await book.spend(from_ms=0, to_ms=2**60) == spend
            for table in ("reservation", "request"):
                who = {
                    (r["tenant"], r["issuer"], r["user"])
                    for r in await rows(finance, f"SELECT * FROM {table}")
                }
                assert ("acme", PSEUDONYM, done.pseudonym) in who
                assert ("acme", "idp", "alice") not in who
                assert {("acme", "other-idp", "alice"), ("globex", "idp", "alice")} <= who
            assert '["acme","idp","alice"]' not in await text_of_all(finance)
            assert await rows(finance, "SELECT * FROM erasure") == []
            again = await kept.forget(ALICE, actor="op")
            assert (again.renamed, again.pseudonym) == (0, done.pseudonym)
            await lives(
                book, clock, (5,)
            )  # comes back, and is the same person when forgotten again
            assert (await kept.forget(ALICE, actor="op")).pseudonym == done.pseudonym
            found = await book.explain("d5-0")
            assert found is not None
            assert (found.dims.issuer, found.dims.user) == (PSEUDONYM, done.pseudonym)

    run(test)


@pytest.mark.parametrize("window", ("calendar_month", "calendar_day", "rolling_24h", "total"))
def test_a_budget_that_stands_is_neither_reset_nor_doubled(window: str) -> None:
    """Half of it is spent; whatever is renamed, the other half fits and no more."""

    async def test() -> None:
        clock = Clock()
        budget = replace(user_budget(100_000), budget=Budget(100_000, window))
        with folder() as where, house(clock, where / "x.db") as (book, finance):
            clock.ms = NOON_MS - 70 * DAY_MS
            assert isinstance(await book.hold(ask("old", budget)), Allow)
            await book.settle("old", Meters(output=20), record("old"))  # 12,000
            clock.ms = NOON_MS
            assert isinstance(await book.hold(ask("r1", budget)), Allow)  # 50,000
            await book.settle("r1", Meters(input=100, output=50), record("r1"))
            assert isinstance(await book.hold(ask("held", budget, prompt=1, out=1)), Allow)  # 800
            await stands(finance, budget.budget)
            (before,) = await book.balances([budget])
            done = await keeper(finance, clock).forget(ALICE, actor="op")
            total = window == "total"
            assert (done.renamed, done.waiting) == ((0, 3) if total else (1, 2))
            assert (done.counted, done.standing.budgets) == (3 if total else 2, 1)
            assert await book.balances([budget]) == (before,)
            await finance._store.write(
                lambda conn: conn.execute(schema.budget_window.delete()) and None
            )
            assert await book.balances([budget]) == (before,)  # counted anew
            left = before.remaining_nano_usd
            assert isinstance(
                await book.hold(ask("no", budget, prompt=0, out=left // 600 + 1)), Deny
            )
            assert isinstance(await book.hold(ask("yes", budget, prompt=0, out=left // 600)), Allow)

    run(test)


def test_a_window_that_another_budget_had_is_counted_anew() -> None:
    """A budget was weekly and is daily: what is renamed is not counted by the week's row any more, which is no more."""

    async def test() -> None:
        clock = Clock(NOON_MS - 2 * DAY_MS)  # a Friday
        week, day = (
            replace(user_budget(10**6), budget=Budget(10**6, window))
            for window in ("calendar_week", "calendar_day")
        )
        with folder() as where, house(clock, where / "x.db") as (book, finance):
            for number in range(2):
                await book.hold(ask(f"r{number}", week))
                await book.settle(f"r{number}", Meters(output=10), record(f"r{number}"))
                clock.ms += DAY_MS
            await book.hold(ask("r2", day))
            await book.settle("r2", Meters(output=10), record("r2"))
            await stands(finance, day.budget)
            assert (await keeper(finance, clock).forget(ALICE, actor="op")).renamed == 2
            spent = {each.window: each.spent_nano_usd for each in await book.balances([week, day])}
            assert spent == {"calendar_week": 6000, "calendar_day": 6000}

    run(test)


def test_without_a_budget_only_what_is_held_waits() -> None:
    async def test() -> None:
        clock = Clock()
        with folder() as where, house(clock, where / "x.db") as (book, finance):
            await book.hold(ask("lost"))
            clock.ms += 61_000
            assert (await book.sweep()).expired == ("lost",)
            await book.hold(ask("held", user_budget(10**9)))
            top_up = AdjustAsk(id="a1", kind=Kind.TOP_UP, tenant="acme", nano_usd=5, actor="idp:alice",
                               reason="r", budget=user_budget(10**9))  # fmt: skip
            await book.adjust(top_up)
            clock.ms += 1
            kept = keeper(finance, clock)
            done = await kept.forget(ALICE, actor="op")
            assert (done.renamed, done.waiting, done.counted) == (1, 1, 0)
            await book.settle("lost", Meters(input=5), record("lost"))  # late, under its new name
            found = await book.explain("lost")
            assert found is not None
            assert found.record is not None
            assert found.record.dims.user == found.dims.user == done.pseudonym
            await book.settle("held", Meters(input=5), record("held"))
            assert len(await rows(finance, "SELECT * FROM erasure")) == 1
            await kept.sweep()
            assert await rows(finance, "SELECT * FROM erasure") == []
            assert "alice" not in await text_of_all(finance)

    run(test)


def test_taking_the_budgets_away_leaves_nothing_to_wait_for() -> None:
    async def test() -> None:
        clock = Clock()
        budget = replace(user_budget(100_000), budget=Budget(100_000, "total"))
        with folder() as where, house(clock, where / "x.db") as (book, finance):
            await book.hold(ask("r1", budget))
            await book.settle("r1", Meters(input=1), record("r1"))
            await stands(finance, budget.budget, issuer="idp")
            clock.ms += 1
            done = await keeper(finance, clock).forget(ALICE, actor="op", budgets=True)
            assert (done.renamed, done.waiting, done.standing.budgets) == (1, 0, 0)
            assert "alice" not in await text_of_all(finance)

    run(test)


def test_after_the_time_that_is_set_nobody_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """In batches of two, over several calls; who asked before and after has one name; a budget that never ends keeps
    the name it counts by."""
    monkeypatch.setattr("tenants.retention.BATCH", 2)
    monkeypatch.setattr("tenants.forgetting.BATCH", 2)
    monkeypatch.setattr("tenants.retention.SPANS_A_CALL", 9)
    for name in ("forget_all", "forget_person", "forget_recorded"):
        function = getattr(__import__("tenants.forgetting", fromlist=[name]), name)
        monkeypatch.setitem(function.__kwdefaults__, "most", 2)

    async def test() -> None:
        clock = Clock()
        with folder() as where, house(clock, where / "x.db") as (book, finance):
            await lives(book, clock, (0, 2, 50))
            await stands(finance, Budget(10**9, "total"), name="bob")
            kept = keeper(finance, clock, user_ids_days=45)
            first = await kept.forget(replace(ALICE, tenant="globex"), actor="op")
            await kept.forget(Person("acme", "idp", "nobody"), actor="op")
            before, sums = await cuts(finance), await people(finance)
            clock.ms = NOON_MS + 51 * DAY_MS
            for _ in range(60):
                await kept.sweep()
            assert await people(finance) == sums
            assert {**await cuts(finance), "user": before["user"]} == before
            found = await rows(finance, "SELECT * FROM reservation")
            old = [row for row in found if row["at_ms"] < clock.ms - 45 * DAY_MS]
            assert len(old) == 2 * len(PEOPLE)
            assert {row["user"] for row in old if row["issuer"] != PSEUDONYM} == {"bob"}
            recorded = {r["request_id"]: r for r in await rows(finance, "SELECT * FROM request")}
            for row in old:
                assert recorded[row["request_id"]]["user"] == row["user"]
                assert recorded["x" + row["request_id"]]["issuer"] == PSEUDONYM
            named = [row for row in found if row["issuer"] != PSEUDONYM and row["user"] != "bob"]
            assert {row["at_ms"] >= clock.ms - 45 * DAY_MS for row in named} == {True}
            assert {row["user"] for row in found if row["tenant"] == "globex"} == {first.pseudonym}
            who = {(row["tenant"], row["user"]) for row in old} - {("acme", "bob")}
            assert len(who) == len({(d.tenant, d.issuer, d.user) for d in PEOPLE}) - 1

    run(test)


def test_what_a_request_went_through_is_forgotten_and_what_it_cost_is_not() -> None:
    async def test() -> None:
        clock = Clock()
        with folder() as where, house(clock, where / "x.db") as (book, finance):
            await lives(book, clock, (0, 50))
            before = await cuts(finance)
            clock.ms = NOON_MS + 51 * DAY_MS
            kept = keeper(finance, clock, request_days=45)
            assert (await kept.sweep()).purged == 2 * len(PEOPLE)
            assert await cuts(finance) == before
            assert await book.explain("xd0-0") is None
            found = await book.explain("d0-0")
            assert found is not None
            assert found.purged
            assert found.charge is not None
            later = await book.explain("d50-0")
            assert later is not None
            assert not later.purged
            assert (await kept.sweep()).purged == 0

    run(test)


async def stands(finance: Finance, budget: Budget, name: str = "alice", issuer: str = "") -> None:
    row = {"tenant": "acme", "scope": "user", "issuer": issuer, "name": name,
           "budget": msgspec.json.encode(budget).decode()}  # fmt: skip
    await finance._store.write(
        lambda conn: conn.execute(insert(schema.budget_override).values(row)) and None
    )


def test_one_person_has_one_name_whatever_else_is_like_it() -> None:
    one = Names("acme", digest, b"s" * 32)
    people = {one.person(*each) for each in (("idp", "alice"), ("idp2", "alice"), ("idp", "bob"))}
    others = {Names("acme", digest, b"t" * 32).person("idp", "alice"), one.other("project", "alice"),
              Names("globex", digest, b"s" * 32).person("idp", "alice")}  # fmt: skip
    assert len(people | others) == 6
    assert one.person(PSEUDONYM, "p_1") == "p_1"
    assert DIMS.user not in one.person("idp", DIMS.user)
