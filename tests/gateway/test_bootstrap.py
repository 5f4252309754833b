"""The composition root's own work: housekeeping that outlives its failures."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from executor.echo import EchoExecutor
from gateway.bootstrap import keep_house, renew
from tests.gateway.inhouse import CHAT, chat_body, inhouse
from tests.gateway.test_line import Hold


def test_housekeeping_survives_a_round_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with inhouse(tmp_path) as home:
            rounds = asyncio.Event()
            told = 0

            async def broken() -> object:
                nonlocal told
                told += 1
                if told == 3:
                    rounds.set()
                raise RuntimeError("CANARY")

            monkeypatch.setattr(type(home.house.book), "sweep", lambda self: broken())
            task = asyncio.create_task(keep_house(home.house, every_s=0.001))
            async with asyncio.timeout(10):
                await rounds.wait()
            assert not task.done()
            task.cancel()
            failed = [each for each in home.logged if each["event"] == "housekeeping.failed"]
            assert len(failed) >= 2

    asyncio.run(run())


def test_a_running_request_keeps_its_lease_and_its_hold(tmp_path: Path) -> None:
    async def run() -> None:
        hold = Hold()
        async with inhouse(tmp_path, echo=EchoExecutor(gate=hold)) as home:
            exchange = home.caller().start("POST", CHAT, chat_body())
            await hold.waiting.wait()
            home.time.ahead_ms += 50_000
            await renew(home.house)
            home.time.ahead_ms += 50_000  # past the first lease, within the renewed one
            swept = await home.house.book.sweep()
            assert (swept.expired, swept.voided) == ((), ())
            hold.opened.set()
            assert (await exchange.end()).status == 200
            await home.at_rest()

    asyncio.run(run())
