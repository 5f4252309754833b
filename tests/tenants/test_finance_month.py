"""A month of many tenants' traffic through the book, by a clock of its own: every cut sums to the ledger.

The arrivals are VTC's 27-tenant Arena trace, its ten minutes spread over October; no model, only holds and
settlements at the times of the trace, with three changes of price, holds that are lost, a settlement that
comes after its month was closed, and a refund.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from policies.facts import Budget, Meters, Price
from policies.periods import CLOSING_MS, month
from tenants.adjustments import AdjustAsk, Kind
from tenants.book import Book, BudgetAccount
from tenants.reports.facts import Slice
from tests.tenants.finance_kit import house, ledger_sum
from tests.tenants.focus_checks import faults, read, total
from tests.tenants.house import DIMS, Clock, ask, folder, record, run
from tests.tenants.test_focus import export, sent

TRACE = Path(__file__).resolve().parents[3] / "shared" / "traces" / "vtc_arena27_10min.csv"
OCTOBER, NOVEMBER = month("2026-10"), month("2026-11")
EVER: dict[str, Any] = {"from_ms": 0, "to_ms": 2**60}
DAY_MS = 86_400_000

# Four prices in force one after the other: whole, odd, below a nano-dollar a token, and dear.
PRICES = tuple(
    Price(f"m@{day}", "m", (OCTOBER.start_ms + day * DAY_MS) // 1000, *units)
    for day, units in (
        (0, (200_000_000, 50_000_000, 250_000_000, 600_000_000)),
        (9, (333_333_333, 77_777_777, 1_234_567_891, 999_999_999)),
        (17, (333_333, 77_777, 1_234_567, 1_499_999)),
        (25, (10**12 + 1, 10**11 + 3, 10**12 + 7, 10**13 + 9)),
    )
)


@dataclass(frozen=True)
class Arrival:
    at_ms: int
    tenant: str
    prompt: int
    output: int


def arrivals() -> Iterator[Arrival]:
    """Ten minutes, spread over the month: a second of the trace is an hour and a quarter."""
    with TRACE.open(encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    last = max(float(row["arrival_s"]) for row in found)
    span = OCTOBER.end_ms - OCTOBER.start_ms - 1
    for row in found:
        at_ms = OCTOBER.start_ms + int(Fraction(row["arrival_s"]) * span / Fraction(str(last)))
        yield Arrival(at_ms, row["tenant"], int(row["prompt_tokens"]), int(row["output_tokens"]))


async def lived(book: Book, clock: Clock) -> None:
    """Every 100th hold is lost, every 50th is voided; a prompt falls by thirds over the three meters."""
    lost: list[str] = []
    for number, each in enumerate(arrivals()):
        clock.ms = max(clock.ms, each.at_ms)
        of = f"r{number:05}"
        price = [price for price in PRICES if price.effective_s * 1000 <= clock.ms][-1]
        dims = replace(
            DIMS,
            tenant=each.tenant,
            user=f"u{number % 3}",
            project=None if number % 5 == 0 else f"p{number % 2}",
            key_id=f"k{number % 4}" if number % 4 else None,
            service_class=("interactive", "batch", None)[number % 3],
        )
        await book.hold(
            ask(of, prompt=each.prompt, out=max(1, each.output), dims=dims, price=price)
        )
        if number % 100 == 99:
            lost.append(of)
        elif number % 50 == 49:
            await book.void(of)
        else:
            cached, written = each.prompt // 3, each.prompt // 7
            meters = Meters(each.prompt - cached - written, cached, written, each.output)
            await book.settle(of, meters, record(of, dims, device_ns=each.output * 1000))
        if len(lost) == 3:
            clock.ms += 61_000
            await book.sweep()
            await book.settle(lost.pop(0), Meters(1, 2, 3, 4))
    clock.ms += 61_000
    await book.sweep()


@pytest.mark.slow
@pytest.mark.skipif(not TRACE.exists(), reason="the trace does not lie beside the repository")
def test_a_month_of_the_arena_trace_adds_up() -> None:
    async def test() -> None:
        clock = Clock(OCTOBER.start_ms)
        with folder() as where, house(clock, where / "x.db") as (book, finance):
            await lived(book, clock)
            total_before = await ledger_sum(finance)
            clock.ms = OCTOBER.end_ms + CLOSING_MS
            closed = await finance.close(OCTOBER, actor="a", reason="r")
            assert closed.spend_nano_usd == total_before
            first = await sent(finance, export(period=OCTOBER, as_of_ms=None))
            await book.settle("r01499", Meters(5, 0, 0, 5))  # late: it was lost in October
            await by_hand(book)
            assert await sent(finance, export(period=OCTOBER, as_of_ms=None)) == first
            spend = await ledger_sum(finance)
            assert spend == await book.spend(**EVER) != total_before
            names = (*("tenant", "project", "user", "key", "model", "class", "meter", "price"),
                     *("request", "hour", "day", "month"))  # fmt: skip
            for size in (1, 2, 3):
                for by in list(combinations(names, size))[:: size * size * size]:
                    rows = await book.usage(by, **EVER)
                    assert len(rows) < 10_000, by
                    assert sum(row.nano_usd for row in rows) == spend, by
            billed = Fraction(0)
            for period, as_of_ms in ((OCTOBER, None), (NOVEMBER, 2**60)):
                data, _ = await sent(finance, export(period=period, as_of_ms=as_of_ms))
                found = read(data)
                assert list(faults(found, "1.2", period.name)) == []
                billed += total(found, "BilledCost")
            given = {row["x_Entry"] for row in found if row["ChargeCategory"] != "Usage"}
            assert given == {"refund", "credit"}
            assert billed * 10**9 == spend
            by_tenant = {row.group["tenant"] for row in await book.usage(("tenant",), **EVER)}
            assert len(by_tenant) == 27
            done = await finance.reconcile(Slice(**EVER))
            assert (done.requests_agree, done.ledger_agrees) == (True, True), done.found.named
            kept, now = await finance.verify(OCTOBER) or pytest.fail("it is closed")
            assert kept.sha256 == now.sha256

    run(test)


async def by_hand(book: Book) -> None:
    """A refund of a request in the closed month, a credit, and a top-up, which moves no debt."""
    given = {"tenant": "t2", "nano_usd": 1234, "actor": "a", "reason": "r"}
    refund = AdjustAsk(id="1", kind=Kind.REFUND, request_id="r00001", **given)  # type: ignore[arg-type]
    credit = AdjustAsk(id="2", kind=Kind.CREDIT, **given)  # type: ignore[arg-type]
    account = BudgetAccount("tenant", "t2", Budget(10**15))
    top_up = AdjustAsk(id="3", kind=Kind.TOP_UP, budget=account, **given)  # type: ignore[arg-type]
    for ask_ in (refund, credit, top_up):
        await book.adjust(ask_)
