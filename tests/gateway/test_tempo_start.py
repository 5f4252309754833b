"""Which tempo a house has, and that an outage of it is told: in the log once, in /ready, in the metrics."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gateway.cli.doctor import redis_facts
from gateway.settings import Settings, development
from gateway.settings.units import RedisUrl
from gateway.tempo_start import gauges_of, open_tempo
from policies.verdict import Allow
from tenants.tempo import MemoryTempo, Tempo
from tenants.tempo.look import look
from tests.gateway.inhouse import inhouse
from tests.servers_valkey import Valkey, valkey
from tests.tenants.test_tempo_outage import ask

LONGEST_ROUNDS = 2_000


def with_redis(folder: Path, url: str, gateways: int = 1) -> Settings:
    settings = development(state_dir=folder)
    state = msgspec.structs.replace(
        settings.state, redis_url=RedisUrl.parse(url), gateways=gateways
    )
    return msgspec.structs.replace(settings, state=state)


class Time:
    """Runs ahead by what is asked for: pauses need not be waited for."""

    ms = 0

    def __call__(self) -> int:
        self.ms += 100
        return self.ms


def opening(settings: Settings, logged: list[dict[str, object]]) -> object:
    return open_tempo(
        settings,
        clock_ms=Time(),
        name=lambda text: text,
        log=lambda event, **fields: logged.append({"event": event, **fields}),
    )


def metrics(tempo: Tempo) -> str:
    registry = CollectorRegistry()
    for gauges in gauges_of(tempo):
        registry.register(gauges)
    return generate_latest(registry).decode()


def test_without_a_url_it_is_in_memory_and_has_no_metrics(tmp_path: Path) -> None:
    async def test() -> None:
        async with opening(development(state_dir=tmp_path), []) as (tempo, *_):  # type: ignore[attr-defined]
            assert isinstance(tempo, MemoryTempo)
            assert metrics(tempo) == ""

    asyncio.run(test())


def test_a_redis_that_is_not_there_refuses_no_start_and_is_told_once(tmp_path: Path) -> None:
    logged: list[dict[str, object]] = []

    async def test() -> None:
        settings = with_redis(tmp_path, f"unix://lg:hunter2@{tmp_path}/nothing", gateways=2)
        async with (
            opening(settings, logged) as (tempo, *_),  # type: ignore[attr-defined]
            inhouse(tmp_path / "house", tempo=tempo) as home,
        ):
            for number in range(3):
                assert isinstance(await tempo.admit(ask(f"a{number}")), Allow)
                await tempo.release(f"a{number}", 1)
            answer = await home.caller().chat("hello", max_tokens=8)
            assert answer.status == 200
            ready = await home.caller(None).get("/ready")
            assert (ready.status, ready.json()) == (200, {"status": "ready", "tempo": "degraded"})
            status = await home.operator().get("/v1/admin/status")
            assert status.json()["tempo"] == "degraded"
            told = metrics(tempo)
            assert "lockgate_tempo_degraded 1.0" in told
            assert 'lockgate_tempo_failures_total{reason="unreachable"} ' in told
            assert "lockgate_tempo_decided_alone_total 4.0" in told
            await home.at_rest()

    asyncio.run(test())
    assert logged == [{"event": "tempo.degraded", "reason": "unreachable"}]
    assert "hunter2" not in json.dumps(logged)


@pytest.mark.slow
def test_the_line_goes_by_redis_and_an_outage_ends_by_itself(tmp_path: Path) -> None:
    logged: list[dict[str, object]] = []

    async def test(server: Valkey) -> None:
        async with (
            opening(with_redis(tmp_path, server.url), logged) as (tempo, *_),  # type: ignore[attr-defined]
            inhouse(tmp_path / "house", tempo=tempo) as home,
        ):
            while tempo.trouble is not None:  # a busy machine may have been late
                await asyncio.sleep(0.01)
            answer = await home.caller().chat("hello", max_tokens=8)
            assert answer.status == 200
            assert any(key.startswith("{t:acme}b:tenant:") for key in server.lives())
            assert all(ttl_ms > 0 for ttl_ms in server.lives().values())
            server.stop()
            while tempo.trouble is None:
                answer = await home.caller().chat("hello", max_tokens=8)
                assert answer.status == 200
            server.start()
            for _ in range(LONGEST_ROUNDS):
                if tempo.trouble is None:
                    break
                await asyncio.sleep(0.01)
            ready = await home.caller(None).get("/ready")
            assert ready.json() == {"status": "ready"}
            assert (await home.caller().chat("hello", max_tokens=8)).status == 200
            await home.at_rest()

    with valkey() as server:
        asyncio.run(test(server))
    assert [each["event"] for each in logged][-2:] == ["tempo.degraded", "tempo.restored"]


@pytest.mark.slow
def test_doctor_says_whether_it_answers_and_what_it_throws_away(tmp_path: Path) -> None:
    with valkey() as server:
        seen = redis_facts(with_redis(tmp_path, server.url))
        assert seen is not None
        assert (seen.trouble, seen.policy, seen.limited) == (None, "noeviction", False)
        server.say("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        server.say("CONFIG", "SET", "maxmemory", "100mb")
        seen = redis_facts(with_redis(tmp_path, server.url))
        assert seen is not None
        assert (seen.policy, seen.limited) == ("allkeys-lru", True)
        server.say("REPLICAOF", "127.0.0.1", "1")
        assert asyncio.run(look(server.url)).trouble == "read_only"
        assert server.lives() == {}
    gone = redis_facts(with_redis(tmp_path, f"unix://lg:hunter2@{tmp_path}/nothing"))
    assert gone is not None
    assert gone.trouble == "unreachable"
    assert gone.url == f"unix://lg@{tmp_path}/nothing"
    assert redis_facts(development(state_dir=tmp_path)) is None
