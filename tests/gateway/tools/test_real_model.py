"""Tools with the default model behind the whole line: what it must call it calls, as the schema says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from tests.gateway.inhouse import Inhouse
from tests.gateway.tools.test_chat import assert_same, both
from tests.gateway.with_model import with_model

pytestmark = pytest.mark.slow

BOOK: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "nights": {"type": "integer", "minimum": 1, "maximum": 30},
        "board": {"enum": ["none", "half", "full"]},
    },
    "required": ["city", "nights", "board"],
}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "book_room", "description": "Books a room.", "parameters": BOOK},
    },
    {"type": "function", "function": {"name": "stop"}},
]
SCHEMAS: dict[str, dict[str, Any]] = {
    "book_room": BOOK,
    "stop": {"type": "object", "maxProperties": 0},
}


def lived(tmp_path: Path, story: Callable[[Inhouse], Awaitable[None]]) -> None:
    async def run() -> None:
        async with with_model(tmp_path) as home:
            await story(home)

    asyncio.run(run())


def check(calls: list[Any]) -> None:
    for call in calls:
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        jsonschema_rs.validate(SCHEMAS[name], json.loads(arguments))


def test_what_must_be_called_is_called_and_keeps_its_schema(tmp_path: Path) -> None:
    """Twenty seeds at temperature 1, streamed as whole."""
    named = {"type": "function", "function": {"name": "book_room"}}

    async def one(home: Inhouse, seed: int) -> set[str]:
        choice: Any = named if seed % 4 == 0 else "required"
        fields = {"tools": TOOLS, "tool_choice": choice, "seed": seed, "temperature": 1.0}
        whole, events = await both(home, **fields, max_tokens=900)
        (said,) = whole["choices"]
        calls = said["message"]["tool_calls"]
        assert said["message"]["content"] is None
        assert said["finish_reason"] == "tool_calls"
        assert len(calls) == 1 if choice is named else 1 <= len(calls) <= 16
        check(calls)
        assert_same(whole, events)
        return {call["function"]["name"] for call in calls}

    async def story(home: Inhouse) -> None:
        names = set.union(*await asyncio.gather(*(one(home, seed) for seed in range(20))))
        assert "book_room" in names

    lived(tmp_path, story)


def test_one_that_is_cut_ends_length_in_both_modes(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        for room in (1, 2, 3, 4, 16, 24):
            fields = {"tools": TOOLS, "tool_choice": "required", "seed": 1, "max_tokens": room}
            whole, events = await both(home, **fields)
            assert whole["choices"][0]["finish_reason"] == "length"
            assert not whole["choices"][0]["message"]["content"]
            assert_same(whole, events)

    lived(tmp_path, story)


def test_left_to_itself_it_answers_or_calls_and_the_two_modes_agree(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        for seed in range(6):
            fields = {"tools": TOOLS, "seed": seed, "max_tokens": 80, "logprobs": True}
            whole, events = await both(home, **fields)
            (said,) = whole["choices"]
            content = said["message"]["content"] or ""
            assert "".join(token["token"] for token in said["logprobs"]["content"]) == content
            assert_same(whole, events)

    lived(tmp_path, story)


def test_a_schema_that_cannot_be_kept_is_the_clients_error(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        bad = {
            "name": "bad",
            "parameters": {"type": "object", "properties": {"a": {"type": "hiccup"}}},
        }
        tools = [*TOOLS, {"type": "function", "function": bad}]
        answer = await home.caller().chat("hi", tools=tools, tool_choice="required")
        assert (answer.status, answer.error["code"]) == (400, "invalid_grammar")
        assert answer.error["param"] == "tools[2].function.parameters"
        assert (await home.caller().chat("hi", tools=tools, max_tokens=4)).status == 200

    lived(tmp_path, story)
