"""What a caller is shown of a model holds for this caller."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.app import GENERATING
from gateway.text.sandbox import TemplateFault
from policies.classes import ServiceClass
from policies.facts import Limits
from tests.gateway.inhouse import MODEL, PLAN, Inhouse
from tests.gateway.test_line import lived

MODELS = "/v1/models"


async def shown(home: Inhouse, who: str = "acme/alice") -> dict[str, Any]:
    view: dict[str, Any] = (await home.caller(who).get(f"{MODELS}/{MODEL}")).json()
    assert (await home.caller(who).get(MODELS)).json()["data"] == [view]
    return view


async def fits(home: Inhouse, prompt: int, output: int) -> bool:
    body = {"model": MODEL, "prompt": [65] * prompt, "max_tokens": output}
    answer = await home.caller().post("/v1/completions", body)
    assert answer.status in {200, 400}
    return answer.status == 200


def test_the_limits_are_those_that_hold(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        view = await shown(home)
        prompt, output = view["max_prompt_tokens"], view["max_output_tokens"]
        assert (prompt, output) == (100, 30)
        assert view["max_model_len"] == 4096
        assert await fits(home, prompt, output)
        assert not await fits(home, prompt + 1, output)
        assert not await fits(home, prompt, output + 1)

    limits = replace(PLAN.limits, max_prompt_tokens=100, max_output_tokens=50)
    plan = replace(PLAN, limits=limits, user_limits=Limits(max_output_tokens=30))
    lived(tmp_path, story, plan=plan)


def test_without_a_plans_limits_the_context_holds(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        view = await shown(home)
        assert (view["max_prompt_tokens"], view["max_output_tokens"]) == (4095, 4095)
        assert await fits(home, 4095, 1)
        assert not await fits(home, 4096, 1)

    lived(tmp_path, story)


def test_the_tiers_are_those_that_an_answer_names(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        view = await shown(home)
        assert view["service_classes"] == ["interactive", "urgent"]
        assert view["service_tiers"] == ["default", "priority"]
        told = set()
        for tier in ("auto", "default", "flex", "scale", "priority", "fast"):
            answer = await home.caller().chat("x", service_tier=tier, max_tokens=1)
            told.add(answer.json()["service_tier"])
        assert told == set(view["service_tiers"])

    classes = (ServiceClass("interactive"), ServiceClass("urgent", reserved=0.3))
    lived(tmp_path, story, plan=replace(PLAN, classes=("interactive", "urgent")), classes=classes)


def test_the_endpoints_are_those_that_ask_a_model(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        view = await shown(home)
        assert view["endpoints"] == sorted(family.route for family in GENERATING)
        assert view["capabilities"] == {"tools": True, "structured_outputs": True}
        home.echo.fail()
        loading = await shown(home)
        assert (loading["ready"], loading["endpoints"]) == (False, [])

    lived(tmp_path, story)


def test_a_model_whose_template_is_broken_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: object) -> object:
        raise TemplateFault("no")

    async def story(home: Inhouse) -> None:
        monkeypatch.setattr(type(home.house.deployments[MODEL]), "reading", broken)
        view = await shown(home)
        assert (view["ready"], view["endpoints"]) == (True, [])
        assert view["capabilities"] == {"tools": False, "structured_outputs": False}

    lived(tmp_path, story)


def test_anthropics_clients_are_shown_theirs(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        asker = home.caller().with_headers(anthropic_version="2023-06-01")
        page = (await asker.get(MODELS)).json()
        (model,) = page["data"]
        assert (page["first_id"], page["last_id"], page["has_more"]) == (MODEL, MODEL, False)
        assert (await asker.get(f"{MODELS}/{MODEL}")).json() == model
        assert (model["type"], model["max_input_tokens"]) == ("model", 4095)
        absent = await asker.get(f"{MODELS}/absent")
        assert (absent.status, absent.json()["error"]["type"]) == (404, "not_found_error")
        assert absent.headers["request-id"] == absent.headers["x-request-id"]

    lived(tmp_path, story)
