"""Device time in an export: the operator's alone, whole, and split so that it comes to one.

Source: MONEY.md §2 ("Idle", "FOCUS"); FOCUS 1.3, split cost allocation.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from policies.facts import Meters
from tenants.device_book import DeviceBook
from tenants.devices import DeviceReport
from tenants.finance import Finance
from tenants.focus.devices import Allocation
from tenants.reports.facts import Slice
from tests.tenants.finance_kit import PEOPLE, TAGS, house, priced
from tests.tenants.focus_checks import faults, read, splits
from tests.tenants.house import PRICE, Clock, ask, folder, on_both, record, run
from tests.tenants.test_focus import export, sent

both = pytest.mark.usefixtures("on_both")
__all__ = ["on_both"]

MS = 1_000_000
HOUR_MS = 3_600_000
EVER = Slice(from_ms=0, to_ms=2**60)


def told(start: str, model: str, **times: int) -> DeviceReport:
    return DeviceReport(
        start=start, model=model, devices=1, rule="shapley-1", coefficients="1", **times
    )


async def lived(book: Any, finance: Finance, clock: Clock) -> None:
    """Two models over some hours; one of them idle in an hour in which nobody asks anything."""
    accounts = DeviceBook(finance._store, owner="p1", clock_ms=clock)
    spent: Counter[str] = Counter()
    for hour in range(4):
        for number, dims in enumerate(PEOPLE if hour != 2 else ()):
            of, ns = f"r{hour}-{number}", 7_654_321 + number * 1_001
            at = replace(
                record(of, dims, device_ns=ns), device_start=dims.model, received_at_ms=clock.ms
            )
            await book.hold(ask(of, dims=dims, price=priced(PRICE, dims.model), tags=TAGS[number]))
            await book.settle(of, Meters(number, 1, 0, 2), at)
            spent[dims.model] += ns
        reports = tuple(
            (
                told(
                    model, model, load_ns=5 * MS, warm_up_ns=MS, recompute_ns=hour * 333,
                    attributed_ns=spent[model], wall_ns=(hour + 1) * 900 * MS + 77,
                ),
                False,
            )
            for model in ("m", "m2")
        )  # fmt: skip
        await accounts.tell(reports)
        clock.ms += HOUR_MS


@both
@pytest.mark.parametrize("grain", ("hour", "day"))
def test_an_operators_export_has_all_of_it_and_its_parts_come_to_one(
    monkeypatch: pytest.MonkeyPatch, grain: str
) -> None:
    monkeypatch.setattr("tenants.focus.lines.PAGE", 3)

    async def test() -> None:
        clock = Clock()
        with folder() as where, house(clock, where / "x.db") as (book, finance):
            await lived(book, finance, clock)
            data, manifest = await sent(finance, export(version="1.4", grain=grain))
            found = read(data)
            assert list(faults(found, "1.4", "2026-11")) == []
            assert manifest["rule_versions"]["cost_attribution"] == ["shapley-1"]
            ns: Counter[str] = Counter()
            for row in found:
                ns[row["x_Entry"]] += int(row["x_GpuNanoseconds"])
            wall_ns = 2 * (4 * 900 * MS + 77)
            assert sum(ns.values()) == wall_ns
            _, total = await finance.device_time((), EVER, most=9)
            assert ns["idle"] == total.idle_ns
            assert ns["usage"] == total.attributed_ns
            assert ns["overhead"] == sum(total.overhead_ns.values()) == 2 * (6 * MS + 3 * 333)
            spans = {row["ChargePeriodStart"] for row in found}
            assert len(spans) == (4 if grain == "hour" else 1)
            sums = splits(found)
            assert set(sums) == {(span, model) for span in spans for model in ("m", "m2")}
            assert set(sums.values()) == {1}
            assert len({row["AllocatedTags"] for row in found}) > 2
            old = read((await sent(finance, export(grain=grain)))[0])
            assert list(faults(old, "1.2", "2026-11")) == []
            assert len(old) == len(found)
            assert not any(name.startswith("Allocated") for name in old[0])

    run(test)


@both
def test_nobody_elses_export_has_any_of_it() -> None:
    """Neither a tenant's own, nor an operator's of one tenant: that is not the whole, of which these are parts."""

    async def test() -> None:
        clock = Clock()
        with folder() as where, house(clock, where / "x.db") as (book, finance):
            await lived(book, finance, clock)
            for changed in (
                {"device": False},
                {"device": False, "tenant": "acme"},
                {"tenant": "acme"},
            ):
                of = export(version="1.4", **changed)
                data, manifest = await sent(finance, of)
                found = read(data)
                assert {row["x_Entry"] for row in found} == {"usage"}
                assert splits(found) == {}
                assert manifest["device_seconds"] == {}
                assert manifest["rule_versions"]["cost_attribution"] is None
                assert {bool(row["x_GpuNanoseconds"]) for row in found} == {of.device}

    run(test)


@both
def test_what_was_told_since_is_in_the_next_export() -> None:
    async def test() -> None:
        clock = Clock()
        with folder() as where, house(clock, where / "x.db") as (book, finance):
            await lived(book, finance, clock)
            as_of = export(version="1.4", as_of_ms=clock.ms - HOUR_MS)
            first, _ = await sent(finance, as_of)
            accounts = DeviceBook(finance._store, owner="p1", clock_ms=clock)
            await accounts.tell(((told("m", "m", wall_ns=9_000 * MS, attributed_ns=0), False),))
            assert (await sent(finance, as_of))[0] == first
            clock.ms += 60_000
            assert (await sent(finance, export(version="1.4", as_of_ms=clock.ms)))[0] != first

    run(test)


@pytest.mark.parametrize("seed", range(20))
def test_ratios_come_to_one_whatever_they_are_of(seed: int) -> None:
    dice = Random(seed)
    times = [dice.choice((1, 3, 10 ** dice.randrange(1, 16))) for _ in range(dice.randrange(1, 60))]
    allocation = Allocation({"m": sum(times)}, {"m": "rule"})
    rows = [
        {
            **{k: v or "" for k, v in allocation.columns("m", ns, ("t", None)).items()},
            "x_GpuNanoseconds": str(ns), "ChargePeriodStart": "", "x_Model": "m",
        }
        for ns in times
    ]  # fmt: skip
    assert splits(rows) == {("", "m"): 1}  # type: ignore[arg-type]
    assert not any(allocation.columns("m2", 5, ()).values())
    assert not any(allocation.columns(None, 5, ()).values())
