"""The database does not answer: a balancer hears it, and so does whoever asks, as a 503 and no fault."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from gateway.housekeeping import keep_house
from policies.facts import Meters
from tests.gateway.inhouse import Inhouse, inhouse
from tests.tenants.house import ask


@contextmanager
def away(home: Inhouse) -> Iterator[None]:
    """Neither writer nor reader gets an answer."""

    def fails(work: Callable[[Connection], Any]) -> Any:
        raise OperationalError("", None, OSError("gone"), connection_invalidated=True)

    store = home.house.book._store
    with pytest.MonkeyPatch.context() as patch:
        for worker in (store._writer, store._reader):
            patch.setattr(worker._backend, "commit", fails)
        yield


def test_it_is_told_and_it_comes_back(tmp_path: Path) -> None:
    async def run() -> None:
        async with inhouse(tmp_path) as home:
            keeping = asyncio.create_task(keep_house(home.house, home.run, every_s=0.01))
            ready = home.caller(None)
            assert (await ready.get("/ready")).status == 200
            await home.house.book.hold(ask("ran"))
            with away(home):
                await home.house.book.settle("ran", Meters(input=100))
                assert home.house.book.journalled == 1
                refused = await home.caller().chat()
                assert (refused.status, refused.error["code"]) == (503, "book_down")
                assert (await ready.get("/ready")).json() == {"status": "book_down"}
                mine = await home.caller().get("/v1/me")
                assert (mine.status, mine.error["code"]) == (503, "store_unavailable")
                theirs = await home.operator().get("/v1/admin/usage", "by=tenant")
                assert theirs.status == 503
                assert "nothing was changed" in theirs.json()["detail"]
                await asyncio.sleep(0.05)
            async with asyncio.timeout(10):
                while (await ready.get("/ready")).status != 200:
                    await asyncio.sleep(0.01)
                while [each["event"] for each in home.logged].count("book.back") < 1:
                    await asyncio.sleep(0.01)
            assert [each["event"] for each in home.logged].count("book.away") == 1
            assert "book.caught_up" in [each["event"] for each in home.logged]
            assert home.house.book.journalled == 0
            keeping.cancel()
            with suppress(asyncio.CancelledError):
                await keeping
            assert (await home.caller().chat()).status == 200
            await home.at_rest()

    asyncio.run(run())


def test_clocks_that_are_apart_are_told_of_once(tmp_path: Path) -> None:
    async def run() -> None:
        async with inhouse(tmp_path) as home:
            book, said = home.house.book, home.logged
            ours = book._wall_ms

            async def until(event: str) -> None:
                async with asyncio.timeout(10):
                    while event not in [each["event"] for each in said]:
                        await asyncio.sleep(0.01)

            keeping = asyncio.create_task(keep_house(home.house, home.run, every_s=0.01))
            book._wall_ms = lambda: ours() - 5_000
            await until("clock.skewed")
            metrics = await home.operator().get("/metrics")
            (line,) = [
                each
                for each in metrics.body.decode().splitlines()
                if each.startswith("lockgate_clock_skew_seconds ")
            ]
            assert -5.5 < float(line.split()[1]) < -4.5
            await asyncio.sleep(0.05)
            book._wall_ms = ours
            await until("clock.agrees")
            keeping.cancel()
            with suppress(asyncio.CancelledError):
                await keeping
            (told,) = [each for each in said if each["event"] == "clock.skewed"]
            assert isinstance(told["ahead_ms"], int)
            assert -5_500 < told["ahead_ms"] < -4_500

    asyncio.run(run())
