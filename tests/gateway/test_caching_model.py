"""With a real model behind the house: who asks the same again finds it, and nobody else does."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.inhouse import Caller
from tests.gateway.with_model import with_model

pytestmark = pytest.mark.slow

QUESTION = "Count the boats: " + ", ".join(f"boat {n} waits at gate {n % 7}" for n in range(70))


async def asked(caller: Caller, **named: object) -> tuple[str, int, int]:
    """What it says, how much of the prompt was cached, and how long that is."""
    answer = await caller.chat(QUESTION, temperature=0, max_tokens=8, **named)
    assert answer.status == 200, answer.body
    told: dict[str, Any] = answer.json()
    usage = told["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return told["choices"][0]["message"]["content"], cached, usage["prompt_tokens"]


def test_the_same_user_finds_it_again_and_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with with_model(tmp_path) as home:
            alice, bob = home.caller("acme/alice"), home.caller("acme/bob")
            text, cached, total = await asked(alice)
            assert total >= 512
            assert cached == 0
            again, found, same = await asked(alice)
            assert (again, same) == (text, total)
            assert total - 32 < found < total  # all of its full blocks
            for other in (
                asked(bob),
                asked(home.caller("globex/carol")),
                asked(alice, safety_identifier="customer"),
            ):
                assert await other == (text, 0, total)
            assert await asked(alice, safety_identifier="customer") == (text, found, total)
            record = [each for each in home.audited() if each["kind"] == "request.completed"]
            assert [each["cached_tokens"] for each in record] == [0, found, 0, 0, 0, found]

    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # `-P`: this tree's executor
    asyncio.run(story())
