"""What another gateway withdraws ends what runs here; and that it cannot be read is told once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from executor.echo import EchoExecutor
from gateway.settings import development
from gateway.tempo_start import follow, others_write
from tenants.directory import Directory
from tenants.epochs import Epochs
from tenants.store import StoreUnavailable
from tests.gateway.inhouse import CHAT, chat_body, inhouse
from tests.gateway.test_line import Hold


def test_a_revocation_elsewhere_ends_a_running_stream_here(tmp_path: Path) -> None:
    async def run() -> None:
        hold = Hold(2)
        async with inhouse(tmp_path, echo=EchoExecutor(gate=hold)) as home:
            mine = home.caller().start("POST", CHAT, chat_body(stream=True))
            other = home.caller("globex/carol").start("POST", CHAT, chat_body(stream=True))
            await mine.until(lambda each: bool(each.parts))
            await other.until(lambda each: bool(each.parts))
            here = home.house.directory
            elsewhere = Directory(here._config, here._store, clock_s=here._clock_s)
            await elsewhere.load()
            await elsewhere.suspend("acme", actor="operator", reason="unpaid")
            assert len(home.house.live) == 2
            await here.refresh()
            *_, fault, last = (await mine.end()).events()
            assert fault["error"]["code"] == "authorization_revoked"
            assert last == "[DONE]"
            assert (await home.caller().chat()).error["code"] == "tenant_suspended"
            hold.opened.set()
            assert (await other.end()).events()[-2]["choices"][0]["finish_reason"] == "stop"
            await home.at_rest()

    asyncio.run(run())


def test_what_cannot_be_read_is_told_once_until_it_can() -> None:
    logged: list[tuple[str, type[BaseException]]] = []

    async def test() -> None:
        faults: list[Exception | None] = [
            StoreUnavailable("x"), StoreUnavailable("x"), ValueError("x"), None, StoreUnavailable("x"),
        ]  # fmt: skip
        asked = asyncio.Event()

        async def source() -> None:
            if not faults:
                asked.set()
            elif (fault := faults.pop(0)) is not None:
                raise fault

        ms = 0

        def clock_ms() -> int:
            nonlocal ms
            ms += 1_000
            return ms

        epochs = Epochs(clock_ms)
        epochs.follow(source)
        task = asyncio.create_task(
            follow(epochs, lambda event, error: logged.append((event, type(error))), every_s=0)
        )
        await asked.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(test())
    assert logged == [
        ("epochs.unread", StoreUnavailable),
        ("epochs.unread", ValueError),
        ("epochs.unread", StoreUnavailable),
    ]


@pytest.mark.parametrize(
    ("url", "many"),
    (("sqlite:///x.db", False), ("postgresql://h/d", True), ("postgres://h/d", True)),
)
def test_a_file_is_written_by_nobody_else(tmp_path: Path, url: str, many: bool) -> None:
    settings = development(state_dir=tmp_path)
    state = msgspec.structs.replace(settings.state, database_url=url)
    assert others_write(msgspec.structs.replace(settings, state=state)) is many
