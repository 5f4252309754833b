"""Budgets with a till, as operators set them and callers meet them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gateway.metrics_till import OUTCOMES, TillGauges
from gateway.settings.facts import budget as fact
from gateway.settings.load import parse
from gateway.tempo_start import Common, gauges_of, open_tempo, tell_unused
from policies.facts import Budget
from policies.outage import Trouble
from policies.till import NANO_USD_BELOW, Seen
from tenants.tempo import TempoAsk
from tenants.tempo.link import Failed
from tenants.till import DrawAsk, Dry, MemoryTills
from tenants.till.front import Front
from tests.gateway.inhouse import PLAN, Inhouse
from tests.gateway.test_admin import problem
from tests.gateway.test_line import lived
from tests.gateway.test_settings import TEXT, faults_of
from tests.gateway.test_tempo_start import with_redis

BUDGETS = "/v1/admin/budgets"
HOT = {"tenant": "acme", "usd": "1", "reason": "busy", "till": True}


class Tills(MemoryTills):
    """With a word for what went wrong, as a server has."""

    fails: Trouble | None = None

    async def draw(self, ask: DrawAsk) -> tuple[Seen, ...] | Dry:
        if self.fails is not None:
            raise Failed(self.fails)
        return await super().draw(ask)


def front() -> Front:
    time = iter(range(10**9))
    return Front(Tills(lambda: next(time)), lambda: next(time))


def test_who_may_see_what_is_set_aside(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        operator, admin = home.operator(), home.operator("acme/admin")
        assert (await operator.post(BUDGETS, HOT)).status == 200
        assert (await home.caller().chat()).status == 200
        (row,) = (await operator.get(BUDGETS, "tenant=acme")).json()["budgets"]
        assert row["till"] is True
        assert row["floated_usd"] == "0.062500000"
        (theirs,) = (await admin.get(BUDGETS)).json()["budgets"]
        assert theirs == {name: value for name, value in row.items() if name != "floated_usd"}
        (mine,) = (await home.caller().get("/v1/me")).json()["budgets"]
        assert mine["till"] is True
        assert mine["remaining_usd"] == row["remaining_usd"] > "0.99"
        assert (await operator.get("/v1/admin/status")).json()["till"] == "ready"
        assert (await operator.post(BUDGETS, HOT | {"till": False})).status == 200
        assert (await home.caller().chat()).status == 200
        (row,) = (await operator.get(BUDGETS, "tenant=acme")).json()["budgets"]
        assert row["till"] is False
        assert "floated_usd" not in row

    lived(tmp_path, story, till=front())


def test_a_till_refuses_as_the_budget_does(tmp_path: Path) -> None:
    till = front()

    async def story(home: Inhouse) -> None:
        await home.operator().post(BUDGETS, HOT | {"usd": "0.000001"})
        first, again = [await home.caller().chat(max_tokens=64) for _ in range(2)]
        assert first.status == again.status == 429
        ids = {"x-request-id"}
        assert [{k: v for k, v in each.headers.items() if k not in ids} for each in (first,)] == [
            {k: v for k, v in each.headers.items() if k not in ids} for each in (again,)
        ]
        assert first.json()["error"]["code"] == "insufficient_quota"
        assert first.json()["error"] | {"request_id": ""} == again.json()["error"] | {
            "request_id": ""
        }
        assert till.outcomes == {"short": 1, "dry": 1}

    lived(tmp_path, story, till=till)


@pytest.mark.parametrize(
    ("more", "says"),
    (
        ({"mode": "soft"}, "refuses"),
        ({"mode": "shadow"}, "refuses"),
        ({"hard": False}, "refuses"),
        ({"window": "rolling_24h"}, "rolling"),
        ({"usd": str(NANO_USD_BELOW // 10**9)}, "less than"),
        ({"till": "yes"}, "till"),
    ),
)
def test_where_there_can_be_none(tmp_path: Path, more: dict[str, object], says: str) -> None:
    async def story(home: Inhouse) -> None:
        told = problem(await home.operator().post(BUDGETS, HOT | more), 400)
        assert says in str(told["detail"])

    lived(tmp_path, story, till=front())


def test_without_a_redis_there_is_none_and_what_was_set_is_decided_without(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        told = problem(await home.operator().post(BUDGETS, HOT), 400)
        assert told["param"] == "till"
        assert "redis_url" in str(told["detail"])
        assert (await home.caller().chat()).status == 200
        (mine,) = (await home.caller().get("/v1/me")).json()["budgets"]
        assert mine["till"] is False
        assert (await home.operator().get("/v1/admin/status")).json()["till"] == "none"
        logged: list[dict[str, object]] = []
        tell_unused(
            home.house.directory, None, lambda event, **more: logged.append({"event": event} | more)
        )
        tell_unused(home.house.directory, front(), lambda *_, **__: pytest.fail("it is used"))
        assert [(each["event"], each["count"]) for each in logged] == [("till.unused", 2)]

    lived(tmp_path, story, plan=replace(PLAN, budget=Budget(10**9, till=True)))


def test_a_till_that_fails_is_told_and_refuses_nobody(tmp_path: Path) -> None:
    till = front()

    async def story(home: Inhouse) -> None:
        await home.operator().post(BUDGETS, HOT)
        assert (await home.caller(None).get("/ready")).json() == {"status": "ready"}
        till.tills.fails = Trouble.READ_ONLY  # type: ignore[attr-defined]
        for _ in range(3):
            assert (await home.caller().chat()).status == 200
        ready = (await home.caller(None).get("/ready")).json()
        assert ready == {"status": "ready", "till": "degraded"}
        assert (await home.operator().get("/v1/admin/status")).json()["till"] == "degraded"
        registry = CollectorRegistry()
        registry.register(TillGauges(till, lambda: True))
        text = generate_latest(registry).decode()
        assert "lockgate_till_degraded 1.0" in text
        assert 'lockgate_till_requests_total{outcome="unasked"} 3.0' in text
        assert 'lockgate_till_failures_total{reason="read_only"} 1.0' in text
        assert set(till.outcomes) <= set(OUTCOMES)

    lived(tmp_path, story, till=till)


def test_only_where_several_gateways_write_one_database_there_are_tills(tmp_path: Path) -> None:
    async def opened(database_url: str) -> Common:
        settings = with_redis(tmp_path, f"unix://{tmp_path}/nothing")
        state = msgspec.structs.replace(settings.state, database_url=database_url)
        async with open_tempo(
            msgspec.structs.replace(settings, state=state),
            clock_ms=lambda: 0,
            name=str,
            log=lambda *_, **__: None,
        ) as common:
            return common

    async def test() -> None:
        assert (await opened("sqlite:///x.db")).till is None
        assert (await opened("postgresql://h/d")).till is not None

    asyncio.run(test())


def test_a_redis_that_is_lost_is_lost_to_both(tmp_path: Path) -> None:
    """Whichever hears of it first."""
    logged: list[str] = []

    async def test() -> None:
        settings = with_redis(tmp_path, f"unix://{tmp_path}/nothing")
        state = msgspec.structs.replace(settings.state, database_url="postgresql://h/d")
        async with open_tempo(
            msgspec.structs.replace(settings, state=state),
            clock_ms=lambda: 0,
            name=str,
            log=lambda event, **_: logged.append(event),
        ) as common:
            for number in range(4):
                await common.tempo.admit(TempoAsk(f"r{number}", "acme", (), 1, 1))
            assert common.tempo.trouble is not None
            assert common.till is not None
            assert common.till.trouble is None
            registry = CollectorRegistry()
            for gauges in gauges_of(common.tempo, common.till):
                registry.register(gauges)
            assert "lockgate_till_degraded 1.0" in generate_latest(registry).decode()

    asyncio.run(test())
    assert sorted(logged) == ["tempo.degraded", "till.degraded"]


REDIS = ('redis_url    = ""', 'redis_url    = "redis://127.0.0.1"')
POSTGRES = ('"sqlite:///var/lockgate.db"', '"postgresql://h/d"')
PRO = ("till = false }", "till = true }")
TAGGED = (
    "[webhooks]",
    '[tenants.acme.tags."env=prod"]\nbudget = { usd = "5", mode = "hard", till = true }\n\n[webhooks]',
)


def text(*changes: tuple[str, str]) -> str:
    made = TEXT
    for old, new in changes:
        assert made.count(old) == 1, old
        made = made.replace(old, new)
    return made


def test_a_file_may_name_one_where_it_has_what_it_needs() -> None:
    settings = parse(text(PRO, REDIS, POSTGRES), "test")
    found = settings.plans["pro"].budget
    assert found is not None
    assert fact(found).till


@pytest.mark.parametrize(
    ("changes", "path", "says"),
    (
        ((PRO,), "plans.pro.budget.till", "no redis_url"),
        ((PRO, POSTGRES), "plans.pro.budget.till", "no redis_url"),
        ((PRO, REDIS), "plans.pro.budget.till", "one gateway"),
        ((PRO, REDIS, POSTGRES, ('mode = "hard"', 'mode = "soft"')), "plans.pro.budget.till", "soft"),
        (
            (PRO, REDIS, POSTGRES, ('usd = "500.00"', 'usd = "9000000.00"')),
            "plans.pro.budget.till",
            "cannot count",
        ),
        (
            (REDIS, POSTGRES, ("hard = true }", "hard = true, till = true }")),
            "tenants.acme.projects.search.budget.till",
            "rolling",
        ),
        (
            (TAGGED,),
            "tenants.acme.tags.env=prod.budget.till",
            "no redis_url",
        ),
        (
            (TAGGED, REDIS),
            "tenants.acme.tags.env=prod.budget.till",
            "one gateway",
        ),
        (
            (("hard = true }", "hard = true, till = true }"), ("rolling_24h", "total")),
            "tenants.acme.projects.search.budget.till",
            "no redis_url",
        ),
    ),
)  # fmt: skip
def test_a_file_that_has_not_is_refused(
    changes: tuple[tuple[str, str], ...], path: str, says: str
) -> None:
    (fault,) = faults_of(text(*changes))
    assert fault.path == path
    assert says in fault.wrong
    assert "Leave till out" in fault.fix
