"""Budgets by tag: what a key or a token says binds, what a client says is filed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, delete, event, func, select

from policies.facts import Meters
from policies.tags import Origin, Tag, merged
from policies.verdict import Allow, Deny
from tenants import forgetting, schema, tags
from tenants.adjustments import AdjustAsk, Kind
from tenants.book import Book, BudgetAccount
from tenants.pseudonyms import Names, Person, rename_reserved
from tenants.scopes import tag_account, tag_of
from tenants.sql import drive
from tests.tenants.house import (
    DIMS,
    NOON_MS,
    Clock,
    ask,
    folder,
    on_both,
    opened,
    record,
    run,
    tag,
    tag_budget,
    tenant_budget,
)
from tests.tenants.test_forgetting import digest

pytestmark = pytest.mark.usefixtures("on_both")
__all__ = ["on_both"]

WHOLE = 50_000
"""What one hold of `ask` takes."""
ENV, ADS, SAID = tag("env", "prod"), tag(value="ads"), tag("trace", "t1", Origin.CLIENT)


async def numbers(book: Book, budget: BudgetAccount) -> tuple[int, int]:
    """Spent and held; the same when counted anew."""
    (kept,) = await book.balances([budget])
    await book._store.write(lambda conn: conn.execute(delete(schema.budget_window)) and None)
    (anew,) = await book.balances([budget])
    assert kept == anew
    return kept.spent_nano_usd, kept.held_nano_usd


async def rows(book: Book) -> list[tuple[str, str, str, str]]:
    table = schema.reservation_tag
    columns = (table.c.request_id, table.c.name, table.c.value, table.c.origin)
    query = select(*columns).order_by(table.c.request_id, table.c.name)
    return [tuple(row) for row in await book._store.read(lambda conn: conn.execute(query).all())]


def test_what_a_key_or_a_token_says_binds_and_what_a_client_says_does_not() -> None:
    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            budget = tag_budget(WHOLE)
            assert isinstance(await book.hold(ask("r1", budget, tags=(tag(),))), Allow)
            claim = tag(origin=Origin.CLAIM)
            refused = await book.hold(ask("r2", budget, tags=(claim,)))
            assert isinstance(refused, Deny)
            assert (refused.scope, refused.account) == ("tag", budget.id)
            said = tag(origin=Origin.CLIENT)
            assert isinstance(await book.hold(ask("r3", tags=(said,))), Allow)
            assert await numbers(book, budget) == (0, WHOLE)
            await book.settle("r3", Meters(input=100, output=50), record("r3"))
            await book.settle("r1", Meters(input=100, output=20), record("r1"))
            assert await numbers(book, budget) == (32_000, 0)
            other = tag_budget(WHOLE, ADS)
            assert isinstance(await book.hold(ask("r4", other, tags=(ADS,))), Allow)

    run(test)


def test_a_budget_that_nobody_may_exceed_is_asked_for_who_is_under_it() -> None:
    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            with pytest.raises(AssertionError):
                await book.hold(ask("r1", tag_budget(WHOLE), tags=(tag(origin=Origin.CLIENT),)))
            with pytest.raises(AssertionError):
                await book.hold(ask("r1", tag_budget(WHOLE), tags=(ADS,)))

    run(test)


def test_under_several_tags_it_lands_on_all_or_on_none_and_says_on_which_it_did_not() -> None:
    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            wide, narrow, above = (
                tag_budget(10 * WHOLE, ENV),
                tag_budget(WHOLE),
                tenant_budget(10 * WHOLE),
            )
            both = merged((tag(), ENV))
            assert isinstance(await book.hold(ask("r1", wide, above, narrow, tags=both)), Allow)
            refused = await book.hold(ask("r2", above, wide, narrow, tags=both))
            assert isinstance(refused, Deny)
            assert refused.account is not None
            assert tag_of(refused.account) == ("acme", "team", "search")
            for each in (wide, narrow, above):
                assert await numbers(book, each) == (0, WHOLE)
            limited = await book.hold(
                ask(
                    "r3",
                    wide,
                    replace(narrow, budget=replace(narrow.budget, hard=False)),
                    tags=both,
                )
            )
            assert isinstance(limited, Allow)
            assert limited.value.over == ("tag",)

    run(test)


def test_who_did_not_fit_under_one_tag_is_told_of_that_tag_alone() -> None:
    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            wide = tag_budget(10 * WHOLE, ENV, notify_at=(1.0,))
            narrow = tag_budget(WHOLE - 1, notify_at=(1.0,))
            both = merged((tag(), ENV))
            assert isinstance(await book.hold(ask("r1", wide, narrow, tags=both)), Deny)
            told = [each.what for each in await book.claim_told()]
            assert [(each.scope, each.account, each.refused) for each in told] == [
                ("tag", narrow.id, True)
            ]

    run(test)


def test_a_budget_that_is_set_later_counts_what_was_filed_before() -> None:
    async def test() -> None:
        clock = Clock()
        with folder() as where, opened(clock, where / "x.db") as book:
            for number, said in enumerate((tag(), tag(origin=Origin.CLIENT), ADS, tag())):
                await book.hold(ask(f"r{number}", tags=(said,)))
                await book.settle(f"r{number}", Meters(input=100), record(f"r{number}"))
                clock.ms += 1
            globex = replace(DIMS, tenant="globex")
            await book.hold(ask("g1", tags=(tag(),), dims=globex))
            budget = tag_budget(10**9)
            assert await numbers(book, budget) == (40_000, 0)
            rolling, total = (
                tag_budget(10**9, window="rolling_24h"),
                tag_budget(10**9, window="total"),
            )
            clock.ms += 30 * 3_600_000
            assert await numbers(book, rolling) == (0, 0)
            assert await numbers(book, total) == (40_000, 0)
            theirs = replace(budget, id=tag_account("globex", "team", "search"))
            assert await numbers(book, theirs) == (0, WHOLE)

    run(test)


def test_a_tag_is_topped_up_and_what_was_filed_under_it_is_refunded() -> None:
    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            budget = tag_budget(WHOLE)
            given = AdjustAsk(
                id="a1",
                kind=Kind.TOP_UP,
                tenant="acme",
                nano_usd=WHOLE,
                actor="op",
                reason="r",
                budget=budget,
            )
            await book.adjust(given)
            for request_id in ("r1", "r2"):
                assert isinstance(await book.hold(ask(request_id, budget, tags=(tag(),))), Allow)
            assert isinstance(await book.hold(ask("r3", budget, tags=(tag(),))), Deny)
            await book.settle("r1", Meters(input=100, output=50), record("r1"))
            refund = replace(given, id="a2", kind=Kind.REFUND, request_id="r1", budget=None)
            await book.adjust(replace(refund, nano_usd=20_000))
            assert await numbers(book, budget) == (30_000, WHOLE)

    run(test)


def test_a_late_settle_and_a_lapsed_hold_count_under_the_tag_too() -> None:
    async def test() -> None:
        clock = Clock()
        with folder() as where, opened(clock, where / "x.db") as book:
            budget = tag_budget(WHOLE)
            await book.hold(ask("r1", budget, tags=(tag(),)))
            clock.ms += 61_000
            await book.sweep()
            assert await numbers(book, budget) == (WHOLE, 0)
            await book.settle("r1", Meters(input=100), record("r1"))
            assert await numbers(book, budget) == (20_000, 0)
            await book.hold(ask("r2", budget, prompt=1, out=1, tags=(tag(),)))
            await book.void("r2")
            assert await numbers(book, budget) == (20_000, 0)

    run(test)


def test_what_has_no_tags_costs_no_statement_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def driven(conn: Connection, statement: str, *more: Any) -> Any:
        said.append(statement)
        return drive(conn, statement, *more)

    async def test() -> None:
        with folder() as where, opened(Clock(), where / "x.db") as book:
            await book.hold(ask("r0", tenant_budget(10**9)))
            engine = await book._store.write(lambda conn: conn.engine)
            event.listen(engine, "before_cursor_execute", lambda *of: said.append(of[2]))
            monkeypatch.setattr("tenants.sql.drive", driven)
            await book.hold(ask("r1", tenant_budget(10**9)))
            await book.settle("r1", Meters(input=100), record("r1"))
            plain, said[:] = len(said), []
            assert not any("reservation_tag" in each for each in said)
            await book.hold(ask("r2", tenant_budget(10**9), tags=(tag(), SAID)))
            await book.settle("r2", Meters(input=100), record("r2"))
            assert len(said) == plain + 1  # the rows, with the hold; a settlement asks nothing more
            assert await rows(book) == [
                ("r2", "team", "search", "key"),
                ("r2", "trace", "t1", "client"),
            ]

    run(test)


def test_clients_words_are_forgotten_and_nothing_is_counted_otherwise() -> None:
    async def test() -> None:
        clock = Clock()
        with folder() as where, opened(clock, where / "x.db") as book:
            budget = tag_budget(10**9)
            bob = replace(DIMS, user="bob")
            globex = replace(DIMS, tenant="globex")
            for request_id, dims in (("r1", DIMS), ("r2", bob), ("r3", DIMS), ("g1", globex)):
                filed = (tag(), SAID) if request_id != "r3" else (SAID,)
                await book.hold(ask(request_id, tags=filed, dims=dims))
                await book.settle(request_id, Meters(input=100), record(request_id, dims))
                clock.ms += 1000

            async def forget(**of: Any) -> int:
                done: int = await book._store.write(
                    lambda conn: tags.forget_client_tags(conn, tenant="acme", **of)
                )
                return done

            before = await numbers(book, budget)
            assert await forget(before_ms=NOON_MS) == 0
            assert await forget(user_account='["acme","idp","bob"]') == 1
            assert [row[0] for row in await rows(book) if row[3] == "client"] == ["g1", "r1", "r3"]
            assert await forget(before_ms=NOON_MS + 1) == 1
            some = ("r1", "r2", "r3", "none")
            dropped = [
                await book._store.write(lambda conn: tags.drop(conn, some)) for _ in range(2)
            ]
            assert dropped == [1, 0]
            assert await forget() == 0
            assert [row for row in await rows(book) if row[0] != "g1"] == [
                ("r1", "team", "search", "key"),
                ("r2", "team", "search", "key"),
            ]
            found = [await book.explain(each) for each in ("r1", "r3", "g1")]
            assert [each and each.tags for each in found] == [(tag(),), (), (tag(), SAID)]
            kept = select(func.count()).where(schema.reservation.c.tags.like("%t1%"))
            assert await book._store.read(lambda conn: conn.execute(kept).scalar_one()) == 1
            assert await numbers(book, budget) == before == (40_000, 0)

    run(test)


def test_who_is_forgotten_takes_along_what_their_clients_said_and_no_budgets_sum() -> None:
    async def test() -> None:
        clock = Clock()
        with folder() as where, opened(clock, where / "x.db") as book:
            budget = tag_budget(10**9)
            for request_id, dims in (("r1", DIMS), ("r2", replace(DIMS, user="bob"))):
                await book.hold(ask(request_id, tags=merged((tag(), SAID)), dims=dims))
                await book.settle(request_id, Meters(input=100), record(request_id, dims))
            alice, names = Person("acme", "idp", "alice"), Names("acme", digest, b"salt")

            def forget(conn: Connection) -> None:
                forgetting.forget_person(
                    *(conn, names, alice), before_ms=clock.ms + 1, now_ms=clock.ms + 1
                )

            await book._store.write(forget)
            assert await rows(book) == [
                ("r1", "team", "search", "key"),
                ("r2", "team", "search", "key"),
                ("r2", "trace", "t1", "client"),
            ]
            assert await numbers(book, budget) == (40_000, 0)

            def delete_tenant(conn: Connection) -> None:
                table = schema.reservation
                found = conn.execute(select(table)).mappings().all()
                rename_reserved(conn, names, found, tenant="t_1")

            await book._store.write(delete_tenant)
            assert await rows(book) == []
            assert await numbers(book, budget) == (0, 0)
            found = await book.explain("r2")
            assert found is not None
            assert (found.dims.tenant, found.tags) == ("t_1", ())

    run(test)


def test_what_is_filed_is_read_as_it_was_written() -> None:
    filed = (Tag('a"b', "c\\d", Origin.CLIENT), Tag("größe", "", Origin.CLIENT), tag())
    assert tags.read(tags.spelt(filed)) == filed
    assert tags.spelt(()) is None
    assert tags.read(None) == ()
    assert tags.accounts("acme", tags.spelt(filed)) == ['["acme","team","search"]']
