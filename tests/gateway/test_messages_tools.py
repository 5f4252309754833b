"""Tools in Anthropic's form: shown, called and answered as the same chat's are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from executor.contract import Submit
from executor.echo import EchoExecutor
from executor.echo_card import IM_START
from tests.gateway.inhouse import Inhouse, chat_body
from tests.gateway.test_blocks import events_of, put_together
from tests.gateway.test_line import lived
from tests.gateway.test_messages import MESSAGES, Body, body, refused

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [{"name": "weather", "description": "Now.", "input_schema": SCHEMA}, {"name": "time", "input_schema": {}}]  # fmt: skip
CALLS = (
    '<tool_call>{"name": "weather", "arguments": {"city": "Zürich"}}</tool_call>'
    '<tool_call>{"name": "time", "arguments": {}}</tool_call>'
)


def says(text: str) -> EchoExecutor:
    return EchoExecutor(says=lambda _: tuple(text.encode()))


def test_a_call_is_a_block(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        whole = (await home.caller().post(MESSAGES, body(tools=TOOLS, max_tokens=999))).json()
        text, first, second = whole["content"]
        assert text == {"type": "text", "text": "Let me see."}
        assert (first["type"], first["name"], first["input"]) == (
            "tool_use",
            "weather",
            {"city": "Zürich"},
        )
        assert (second["name"], second["input"]) == ("time", {})
        assert first["id"] != second["id"]
        assert whole["stop_reason"] == "tool_use"
        streamed = await home.caller().post(
            MESSAGES, body(tools=TOOLS, max_tokens=999, stream=True)
        )
        told = put_together(events_of(streamed.body))
        for each in (whole, told):
            del each["id"]
            for block in each["content"]:
                block.pop("id", None)
        assert told == whole

    lived(tmp_path, story, echo=says("Let me see." + CALLS))


def test_what_a_stop_sequence_cut_is_not_to_be_run(tmp_path: Path) -> None:
    """Its input is not whole, so nothing must look like a call without any."""

    async def story(home: Inhouse) -> None:
        asked = body(tools=TOOLS, stop_sequences=["rich"], max_tokens=999)
        told = (await home.caller().post(MESSAGES, asked)).json()
        streamed = await home.caller().post(MESSAGES, asked | {"stream": True})
        (end,) = [each for each in events_of(streamed.body) if each["type"] == "message_delta"]
        for each in (told, end["delta"]):
            assert (each["stop_reason"], each["stop_sequence"]) == ("stop_sequence", "rich")

    lived(tmp_path, story, echo=says(CALLS))


def test_who_wants_one_call_gets_one(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        choice = {"type": "auto", "disable_parallel_tool_use": True}
        asked = body(tools=TOOLS, tool_choice=choice, max_tokens=999)
        told = (await home.caller().post(MESSAGES, asked)).json()
        assert [block["name"] for block in told["content"]] == ["weather"]
        none = body(tools=TOOLS, tool_choice={"type": "none"}, max_tokens=999)
        told = (await home.caller().post(MESSAGES, none)).json()
        assert (told["content"][0]["type"], told["stop_reason"]) == ("text", "end_turn")

    lived(tmp_path, story, echo=says(CALLS))


def test_who_must_call_calls(tmp_path: Path) -> None:
    """The executor is given a grammar of the calls that there may be; the echo is trusted to keep it."""
    grammars: list[str | None] = []

    def heard(job: Submit) -> tuple[int, ...]:
        grammars.append(None if job.grammar is None else job.grammar.text)
        return tuple(CALLS.encode())

    async def story(home: Inhouse) -> None:
        named = {"type": "tool", "name": "weather"}
        for choice in ({"type": "auto"}, {"type": "any"}, named):
            asked = body(tools=TOOLS, tool_choice=choice, max_tokens=999)
            told = (await home.caller().post(MESSAGES, asked)).json()
            calls = [block["name"] for block in told["content"]]
            assert calls == (["weather"] if choice is named else ["weather", "time"])
            assert told["stop_reason"] == "tool_use"
        auto, some, one = grammars
        assert auto is None
        assert some is not None
        assert one is not None
        assert '"time' not in one.replace("\\", "")
        assert "time" in some

    lived(tmp_path, story, echo=EchoExecutor(says=heard))


def test_an_answer_has_the_shape_that_is_asked_for(tmp_path: Path) -> None:
    heard: list[Submit] = []

    def says(job: Submit) -> tuple[int, ...]:
        heard.append(job)
        return tuple(b"{}")

    async def story(home: Inhouse) -> None:
        form = {"type": "json_schema", "schema": SCHEMA}
        asked = body(output_config={"format": form, "effort": "low"})
        told = (await home.caller().post(MESSAGES, asked)).json()
        assert told["content"] == [{"type": "text", "text": "{}"}]
        alike = {"type": "json_schema", "json_schema": {"name": "output", "schema": SCHEMA}}
        await home.caller().chat("hello", response_format=alike)
        mine, chat = (job.grammar for job in heard)
        assert mine == chat
        assert mine is not None
        deep: Any = {}
        for _ in range(50):
            deep = {"a": deep}
        form = {"type": "json_schema", "schema": deep}
        answer = await home.caller().post(MESSAGES, body(output_config={"format": form}))
        error = refused(answer, 400, "invalid_request_error")
        assert error["param"] == "output_config.format"

    lived(tmp_path, story, echo=EchoExecutor(says=says))


def turns(*, result: Any = "7 °C") -> Body:
    use = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Bern"}}
    answer = {"type": "tool_result", "tool_use_id": "t1", "content": result}
    return body(
        messages=[
            {"role": "user", "content": "How warm?"},
            {"role": "assistant", "content": [{"type": "text", "text": "I look."}, use]},
            {"role": "user", "content": [answer, {"type": "text", "text": "And?"}]},
        ],
        tools=TOOLS,
    )


def test_the_model_reads_what_the_same_chat_would_show_it(tmp_path: Path) -> None:
    prompts: list[str] = []

    def noted(job: Submit) -> tuple[int, ...]:
        prompts.append(bytes(token for token in job.prompt if token < IM_START).decode())
        return (ord("x"),)

    async def story(home: Inhouse) -> None:
        for result in ("7 °C", [{"type": "text", "text": "7 °C"}]):
            told = await home.caller().post(MESSAGES, turns(result=result))
            assert told.status == 200, told.body
        call = {"name": "weather", "arguments": '{"city":"Bern"}'}
        chat = chat_body(
            messages=[
                {"role": "user", "content": "How warm?"},
                {"role": "assistant", "content": "I look.", "tool_calls": [{"id": "t1", "type": "function", "function": call}]},
                {"role": "tool", "tool_call_id": "t1", "content": "7 °C"},
                {"role": "user", "content": "And?"},
            ],
            tools=[
                {"type": "function", "function": {"name": "weather", "description": "Now.", "parameters": SCHEMA}},
                {"type": "function", "function": {"name": "time", "parameters": {}}},
            ],
            max_tokens=64,
        )  # fmt: skip
        assert (await home.caller().post("/v1/chat/completions", chat)).status == 200
        assert len(set(prompts)) == 1
        assert "7 °C" in prompts[0]

    lived(tmp_path, story, echo=EchoExecutor(says=noted))


def test_tools_are_counted_as_they_are_billed(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        asked = turns()
        counted = (await home.caller().post(MESSAGES + "/count_tokens", asked)).json()
        billed = (await home.caller().post(MESSAGES, asked)).json()["usage"]
        assert counted == {"input_tokens": billed["input_tokens"]}

    lived(tmp_path, story)


RESULT = {"type": "tool_result", "tool_use_id": "t1"}
BAD: tuple[tuple[Body, str], ...] = (
    (body(tools=[{"name": "f"}]), "tools[0].input_schema"),
    (body(tools=[{"name": "f g", "input_schema": {}}]), "tools[0].name"),
    (body(tools=[{"name": "f", "input_schema": {"type": "string"}}]), "tools[0].input_schema"),
    (body(tools=[TOOLS[0], TOOLS[0]]), "tools"),
    (
        body(tools=[{"name": f"f{i}", "input_schema": {"title": "x" * 100_000}} for i in range(3)]),
        "tools",
    ),
    (body(tools=TOOLS, tool_choice={"type": "tool"}), "tool_choice.name"),
    (body(tools=TOOLS, tool_choice={"type": "tool", "name": "g"}), "tool_choice.name"),
    (body(tools=TOOLS, tool_choice={"type": "sometimes"}), "tool_choice.type"),
    (turns(result=[{"type": "image"}]), "messages[2].content[0].content"),
    (turns(result=7), "messages[2].content[0].content"),
    (body([{"type": "tool_use", "id": "t", "name": "f", "input": {}}]), "messages[0].content[0]"),
    (body([RESULT]), "messages[0].content[0].tool_use_id"),
)


def test_what_cannot_be_is_refused_by_name(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        for asked, param in BAD:
            answer = await home.caller().post(MESSAGES, asked)
            error = refused(answer, 400, "invalid_request_error")
            assert error["param"] == param, (asked, error)
        assert "Zürich" not in json.dumps(home.audited())

    lived(tmp_path, story)
