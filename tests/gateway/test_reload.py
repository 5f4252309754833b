"""SIGHUP: what changes at once, what waits, and that a fault changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from gateway.reload import reload
from gateway.settings import Settings, development, load
from policies.facts import Credential, CredentialKind, Principal, Standing
from policies.verdict import Allow
from tests.gateway.inhouse import Inhouse, inhouse

EXAMPLE = (Path(__file__).parents[2] / "deploy" / "lockgate.example.toml").read_text()
NOW_S = 1_800_000_000  # after the example's price takes effect
ALICE = Principal("acme", None, "alice", "idp", Credential(CredentialKind.TOKEN, None))

Story = Callable[[Inhouse, Path, Settings], Awaitable[None]]


def lived(tmp_path: Path, story: Story) -> None:
    async def run() -> None:
        path = tmp_path / "lockgate.toml"
        path.write_text(EXAMPLE)
        async with inhouse(tmp_path / "state") as home:
            settings = await again(home, load(path, {}))
            await story(home, path, settings)

    asyncio.run(run())


async def again(home: Inhouse, settings: Settings) -> Settings:
    return await reload(home.house, settings, lambda: NOW_S)


def said(home: Inhouse, event: str) -> list[dict[str, object]]:
    return [each for each in home.logged if each["event"] == event]


def standing(home: Inhouse) -> Standing:
    found = home.house.directory.standing(ALICE)
    assert isinstance(found, Standing)
    return found


def test_plans_prices_and_issuers_change_at_once(tmp_path: Path) -> None:
    async def story(home: Inhouse, path: Path, settings: Settings) -> None:
        assert standing(home).limits["user"].rpm == 60
        assert (await home.caller().get("/v1/me")).status == 401  # the file names another issuer
        path.write_text(EXAMPLE.replace("rpm = 60,", "rpm = 7,"))
        fresh = await again(home, settings)
        assert standing(home).limits["user"].rpm == 7
        assert fresh.plans["pro"].user_limits.rpm == 7
        assert isinstance(home.house.prices.at("smollm2-135m", NOW_S), Allow)
        assert [each["kind"] for each in home.audited()][-1] == "configuration.reloaded"

    lived(tmp_path, story)


@pytest.mark.parametrize(
    ("old", "new"),
    (
        ("rpm = 60,", "rpm = -1,"),
        ("[plans.pro]", "[plans.pro]\nnonsense = 1"),
        ("output = 600_000_000", "output = 700_000_000"),  # a price in effect never changes
        ("[tenants.globex]", "[tenants.globex"),
    ),
)
def test_a_file_with_a_fault_changes_nothing_and_says_so(
    tmp_path: Path, old: str, new: str
) -> None:
    async def story(home: Inhouse, path: Path, settings: Settings) -> None:
        assert old in EXAMPLE
        path.write_text(EXAMPLE.replace(old, new, 1).replace("rpm = 600,", "rpm = 601,"))
        assert await again(home, settings) == settings
        assert standing(home).limits["tenant"].rpm == 600
        assert said(home, "configuration.refused")

    lived(tmp_path, story)


def test_a_fault_is_logged_with_what_was_expected(tmp_path: Path) -> None:
    async def story(home: Inhouse, path: Path, settings: Settings) -> None:
        path.write_text(EXAMPLE.replace("rpm = 60,", "rpm = -1,"))
        await again(home, settings)
        (fault,) = said(home, "configuration.refused")
        assert fault["path"] == "plans.pro.user_limits.rpm"
        assert "1" in str(fault["expected"])

    lived(tmp_path, story)


def test_classes_change_at_once_and_the_executor_is_told(tmp_path: Path) -> None:
    async def story(home: Inhouse, path: Path, settings: Settings) -> None:
        assert [each.ttft_ms for each in home.echo.terms] == [500, 2000, None]
        path.write_text(EXAMPLE.replace("ttft_ms = 2000", "ttft_ms = 1500"))
        await again(home, settings)
        assert [each.ttft_ms for each in home.echo.terms] == [500, 1500, None]
        assert home.house.classes.named["interactive"].ttft_ms == 1500
        assert said(home, "configuration.waiting") == []
        path.write_text(EXAMPLE.replace("reserved = 0.2", "reserved = 0.9"))
        await again(home, settings)
        assert home.echo.terms[0].reserved == 0.2

    lived(tmp_path, story)


def test_what_only_a_start_can_change_is_named(tmp_path: Path) -> None:
    async def story(home: Inhouse, path: Path, settings: Settings) -> None:
        path.write_text(EXAMPLE.replace("drain_s = 120", "drain_s = 121"))
        await again(home, settings)
        (waiting,) = said(home, "configuration.waiting")
        assert waiting["reason"] == "at the next start: listen"

    lived(tmp_path, story)


def test_development_mode_has_nothing_to_read(tmp_path: Path) -> None:
    async def run() -> None:
        async with inhouse(tmp_path / "state") as home:
            settings = development(tmp_path)
            assert await again(home, settings) is settings
            assert (await home.caller().get("/v1/me")).status == 200

    asyncio.run(run())
