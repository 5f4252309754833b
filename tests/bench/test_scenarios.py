"""The scenarios' own logic: no fault on a right server, the right fault on each wrong one."""

import asyncio

import pytest

from tests.bench import scenarios
from tests.bench.fake import Fake, Flaws, running

pytestmark = pytest.mark.slow  # a developer's tools; the whole run has them

RIGHT = Flaws()


def aborted(flaws: Flaws = RIGHT) -> scenarios.Aborted:
    async def go() -> scenarios.Aborted:
        async with running(Fake(flaws)) as site:
            return await scenarios.streams(site, count=20, input_tokens=3, output_tokens=12)

    return asyncio.run(go())


def spent(flaws: Flaws = RIGHT) -> scenarios.Spent:
    async def go() -> scenarios.Spent:
        async with running(Fake(flaws, holds_until=40)) as site:
            return await scenarios.budget(site, asked=40, fit=7, input_tokens=3, output_tokens=5)

    return asyncio.run(go())


def test_streams_that_hang_up_leave_nothing_and_are_billed() -> None:
    seen = aborted()
    assert seen.faults == ()
    assert (seen.aborted, seen.completed) == (6, 14)
    assert seen.billed.output_tokens == seen.generated_tokens
    assert seen.billed.output_tokens > seen.heard_tokens


def test_a_hold_left_over_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenarios, "IDLE_S_MAX", 0.2)
    assert "20 open_holds left over" in aborted(Flaws(leaks_holds=True)).faults


def test_tokens_billed_and_never_generated_are_found() -> None:
    assert any("generated" in fault for fault in aborted(Flaws(overbills=1)).faults)


def test_exactly_as_many_are_admitted_as_fit() -> None:
    seen = spent()
    assert seen.faults == ()
    assert (seen.admitted, seen.refused) == (7, 33)
    assert seen.refusals == {"429 insufficient_quota": 33}


def test_a_budget_that_lets_all_pass_is_found() -> None:
    seen = spent(Flaws(admits_anything=True))
    assert "40 admitted, 7 fit" in seen.faults


def test_a_budget_whose_settling_differs_from_its_price_is_found() -> None:
    assert spent(Flaws(overbills=2)).faults
