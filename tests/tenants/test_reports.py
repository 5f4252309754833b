"""Every cut of the usage sums to the ledger."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings

from policies.facts import Meters
from policies.periods import month_at
from tenants.finance import Finance
from tenants.reports import COLUMNS, Asked, UsageRow
from tenants.reports.facts import Slice
from tests.tenants.finance_kit import HOUR_MS, STORIES, Story, groups, house, ledger_sum, lived
from tests.tenants.house import DIMS, NOON_MS, Clock, ask, folder, on_both, opened, record, run

both = pytest.mark.usefixtures("on_both")
__all__ = ["on_both"]

ALL: dict[str, Any] = {"from_ms": 0, "to_ms": 2**60}
TAGS = ("tag:team", "tag:=x", 'tag:a"b,c', "tag:none")
PEOPLE = (
    DIMS,
    replace(DIMS, issuer="other-idp"),
    replace(DIMS, user="bob", project=None),
    replace(DIMS, key_id="k1", model="m2"),
    replace(DIMS, tenant="globex"),
)


@both
def test_every_grouping_sums_to_the_ledger() -> None:
    async def test() -> None:
        clock = Clock()
        with folder() as where, opened(clock, where / "x.db") as book:
            for number, dims in enumerate(PEOPLE):
                for each in ("settled", "voided", "open", "lost"):
                    await book.hold(ask(f"{each}{number}", dims=dims))
                    clock.ms += 1
                meters = Meters(90, 5, 5, 10 + number)
                await book.settle(
                    f"settled{number}", meters, record(f"settled{number}", dims, device_ns=7)
                )
                await book.void(f"voided{number}", record(f"voided{number}", dims, device_ns=99))
            clock.ms += 60_000
            await book.renew([f"open{number}" for number in range(5)])
            assert len((await book.sweep()).expired) == 5
            total = await book.spend(**ALL)
            assert total == sum(
                50_000 + 90 * 200 + 5 * 50 + 5 * 200 + (10 + number) * 600 for number in range(5)
            )
            names = ("tenant", "project", "user", "key", "model")
            for size in range(len(names) + 1):
                for by in list(combinations(names, size))[:4]:
                    rows = await book.usage(by, **ALL)
                    assert sum(row.nano_usd for row in rows) == total
                    assert sum(row.requests for row in rows) == 10
                    assert sum(row.estimated for row in rows) == 5
                    assert sum(row.device_ns or 0 for row in rows) == 35
                    assert len({tuple(row.group.items()) for row in rows}) == len(rows)
            (row,) = await book.usage((), tenant="globex", **ALL)
            assert row.nano_usd == await book.spend(tenant="globex", **ALL) == 50_000 + 27_650
            assert (row.input_tokens, row.cached_input_tokens, row.cache_write_tokens) == (
                190,
                5,
                5,
            )
            assert row.output_tokens == 50 + 14
            by_user = await book.usage(["user"], tenant="acme", **ALL)
            assert {(row.group["issuer"], row.group["user"]) for row in by_user} == {
                ("idp", "alice"),
                ("idp", "bob"),
                ("other-idp", "alice"),
            }

    run(test)


@pytest.mark.slow
@given(STORIES)
@settings(max_examples=12, deadline=None, derandomize=True)
def test_whatever_happens_every_cut_sums_to_the_ledger(stories: list[Story]) -> None:
    """Also cut by time, meter and price, over any part of the time, and read in pages of any size."""
    run(partial(every_cut, stories, size_most=3))


@pytest.mark.slow
@both
def test_every_cut_is_the_same_on_both() -> None:
    """One of each fate, in two months, at prices that round."""
    meters = Meters(3, 4, 5, 6)
    fates = ("settle", "void", "open", "expire", "late")
    days = 5 * 24 * HOUR_MS
    stories = [Story(at, days, at % 3, meters, fate) for at, fate in enumerate(fates * 2, -5)]
    run(partial(every_cut, stories, size_most=2))


async def every_cut(stories: list[Story], *, size_most: int) -> None:
    clock = Clock()
    with folder() as where, house(clock, where / "x.db") as (book, finance):
        await lived(book, clock, stories)
        total = await book.spend(**ALL)
        assert total == await ledger_sum(finance)
        for size in range(1, size_most + 1):
            for by in list(combinations((*COLUMNS, *TAGS), size))[:: size**3]:
                found = await book.usage(by, **ALL)
                assert sum(row.nano_usd for row in found) == total, by
                assert len(set(groups(found))) == len(found)
                assert groups(found) == sorted(groups(found), key=_nulls_first)
                if size == 2:
                    assert await in_pages(finance, by) == list(found)
        for tenant in ("acme", "globex"):
            one: dict[str, Any] = {**ALL, "tenant": tenant}
            found = await book.usage(["day", "meter"], **one)
            assert sum(row.nano_usd for row in found) == await book.spend(**one)
        for month in await book.usage(["month"], **ALL):
            span = month_at(int(month.group["month"] or 0))
            within: dict[str, Any] = {"from_ms": span.start_ms, "to_ms": span.end_ms}
            assert await book.spend(**within) == month.nano_usd
            by_hour = await book.usage(["hour", "user"], **within)
            assert sum(row.nano_usd for row in by_hour) == month.nano_usd


def _nulls_first(group: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple((value is not None, "" if value is None else value) for value in group)


async def in_pages(finance: Finance, by: tuple[str, ...]) -> list[UsageRow]:
    return [row async for row in finance.every(Asked(by=by, of=Slice(**ALL), most=2))]


@both
def test_pages_follow_each_other() -> None:
    async def test() -> None:
        clock = Clock()
        with folder() as where, house(clock, where / "x.db") as (book, finance):
            for number, dims in enumerate(PEOPLE):
                await book.hold(ask(f"r{number}", dims=dims))
                await book.settle(f"r{number}", Meters(input=1))
            whole = await book.usage(("project", "user"), **ALL)
            assert len(whole) == 3
            assert await in_pages(finance, ("project", "user")) == list(whole)

    run(test)


@both
def test_a_request_belongs_to_the_time_it_was_admitted() -> None:
    async def test() -> None:
        clock = Clock()
        with folder() as where, opened(clock, where / "x.db") as book:
            await book.hold(ask("r1"))
            clock.ms += 1000
            await book.hold(ask("r2"))
            clock.ms += 10_000
            await book.settle("r1", Meters(input=1))
            await book.settle("r2", Meters(input=2))
            first: dict[str, Any] = {"from_ms": NOON_MS, "to_ms": NOON_MS + 1000}
            assert await book.spend(**first) == 200
            (row,) = await book.usage(["tenant"], **first)
            assert (row.requests, row.nano_usd) == (1, 200)
            assert await book.usage(["tenant"], from_ms=0, to_ms=NOON_MS) == ()
            assert await book.usage([], from_ms=0, to_ms=NOON_MS) == ()

    run(test)


def test_an_unknown_grouping_is_refused() -> None:
    async def test() -> None:
        with (
            folder() as where,
            opened(Clock(), where / "x.db") as book,
            pytest.raises(ValueError, match="colour"),
        ):
            await book.usage(["colour"], **ALL)

    run(test)
