"""A request is counted once in an export, whatever lines it has."""

from __future__ import annotations

import io

import pytest

from policies.facts import Meters
from policies.periods import CLOSING_MS, month
from tenants.reports import Asked
from tenants.reports.facts import Slice
from tests.tenants.finance_kit import PEOPLE, PRICES, house
from tests.tenants.house import Clock, ask, folder, on_both, record, run
from tests.tenants.test_focus import NOVEMBER, dull, export, sent

both = pytest.mark.usefixtures("on_both")
__all__ = ["on_both"]


@both
def test_each_request_is_counted_once_over_all_rows() -> None:
    """Of every meter, estimated, corrected in its month and in the next: a sum over the column is the
    requests, and the report's, in each month and format."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")

    async def test() -> None:
        october = month("2026-10")
        clock = Clock(october.end_ms - 10_000_000)
        with folder() as where, house(clock, where / "x.db") as (book, finance):
            for number in range(12):
                of, dims = f"r{number}", PEOPLE[number % 3]
                await book.hold(ask(of, dims=dims, price=PRICES[number % 2]))
                if number < 8:
                    meters = Meters(number % 2, number % 3, number % 5, number % 4)
                    await book.settle(of, meters, record(of, dims, device_ns=1))
            clock.ms += 61_000
            assert len((await book.sweep()).expired) == 4
            await book.settle("r8", Meters(1, 2, 3, 4), record("r8", PEOPLE[2], device_ns=1))
            clock.ms = october.end_ms + CLOSING_MS
            await finance.close(october, actor="a", reason="r")
            await book.settle("r9", Meters(1, 2, 3, 4), record("r9", device_ns=1))
            await book.hold(ask("s"))
            await book.settle("s", Meters(1, 1, 1, 1), record("s", device_ns=1))
            for period, requests, device in ((october, 12, 9), (NOVEMBER, 1, 2)):
                of_month = Slice(from_ms=period.start_ms, to_ms=period.end_ms)
                _, counted = await finance.cut(Asked(by=(), of=of_month))
                assert counted is not None
                assert counted.requests == requests
                for version in ("1.2", "1.4"):
                    rows_ = await dull(finance, export(period=period, version=version))
                    assert sum(int(row["x_RequestCount"]) for row in rows_) == requests
                    assert sum(int(row["x_GpuNanoseconds"]) for row in rows_) == device
                    data, _ = await sent(
                        finance, export(period=period, version=version, kind="parquet")
                    )
                    column = parquet.read_table(io.BytesIO(data))["x_RequestCount"]
                    assert sum(column.to_pylist()) == requests

    run(test)
