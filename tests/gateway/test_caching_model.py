"""With a real model behind the house: who asks the same again finds it, and nobody else does."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from executor.client import ExecutorProcess
from gateway.caching_start import enforce
from tests.gateway.inhouse import CACHES, MODEL, Caller, inhouse
from tests.models import default_model_path

pytestmark = pytest.mark.slow

QUESTION = "Count the boats: " + ", ".join(f"boat {n} waits at gate {n % 7}" for n in range(70))
READY_S = 120


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
    command = [sys.executable, "-P", "-m", "executor", "--model", str(default_model_path())]
    command += ["--device", "cpu", "--numerics", "invariant", "--kv-memory", str(768 * 2**20)]
    command += ["--context-tokens", "2048", "--threads", "1"]

    async def story() -> None:
        with TemporaryDirectory() as folder:  # a socket's path is short
            async with (
                ExecutorProcess(command, Path(folder)) as executor,
                inhouse(tmp_path) as home,
            ):
                await executor.wait_ready(READY_S)
                home.house.deployments[MODEL].executor = executor
                await enforce(home.house, CACHES)
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
