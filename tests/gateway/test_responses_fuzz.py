"""Any body at all to /v1/responses: an answer of OpenAI's type or a refusal, and nothing left behind."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from executor.echo import EchoExecutor
from tests.gateway.inhouse import MODEL, Inhouse, inhouse
from tests.gateway.response_kit import RESPONSES, events_of, followed, read
from tests.gateway.test_api_fuzz import VALUES, WORDS
from tests.gateway.test_responses_parsing import RIGHT, WRONG

pytestmark = pytest.mark.slow

PARTS = st.fixed_dictionaries(
    {"type": st.sampled_from(("input_text", "output_text", "text", "input_file", "refusal"))},
    optional={"text": WORDS | VALUES, "file_id": WORDS},
)
ITEMS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(
            ("message", "function_call", "function_call_output", "reasoning", "item_reference")
        ),
        "role": st.sampled_from(("user", "assistant", "system", "developer", "tool")),
        "content": WORDS | st.lists(PARTS, max_size=3) | VALUES,
        "call_id": WORDS,
        "name": WORDS,
        "arguments": WORDS | VALUES,
        "output": WORDS | st.lists(PARTS, max_size=2),
    },
)
KNOWN = [(name, value) for fields, _ in WRONG for name, value in fields.items()]
KNOWN += [(name, value) for fields in RIGHT for name, value in fields.items()]
NAMES = sorted({name for name, _ in KNOWN})
FIELDS = [
    (name, value) for name, value in KNOWN if isinstance(value, dict | list | str | int | None)
]


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": MODEL,
        "input": draw(WORDS | st.lists(ITEMS, max_size=4)),
        "stream": draw(st.booleans()),
    }
    body |= dict(draw(st.lists(st.sampled_from(FIELDS), max_size=3)))
    for name in draw(st.lists(st.sampled_from(NAMES), max_size=1)):
        body[name] = draw(VALUES)
    return body


def search(folder: Path, **options: Any) -> None:
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        echo = EchoExecutor(context_tokens=320, kv_blocks=256)
        home: Inhouse = runner.run(stack.enter_async_context(inhouse(folder, echo=echo)))
        seen: set[int] = set()

        async def ask(body: dict[str, Any]) -> None:
            answer = await home.caller().post(RESPONSES, json.dumps(body).encode())
            seen.add(answer.status)
            if answer.status != 200:
                assert answer.status in {400, 404}, answer.body
                assert isinstance(answer.error["code"], str)
            elif answer.headers["content-type"] == "application/json":
                read(answer)
            else:
                assert followed(events_of(answer.body)).status in {"completed", "incomplete"}
            async with asyncio.timeout(60):
                while home.house.stored.running:  # what was asked for in the background
                    await asyncio.sleep(0)
            await home.at_rest()
            assert not [entry for entry in home.logged if entry["event"] == "failed"]

        @settings(deadline=None, suppress_health_check=list(HealthCheck), database=None, **options)
        @given(bodies())
        def check(body: dict[str, Any]) -> None:
            runner.run(ask(body))

        try:
            check()
            assert seen >= {200, 400}
        finally:
            runner.run(stack.aclose())


def test_any_body_is_answered_or_refused(tmp_path: Path) -> None:
    search(tmp_path, max_examples=120, derandomize=True)


@pytest.mark.long
def test_any_body_is_answered_or_refused_at_length(tmp_path: Path) -> None:
    search(tmp_path, max_examples=3000)
