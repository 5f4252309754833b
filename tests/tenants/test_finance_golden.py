"""Twelve requests that a clerk has worked out with pencil and paper, and every report of them.

Prices in nano-dollars a token: m@0 is 200 in, 50 cached, 200 written, 600 out; m@odd is 333.333333, 77.777777,
1234.567891, 999.999999; m@sub is 0.333333, 0.077777, 1.234567, 1.499999.  A line is rounded half-up.

     1  acme/alice   m@0    10 in → 2000, 5 out → 3000                                      5000
     2  acme/alice   m@0     7 cached → 350, 1 out → 600                                     950
     3  acme/bob     m@0     1 in → 200, 3 written → 600                                     800
     4  acme/bob     m@odd   3 in → 999.999999 → 1000                                       1000
     5  acme/bob     m@odd   1 cached → 77.777777 → 78, 1 out → 999.999999 → 1000           1078
     6  acme/alice   m@sub   1 in → 0.333333 → 0, 1 out → 1.499999 → 1                         1
        in October:                                                                         8829
     7  acme/alice   m@sub   3 in → 0.999999 → 1, 6 cached → 0.466662 → 0,
                             2 written → 2.469134 → 2, 5 out → 7.499995 → 7                   10
     8  globex/carol m@0   100 in → 20000, 50 out → 30000                                  50000
     9  globex/carol m@0     voided                                                            0
    10  globex/carol m@0     lost: reserved 100 in → 20000, 50 out → 30000                 50000
    11  acme/alice   m@0     lost, then 10 in → 2000, 1 out → 600                           2600
    12  acme/alice   m@0     still open                                                        0
        in November:                                                                      102610
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from policies.facts import Meters, Price
from policies.periods import month
from policies.tags import Origin, Tag
from tenants.book import Book, Dimensions
from tenants.finance import Finance
from tests.tenants.finance_kit import ODD, SUB, house
from tests.tenants.focus_checks import faults, read, total
from tests.tenants.house import DIMS, PRICE, Clock, ask, folder, on_both, record, run, tag
from tests.tenants.test_focus import export, sent

pytestmark = pytest.mark.usefixtures("on_both")
__all__ = ["on_both"]

ALICE = DIMS
BOB = replace(DIMS, user="bob", project=None, service_class="batch")
CAROL = replace(DIMS, tenant="globex", user="carol")
NOVEMBER = month("2026-11")
EVER: dict[str, Any] = {"from_ms": 0, "to_ms": 2**60}

USED: tuple[tuple[str, Dimensions, Price, Meters], ...] = (
    ("1", ALICE, PRICE, Meters(10, 0, 0, 5)),
    ("2", ALICE, PRICE, Meters(0, 7, 0, 1)),
    ("3", BOB, PRICE, Meters(1, 0, 3, 0)),
    ("4", BOB, ODD, Meters(3, 0, 0, 0)),
    ("5", BOB, ODD, Meters(0, 1, 0, 1)),
    ("6", ALICE, SUB, Meters(1, 0, 0, 1)),
    ("7", ALICE, SUB, Meters(3, 6, 2, 5)),
    ("8", CAROL, PRICE, Meters(100, 0, 0, 50)),
)


FILED: dict[str, tuple[Tag, ...]] = {
    "1": (tag(),),
    "3": (tag(value="ads", origin=Origin.CLIENT),),
    "8": (tag("env", "prod"), tag()),
    "10": (tag(origin=Origin.CLAIM),),
}


async def twelve(book: Book, clock: Clock) -> None:
    """The first six in the last millisecond of October, the others in the first of November."""
    clock.ms = NOVEMBER.start_ms - 1
    for of, dims, price, meters in USED:
        if of == "7":
            clock.ms = NOVEMBER.start_ms
        await book.hold(ask(of, dims=dims, price=price, tags=FILED.get(of, ())))
        await book.settle(of, meters, record(of, dims, device_ns=int(of)))
    for of, dims in (("9", CAROL), ("10", CAROL), ("11", ALICE)):
        await book.hold(ask(of, dims=dims, tags=FILED.get(of, ())))
    await book.void("9")
    clock.ms += 61_000
    await book.sweep()
    await book.settle("11", Meters(10, 0, 0, 1), record("11", ALICE, device_ns=11))
    await book.hold(ask("12"))


BY: tuple[tuple[tuple[str, ...], dict[tuple[object, ...], int]], ...] = (
    (("tenant",), {("acme",): 11_439, ("globex",): 100_000}),
    (("project",), {(None,): 2878, ("search",): 108_561}),
    (
        ("user",),
        {("idp", "alice"): 8561, ("idp", "bob"): 2878, ("idp", "carol"): 100_000},
    ),
    (("tag:team",), {(None,): 5639, ("ads",): 800, ("search",): 105_000}),
    (
        ("tag:env", "tag:team"),
        {(None, None): 5639, (None, "ads"): 800, (None, "search"): 55_000, ("prod", "search"): 50_000},
    ),
    (("class",), {("batch",): 2878, ("interactive",): 108_561}),
    (("price",), {("m@0",): 109_350, ("m@odd",): 2078, ("m@sub",): 11}),
    (
        ("meter",),
        {("cache_write",): 602, ("cached_input",): 428, ("input",): 45_201, ("output",): 65_208},
    ),
    (
        ("month", "tenant"),
        {
            (month("2026-10").start_ms, "acme"): 8829,
            (NOVEMBER.start_ms, "acme"): 2610,
            (NOVEMBER.start_ms, "globex"): 100_000,
        },
    ),
    (
        ("request",),
        {
            ("1",): 5000, ("2",): 950, ("3",): 800, ("4",): 1000, ("5",): 1078, ("6",): 1,
            ("7",): 10, ("8",): 50_000, ("10",): 50_000, ("11",): 2600,
        },
    ),
)  # fmt: skip


def test_every_report_is_what_the_clerk_worked_out() -> None:
    async def test() -> None:
        clock = Clock()
        with folder() as where, house(clock, where / "x.db") as (book, finance):
            await twelve(book, clock)
            for by, amounts in BY:
                rows = await book.usage(by, **EVER)
                assert {tuple(row.group.values()): row.nano_usd for row in rows} == amounts, by
            (whole,) = await book.usage((), **EVER)
            assert (whole.nano_usd, whole.requests, whole.estimated) == (111_439, 10, 1)
            assert whole.estimated_nano_usd == 50_000
            assert (whole.input_tokens, whole.cached_input_tokens) == (228, 14)
            assert (whole.cache_write_tokens, whole.output_tokens) == (5, 114)
            assert whole.device_ns == 1 + 2 + 3 + 4 + 5 + 6 + 7 + 8 + 11
            await exported(finance)

    run(test)


async def exported(finance: Finance) -> None:
    """October: 8829 billed; exactly 5000 + 950 + 800 + 999.999999 + 77.777777 + 999.999999 + 0.333333 +
    1.499999 = 8829.611107."""
    of = export(period=month("2026-10"))
    data, told = await sent(finance, of)
    rows = read(data)
    assert list(faults(rows, "1.2", "2026-10")) == []
    assert told["totals"] == {
        "BilledCost": "0.000008829",
        "EffectiveCost": "0.000008829",
        "ContractedCost": "0.000008829611107",
        "ListCost": "0.000008829611107",
        "x_RoundingCost": "-0.000000000611107",
    }
    assert told["tokens"] == {"cache_write": "3", "cached_input": "8", "input": "15", "output": "8"}
    assert sum(int(row["x_GpuNanoseconds"]) for row in rows) == 21
    data, told = await sent(finance, export())
    assert told["totals"]["BilledCost"] == "0.00010261"
    by_entry = {
        entry: total([row for row in read(data) if row["x_Entry"] == entry], "BilledCost") * 10**9
        for entry in ("usage", "estimate", "reversal")
    }
    assert by_entry == {"usage": 52_610, "estimate": 100_000, "reversal": -50_000}
