"""Tools at /v1/responses: called as items, answered by items, in one conversation.  API.md §1, §2 (40, 41, 44)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from executor.contract import Submit
from executor.echo import EchoExecutor
from executor.echo_card import IM_START
from tests.gateway.inhouse import CHAT, Inhouse, chat_body
from tests.gateway.response_kit import RESPONSES, asked, events_of, followed, read
from tests.gateway.test_line import lived

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "name": "weather",
        "description": "Now.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
    {"type": "function", "name": "time", "strict": False},
]
CALLS = (
    '<tool_call>{"name": "weather", "arguments": {"city": "Zürich"}}</tool_call>'
    '<tool_call>{"name": "time", "arguments": {}}</tool_call>'
)


def says(text: str) -> EchoExecutor:
    return EchoExecutor(says=lambda _: tuple(text.encode()))


def plain(body: dict[str, Any]) -> dict[str, Any]:
    """Without what is drawn anew each time."""
    return {
        **{name: body[name] for name in ("status", "usage", "tools", "tool_choice")},
        "output": [
            {name: value for name, value in item.items() if name not in {"id", "call_id"}}
            for item in body["output"]
        ],
    }


def test_a_call_is_an_item_whole_and_streamed(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        fields = {"tools": TOOLS, "max_output_tokens": 999}
        whole = read(await home.caller().post(RESPONSES, asked(**fields)))
        text, first, second = whole["output"]
        assert text["content"][0]["text"] == "Let me see."
        assert (first["type"], first["name"]) == ("function_call", "weather")
        assert json.loads(first["arguments"]) == {"city": "Zürich"}
        assert (second["name"], second["arguments"]) == ("time", "{}")
        assert first["call_id"] != second["call_id"]
        assert first["id"].startswith("fc_")
        assert whole["status"] == "completed"
        streamed = await home.caller().post(RESPONSES, asked(stream=True, **fields))
        found = followed(events_of(streamed.body))
        assert plain(found.last) == plain(whole)
        assert [item["type"] for item in found.output] == [
            *("message", "function_call", "function_call")
        ]

    lived(tmp_path, story, echo=says("Let me see." + CALLS))


def test_a_call_that_is_cut_short_is_not_whole(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        fields = {"tools": TOOLS, "max_output_tokens": len("<tool_call>") + 44}
        body = read(await home.caller().post(RESPONSES, asked(**fields)))
        assert body["status"] == "incomplete"
        assert body["output"][-1]["status"] == "incomplete"
        fields = {"tools": TOOLS, "stop": ["rich"], "max_output_tokens": 999}
        body = read(await home.caller().post(RESPONSES, asked(**fields)))
        assert (body["status"], body["output"][-1]["status"]) == ("completed", "incomplete")
        streamed = await home.caller().post(RESPONSES, asked(stream=True, **fields))
        found = followed(events_of(streamed.body))
        assert plain(found.last) == plain(body)
        assert [item["status"] for item in found.output] == ["incomplete"]

    lived(tmp_path, story, echo=says(CALLS))


def test_who_wants_one_call_gets_one_and_who_wants_none_gets_none(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        one = asked(tools=TOOLS, parallel_tool_calls=False, max_output_tokens=999)
        body = read(await home.caller().post(RESPONSES, one))
        assert [item["name"] for item in body["output"]] == ["weather"]
        none = asked(tools=TOOLS, tool_choice="none", max_output_tokens=999)
        body = read(await home.caller().post(RESPONSES, none))
        assert [item["type"] for item in body["output"]] == ["message"]

    lived(tmp_path, story, echo=says(CALLS))


@pytest.mark.parametrize("kept", (False, True))
def test_what_a_call_gave_is_read_as_the_same_chat(tmp_path: Path, kept: bool) -> None:
    """Sent again as it came, or gone on from."""
    prompts: list[tuple[int, ...]] = []

    def heard(job: Submit) -> tuple[int, ...]:
        prompts.append(job.prompt)
        return tuple(b"I look." + CALLS.encode()) if len(prompts) == 1 else tuple(b"Warm.")

    async def story(home: Inhouse) -> None:
        caller, fields = home.caller(), {"tools": TOOLS, "max_output_tokens": 999}
        first = read(await caller.post(RESPONSES, asked("How warm?", store=kept, **fields)))
        calls = first["output"][1:]
        given = [
            {"type": "function_call_output", "call_id": call["call_id"], "output": said}
            for call, said in zip(calls, ("7 °C", "noon"), strict=True)
        ]
        if kept:
            body = asked(given, previous_response_id=first["id"], **fields)
        else:
            body = asked(
                [{"role": "user", "content": "How warm?"}, *first["output"], *given], **fields
            )
        read(await caller.post(RESPONSES, body))
        chat = [
            {"role": "user", "content": "How warm?"},
            {
                "role": "assistant",
                "content": "I look.",
                "tool_calls": [
                    {
                        "id": call["call_id"],
                        "type": "function",
                        "function": {"name": call["name"], "arguments": call["arguments"]},
                    }
                    for call in calls
                ],
            },
            *(
                {"role": "tool", "tool_call_id": call["call_id"], "content": said}
                for call, said in zip(calls, ("7 °C", "noon"), strict=True)
            ),
        ]
        tools = [
            {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}
            for tool in TOOLS
        ]
        answer = await caller.post(CHAT, chat_body() | {"messages": chat, "tools": tools})
        assert answer.status == 200, answer.body
        assert prompts[1] == prompts[2]
        assert IM_START in prompts[1]

    lived(tmp_path, story, echo=EchoExecutor(says=heard))


def test_what_answers_no_call_is_refused(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        given = [{"type": "function_call_output", "call_id": "c9", "output": "x"}]
        answer = await home.caller().post(RESPONSES, asked(given, tools=TOOLS))
        assert (answer.status, answer.error["param"]) == (400, "input")
        assert "c9" in answer.error["message"]

    lived(tmp_path, story)
