"""What another gateway withdraws ends what runs here; and that it cannot be read is told once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from executor.echo import EchoExecutor
from gateway import bootstrap
from gateway.house import House
from gateway.settings import Settings, development, with_state_dir
from gateway.settings.units import RedisUrl
from gateway.tempo_start import follow, others_write
from security.dev_issuer import ISSUER
from tenants.directory import Directory
from tenants.epochs import ALONE_MS, Epochs
from tenants.store import StoreUnavailable
from tests.gateway.inhouse import CHAT, chat_body, furnish, inhouse
from tests.gateway.test_line import Hold
from tests.servers_postgres import database, needs_postgres
from tests.servers_valkey import Valkey


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


ALICE = ("acme", ISSUER, "alice")


async def _no_key(elsewhere: Directory, key_id: str, _: str) -> None:
    await elsewhere.revoke_key(key_id, actor="operator")


async def _no_token(elsewhere: Directory, _: str, token_id: str) -> None:
    await elsewhere.revoke_token(token_id, actor="operator")


async def _no_person(elsewhere: Directory, _: str, __: str) -> None:
    tenant, issuer, subject = ALICE
    await elsewhere.revoke_subject(tenant=tenant, issuer=issuer, subject=subject, actor="operator")


async def _no_tenant(elsewhere: Directory, _: str, __: str) -> None:
    await elsewhere.suspend("acme", actor="operator")


@pytest.mark.parametrize("revoke", (_no_key, _no_token, _no_person, _no_tenant))
def test_who_is_revoked_elsewhere_passes_until_that_is_read_and_not_once_more(
    revoke: Callable[[Directory, str, str], Awaitable[None]], tmp_path: Path
) -> None:
    """The order of things; how long it takes is `python -m tests.bench revocation`."""

    async def run() -> None:
        hold = Hold(2)
        async with inhouse(tmp_path, echo=EchoExecutor(gate=hold)) as home:
            here, ms = home.house.directory, 0
            epochs = Epochs(lambda: ms)
            epochs.follow(here.refresh)
            await epochs.look()
            made = await home.operator().post("/v1/admin/keys", {"tenant": "acme", "user": "svc"})
            caller = home.caller()
            if revoke is _no_key:
                caller = replace(caller, credential=made.json()["secret"])
            me = (await caller.get("/v1/me")).json()
            running = caller.start("POST", CHAT, chat_body(stream=True))
            await running.until(lambda each: bool(each.parts))
            elsewhere = Directory(here._config, here._store, clock_s=here._clock_s)
            await elsewhere.load()
            await revoke(elsewhere, made.json()["id"], me["credential"]["id"])
            ms = ALONE_MS - 1
            await epochs.look()
            assert (await caller.get("/v1/me")).status == 200
            assert len(home.house.live) == 1
            ms = ALONE_MS
            await epochs.look()
            assert (await caller.get("/v1/me")).status in {401, 403}
            assert (await caller.chat()).status in {401, 403}
            *_, fault, last = (await running.end()).events()
            assert (fault["error"]["code"], last) == ("authorization_revoked", "[DONE]")
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


@pytest.mark.slow
@needs_postgres
def test_a_house_on_postgresql_and_redis_hears_of_another(
    tmp_path: Path, valkey_server: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `serve` wires it, but for executors."""

    async def nothing(*_: object) -> list[object]:
        return []

    monkeypatch.setattr(bootstrap, "deploy", nothing)

    async def heard(house: House, *, suspended: bool) -> None:
        async with asyncio.timeout(120):
            while house.directory.tenants()["acme"] is not suspended:
                await asyncio.sleep(0.01)

    async def run(settings: Settings) -> None:
        async with (
            bootstrap.opened(settings, lambda: False) as (here, _),
            bootstrap.opened(with_state_dir(settings, tmp_path / "other", {}), lambda: False) as (
                there,
                _,
            ),
        ):
            await there.directory.suspend("acme", actor="operator", reason="unpaid")
            await heard(here, suspended=True)
            await here.directory.resume("acme", actor="operator", reason="paid")
            await heard(there, suspended=False)

    with database() as url:
        settings = development(state_dir=tmp_path / "one")
        state = msgspec.structs.replace(
            settings.state,
            database_url=url,
            redis_url=RedisUrl.parse(valkey_server.url),
            gateways=2,
        )
        first = msgspec.structs.replace(settings, state=state)
        (tmp_path / "other").mkdir(mode=0o700)
        (tmp_path / "one").mkdir(mode=0o700)
        for name in ("one", "other"):
            furnish(tmp_path / name)  # the same root key in both
            (tmp_path / name / "lockgate.db").unlink()
        asyncio.run(run(first))
