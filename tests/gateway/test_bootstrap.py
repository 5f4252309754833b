"""The composition root's own work: housekeeping that outlives its failures."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from executor.echo import EchoExecutor
from gateway import bootstrap, listen
from gateway.development import DevelopmentState, refuse_development_state
from gateway.draining import Switch, drain
from gateway.house import House
from gateway.housekeeping import keep_house, renew
from gateway.settings import Mode, development
from policies.verdict import Allow
from security.dev_issuer import open_dev_issuer
from security.keyring import KeyringError
from tests.gateway.inhouse import CHAT, chat_body, inhouse
from tests.gateway.test_line import Hold
from tests.tenants.house import ask


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
            task = asyncio.create_task(keep_house(home.house, home.run, every_s=0.001))
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


def test_a_signal_lets_what_runs_end_and_a_bound_ends_what_does_not(tmp_path: Path) -> None:
    async def run() -> None:
        hold = Hold(1)
        async with inhouse(tmp_path, echo=EchoExecutor(gate=hold)) as home:
            switch = Switch()
            draining = asyncio.create_task(drain(home.house, switch, 0.2))
            exchange = home.caller().start("POST", CHAT, chat_body(stream=True))
            await exchange.until(lambda each: bool(each.parts))
            switch.turn()
            *_, fault, done = (await exchange.end()).events()
            assert (fault["error"]["code"], done) == ("draining", "[DONE]")
            await draining
            assert switch.shutdown.is_set()
            await home.at_rest()

    asyncio.run(run())


def test_an_idle_server_closes_at_once_and_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    async def run() -> None:
        async with inhouse(tmp_path) as home:
            idle = Switch()
            idle.turn()
            await drain(home.house, idle, 60)
            assert idle.shutdown.is_set()
            late = await home.caller().chat()  # past the first question, and too late all the same
            assert (late.status, late.error["code"]) == (503, "draining")
        hold = Hold()
        async with inhouse(tmp_path / "busy", echo=EchoExecutor(gate=hold)) as home:
            exchange = home.caller().start("POST", CHAT, chat_body())
            await hold.waiting.wait()
            busy = Switch()
            draining = asyncio.create_task(drain(home.house, busy, 60))
            busy.turn()
            await asyncio.sleep(0)
            assert not busy.shutdown.is_set()
            busy.turn()
            assert busy.shutdown.is_set()
            draining.cancel()
            hold.opened.set()
            assert (await exchange.end()).status == 200

    asyncio.run(run())


def test_production_never_opens_the_state_of_development(tmp_path: Path) -> None:
    played = development(tmp_path)
    open_dev_issuer(tmp_path)
    refuse_development_state(played)
    with pytest.raises(DevelopmentState, match="of their own"):
        refuse_development_state(msgspec.structs.replace(played, mode=Mode.PRODUCTION))


def test_the_collector_leaves_the_house_alone_before_anything_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def noted(name: str) -> Callable[[], None]:
        return lambda: done.append(name)

    async def serve(*_: object, **__: object) -> None:
        done.append("serve")

    async def run() -> None:
        async with inhouse(tmp_path) as home:

            @asynccontextmanager
            async def opened(*_: object) -> AsyncIterator[tuple[House, None]]:
                yield home.house, None

            monkeypatch.setattr(bootstrap, "opened", opened)
            monkeypatch.setattr(listen, "serve", serve)
            collector = SimpleNamespace(collect=noted("collect"), freeze=noted("freeze"))
            monkeypatch.setattr(bootstrap, "gc", collector)
            await bootstrap._serve(development(state_dir=tmp_path))

    asyncio.run(run())
    assert done == ["collect", "freeze", "serve"]


def test_a_book_under_another_root_key_is_refused_before_it_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a restored one may be: what ran when it was copied stays open until the right key is there."""

    async def nothing(*_: object) -> list[object]:
        return []

    monkeypatch.setattr(bootstrap, "deploy", nothing)
    settings = development(state_dir=tmp_path)
    key = settings.state.root_key_file

    async def run() -> None:
        async with bootstrap.opened(settings, lambda: False) as (house, _):
            assert isinstance(await house.book.hold(ask("open")), Allow)
        key.unlink()
        shutil.rmtree(tmp_path / "audit")  # which knows its own key
        with pytest.raises(KeyringError, match="not in the root key file"):
            async with bootstrap.opened(settings, lambda: False):
                pass

    asyncio.run(run())
    with closing(sqlite3.connect(tmp_path / "lockgate.db")) as book:
        assert book.execute("SELECT state FROM reservation").fetchall() == [("HELD",)]
