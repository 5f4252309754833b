"""Cuts by tag, what is narrowed to one, and the tags of a FOCUS row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from policies.facts import Meters
from policies.tags import NAME_CHARS_MAX, Origin, Tag
from tenants import tags
from tenants.adjustments import AdjustAsk, Kind
from tenants.book import Book
from tenants.finance import Finance
from tenants.reports import Asked, UsageRow
from tenants.reports.facts import Slice
from tests.tenants.finance_kit import groups, house
from tests.tenants.focus_checks import faults, formulas, read, total
from tests.tenants.house import DIMS, Clock, ask, folder, on_both, record, run, tag
from tests.tenants.test_focus import NOVEMBER, export, sent

pytestmark = pytest.mark.usefixtures("on_both")
__all__ = ["on_both"]

EVER: dict[str, Any] = {"from_ms": 0, "to_ms": 2**60}
ENV, TRACE = tag("env", "prod", Origin.CLAIM), tag("trace", "=1+1", Origin.CLIENT)
FILED: tuple[tuple[Tag, ...], ...] = (
    *((), (tag(),), (ENV, tag()), (tag(origin=Origin.CLIENT),)),
    *((tag(value="ads"), TRACE), (tag(value="", origin=Origin.CLIENT),)),
)


async def filed(book: Book) -> None:
    """A request each, of 20,000; and a credit, that is under no tag."""
    for number, of in enumerate(FILED):
        await book.hold(ask(f"r{number}", tags=of))
        await book.settle(f"r{number}", Meters(input=100), record(f"r{number}", device_ns=7))
    credit = AdjustAsk(
        id="c1", kind=Kind.CREDIT, tenant="acme", nano_usd=5_000, actor="op", reason="r"
    )
    await book.adjust(credit)
    await book.adjust(replace(credit, id="c2", kind=Kind.REFUND, request_id="r1", nano_usd=1_000))


async def cut(
    finance: Finance, by: Sequence[str], most: int = 1000, **where: tuple[str | None, ...]
) -> list[UsageRow]:
    of = Slice(**EVER, where={f"tag:{name}": values for name, values in where.items()})
    return [row async for row in finance.every(Asked(by=tuple(by), of=of, most=most))]


def amounts(rows: Sequence[UsageRow]) -> dict[tuple[Any, ...], int]:
    return {tuple(row.group.values()): row.nano_usd for row in rows}


def test_a_cut_by_tag_sums_to_the_ledger_and_what_has_none_is_a_row() -> None:
    async def test() -> None:
        with folder() as where, house(Clock(), where / "x.db") as (book, finance):
            await filed(book)
            rows = await cut(finance, ["tag:team"])
            assert amounts(rows) == {
                (None,): 20_000 - 5_000, ("",): 20_000, ("ads",): 20_000, ("search",): 60_000 - 1_000,
            }  # fmt: skip
            assert rows[0].group == {"tag:team": None}
            assert sum(row.nano_usd for row in rows) == await book.spend(**EVER)
            assert sum(row.requests for row in rows) == len(FILED)
            assert [row.device_ns for row in rows] == [7, 7, 7, 21]
            both = await cut(finance, ["tag:team", "tag:env", "meter"])
            assert await cut(finance, ["tag:team", "tag:env", "meter"], most=1) == both
            assert sum(row.nano_usd for row in both) == await book.spend(**EVER)
            assert amounts(await cut(finance, ["tag:nobodys"])) == {
                (None,): await book.spend(**EVER)
            }

    run(test)


def test_what_is_narrowed_to_a_tag_is_what_is_filed_under_it() -> None:
    async def test() -> None:
        with folder() as where, house(Clock(), where / "x.db") as (book, finance):
            await filed(book)
            assert groups(await cut(finance, ["request"], team=("search",))) == [
                ("r1",), ("r2",), ("r3",)
            ]  # fmt: skip
            assert groups(await cut(finance, ["request"], team=("search",), env=("prod",))) == [
                ("r2",)
            ]
            assert groups(await cut(finance, ["request"], team=(None,))) == [("",), ("r0",)]
            assert groups(await cut(finance, ["request"], team=("ads", None))) == [
                ("",), ("r0",), ("r4",)
            ]  # fmt: skip
            assert groups(await cut(finance, ["tag:team"], trace=("=1+1",))) == [("ads",)]
            assert await cut(finance, ["tag:team"], team=("nobodys",)) == []

    run(test)


def test_a_name_may_be_anything_that_a_client_calls_it() -> None:
    async def test() -> None:
        names = (
            'a"b',
            "a'b--",
            "%s:x",
            "n" * NAME_CHARS_MAX,
            "ß" * NAME_CHARS_MAX,
            "tag_0",
            "tenant",
        )
        with folder() as where, house(Clock(), where / "x.db") as (book, finance):
            said = tuple(Tag(name, f"v{name}", Origin.CLIENT) for name in names)
            await book.hold(ask("r1", tags=said))
            await book.settle("r1", Meters(input=100), record("r1"))
            for name in names:
                (row,) = await cut(finance, [f"tag:{name}", "tenant"])
                assert row.group == {f"tag:{name}": f"v{name}", "tenant": "acme"}
                of = Slice(**EVER, where={f"tag:{name}": (f"v{name}",)})
                (row,) = (await finance.cut(Asked(by=("tag:tag_0",), of=of)))[0].rows
                assert row.group == {"tag:tag_0": "vtag_0"}
            for wrong in ("tag:", "tag:" + "n" * (NAME_CHARS_MAX + 1), "tags"):
                with pytest.raises(ValueError, match="cannot group by"):
                    await cut(finance, [wrong])

    run(test)


@pytest.mark.parametrize("version", ("1.2", "1.4"))
def test_a_focus_row_has_its_tags_and_its_grain_is_theirs(version: str) -> None:
    async def test() -> None:
        with folder() as where, house(Clock(), where / "x.db") as (book, finance):
            await filed(book)
            data, told = await sent(finance, export(version=version))
            rows = read(data)
            assert list(faults(rows, version, NOVEMBER.name)) == []
            assert formulas(data) == []
            assert told["mapping_version"] == "3"
            by_team: dict[str | None, Fraction] = {}
            for row in rows:
                found = json.loads(row["Tags"]) if row["Tags"] else {}
                team = found.get("team")
                by_team[team] = by_team.get(team, Fraction(0)) + Fraction(row["BilledCost"])
            cuts = amounts(await cut(finance, ["tag:team"]))
            assert by_team == {of: Fraction(cost, 10**9) for (of,), cost in cuts.items()}
            assert total(rows, "x_RequestCount") == len(FILED)
            shown = sorted(row["Tags"] for row in rows if row["ChargeCategory"] == "Usage")
            assert shown == [
                "",
                '{"env": "prod", "team": "search"}',
                '{"team": ""}',
                '{"team": "ads", "trace": "=1+1"}',
                '{"team": "search"}',
                '{"team": "search"}',
            ]

    run(test)


def test_what_clients_said_and_was_forgotten_is_in_no_report() -> None:
    async def test() -> None:
        with folder() as where, house(Clock(), where / "x.db") as (book, finance):
            await filed(book)
            before = await book.spend(**EVER)

            def forget(conn: Any) -> int:
                return tags.forget_client_tags(conn, tenant="acme")

            assert await finance._store.write(forget) == 3
            assert amounts(await cut(finance, ["tag:trace"])) == {(None,): before}
            assert amounts(await cut(finance, ["tag:team"])) == {
                (None,): 60_000 - 5_000, ("ads",): 20_000, ("search",): 40_000 - 1_000,
            }  # fmt: skip
            data, told = await sent(finance, export())
            assert b"trace" not in data
            assert Fraction(told["ledger_usd"]) == Fraction(before, 10**9)

    run(test)


def test_another_tenants_tags_of_the_same_name_are_not_mixed_in() -> None:
    async def test() -> None:
        with folder() as where, house(Clock(), where / "x.db") as (book, finance):
            await filed(book)
            globex = replace(DIMS, tenant="globex")
            await book.hold(ask("g1", tags=(tag(),), dims=globex))
            await book.settle("g1", Meters(input=1), record("g1", globex))
            of = Slice(**EVER, tenant="globex", where={"tag:team": ("search",)})
            found, whole = await finance.cut(Asked(by=("tag:team",), of=of))
            assert amounts(found.rows) == {("search",): 200}
            assert whole is not None
            assert whole.nano_usd == 200

    run(test)
