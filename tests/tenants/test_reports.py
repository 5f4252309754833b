"""Every cut of the usage sums to the ledger."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from policies.facts import Meters
from tests.tenants.house import DIMS, NOON_MS, Clock, ask, folder, opened, record, run

ALL: dict[str, Any] = {"from_ms": 0, "to_ms": 2**60}
PEOPLE = (
    DIMS,
    replace(DIMS, issuer="other-idp"),
    replace(DIMS, user="bob", project=None),
    replace(DIMS, key_id="k1", model="m2"),
    replace(DIMS, tenant="globex"),
)


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
                    assert sum(row.device_ns for row in rows) == 35
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
