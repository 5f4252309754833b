"""What /v1/responses takes and refuses: every fault a 400 that names its field.  API.md §1, §2 (1–12, 44, 45, 48, 72)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from executor.contract import GrammarKind
from gateway.api.responses.items import (
    Call,
    GivenItem,
    GivenPart,
    InputText,
    Message,
    Result,
    items_of,
    messages_of,
)
from gateway.api.responses.schema import parse_responses
from gateway.errors import ApiError
from gateway.text.templates import ChatMessage
from gateway.tools.asked import Choosing, Tool, Tools
from gateway.tools.calls import ToolCall
from tests.gateway.inhouse import Inhouse
from tests.gateway.response_kit import RESPONSES, asked, read
from tests.gateway.test_api_parsing import NOTHING, RAW, laid
from tests.gateway.test_line import lived

LOOK: dict[str, Any] = {"type": "function", "name": "look", "parameters": {"type": "object"}}
SEE = {"type": "function", "name": "see"}
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
SURROGATE = "\ud800"


def user(content: object) -> dict[str, object]:
    return {"input": [{"role": "user", "content": content}]}


WRONG: tuple[tuple[dict[str, object], str | None], ...] = (
    ({"input": NOTHING}, "input"),
    ({"input": None}, "input"),
    ({"input": 3}, "input"),
    ({"input": []}, "input"),
    ({"input": [[]]}, "input[0]"),
    ({"input": ["x"]}, "input[0]"),
    ({"input": [{}]}, "input[0].role"),
    ({"input": [{"role": 3}]}, "input[0].role"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"type": "reasoning", "summary": []}]}, "input"),
    (user(123), "input[0].content"),
    (user([{"type": "input_text"}]), "input[0].content[0].text"),
    (user([{"type": "thought", "text": "x"}]), "input[0].content[0].type"),
    (user([{"type": "input_image", "image_url": "http://x"}]), "input[0].content[0]"),
    (user([{"type": "input_audio"}]), "input[0].content[0]"),
    (user([{"type": "input_file"}]), "input[0].content[0]"),
    (user([{"type": "input_file", "file_data": "x"}]), "input[0].content[0]"),
    (user([{"type": "input_file", "file_id": "a", "file_url": "x"}]), "input[0].content[0]"),
    (user(SURROGATE), None),
    ({"input": [{"type": "web_search_call", "id": "ws_1"}]}, "input[0].type"),
    ({"input": [{"type": "mcp_call"}]}, "input[0].type"),
    ({"input": [{**CALL, "name": None}]}, "input[0].name"),
    ({"input": [{**CALL, "call_id": ""}]}, "input[0].call_id"),
    ({"input": [{**CALL, "arguments": {}}]}, "input[0].arguments"),
    ({"input": [{"type": "function_call_output", "call_id": "c1"}]}, "input[0].output"),
    ({"input": [{"type": "function_call_output", "call_id": "c1", "output": "x"}]}, "input"),
    ({"instructions": 3}, "instructions"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": "1"}, "max_output_tokens"),
    ({"max_output_tokens": 2**31}, "max_output_tokens"),
    ({"max_output_tokens": 4, "min_tokens": 5}, "min_tokens"),
    ({"temperature": 2.1}, "temperature"),
    ({"top_p": -1}, "top_p"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"top_logprobs": 1}, "top_logprobs"),
    ({"include": ["everything"]}, "include"),
    ({"include": "x"}, "include"),
    ({"text": {"format": {"type": "xml"}}}, "text.format"),
    ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
    (
        {"text": {"format": {"type": "json_schema", "name": "a b", "schema": {}}}},
        "text.format.name",
    ),
    (
        {
            "text": {
                "format": {
                    "type": "json_schema",
                    "name": "x",
                    "schema": {},
                    "description": "x" * 16_385,
                }
            }
        },
        "text.format.description",
    ),  # repeated in every answer, and kept with it, yet no part of the prompt
    ({"text": {"verbosity": "extreme"}}, "text.verbosity"),
    ({"reasoning": {"effort": "heroic"}}, "reasoning.effort"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [LOOK, {"type": "mcp", "server_label": "x"}]}, "tools[1].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
    ({"tools": [LOOK, LOOK]}, "tools[1].name"),
    ({"tools": [{**LOOK, "parameters": []}]}, "tools[0].parameters"),
    ({"tools": [{**LOOK, "parameters": {"type": "array"}}]}, "tools[0].parameters"),
    ({"tools": [LOOK], "tool_choice": "perhaps"}, "tool_choice"),
    ({"tools": [LOOK], "tool_choice": {"type": "function", "name": "see"}}, "tool_choice.name"),
    ({"tools": [LOOK], "tool_choice": {"type": "file_search"}}, "tool_choice.type"),
    ({"tools": [LOOK], "tool_choice": {"type": "allowed_tools", "tools": []}}, "tool_choice.tools"),
    (
        {"tools": [LOOK], "tool_choice": {"type": "allowed_tools", "tools": [SEE]}},
        "tool_choice.tools[0].name",
    ),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "allowed_tools", "tools": [SEE]}}, "tool_choice"),
    ({"tool_choice": {"type": "function", "name": "look"}}, "tool_choice"),
    ({"stream_options": {}}, "stream_options"),
    ({"metadata": {"k": 3}}, "metadata"),
    ({"metadata": {"k": "x" * 513}}, "metadata"),
    ({"safety_identifier": "x" * 65}, "safety_identifier"),
    ({"service_tier": "gold"}, "service_tier"),
    ({"truncation": "auto"}, "truncation"),
    ({"store": "yes"}, "store"),
    ({"background": True, "store": False}, "store"),
    ({"background": 1}, "background"),
    ({"previous_response_id": ""}, "previous_response_id"),
    ({"previous_response_id": 3}, "previous_response_id"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"context_management": [{"type": "compaction"}]}, "context_management"),
    ({"moderation": {"model": "x"}}, "moderation"),
    ({"messages": []}, "messages"),
    ({"max_tokens": 5}, "max_tokens"),
    ({"max_completion_tokens": 5}, "max_completion_tokens"),
    ({"response_format": {"type": "text"}}, "response_format"),
    ({"reasoning_effort": "low"}, "reasoning_effort"),
    ({"n": 2}, "n"),
    ({"logprobs": True}, "logprobs"),
    ({"functions": []}, "functions"),
    ({"cache_salt": "x"}, "cache_salt"),
    ({"chat_template": "x"}, "chat_template"),
    ({"prompt": {}}, "prompt.id"),
    ({"prompt": {"id": "tmpl_x", "version": "two"}}, "prompt.version"),
    ({"prompt": {"id": "tmpl_x", "version": 0}}, "prompt.version"),
)

NULLS = dict.fromkeys(
    (
        *("instructions", "max_output_tokens", "max_tool_calls", "temperature", "top_p", "text"),
        *("reasoning", "tools", "tool_choice", "parallel_tool_calls", "top_logprobs", "include"),
        *("prompt", "stream", "stream_options", "store", "background", "previous_response_id"),
        *("conversation", "metadata", "user", "safety_identifier", "prompt_cache_key"),
        *("service_tier", "truncation", "moderation", "context_management", "messages", "n"),
    )
)

RIGHT: tuple[dict[str, object], ...] = (
    {},
    NULLS,
    {"unheard_of": {"deep": [1]}, "prompt_cache_retention": "24h", "prompt_cache_options": {}},
    {"input": ""},
    {"instructions": ""},
    {"instructions": "be brief"},
    {"max_output_tokens": 1},
    {"max_output_tokens": 10**9},
    {"temperature": 0},
    {"top_p": 0},
    {"include": ["reasoning.encrypted_content"]},
    {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
    {"top_logprobs": 0},
    {"text": {}},
    {"text": {"format": {"type": "text"}, "verbosity": "low"}},
    {"reasoning": {"effort": "low", "summary": "auto"}},
    {"tools": [], "tool_choice": "auto"},
    {"tool_choice": "none", "parallel_tool_calls": False, "max_tool_calls": 3},
    {"truncation": "disabled", "store": False, "background": False, "n": 1},
    {"metadata": {"k": "v"}, "user": "u", "safety_identifier": "s", "prompt_cache_key": "p"},
    {"service_tier": "auto"},
    {
        "input": [
            {"role": "system", "content": "s"},
            {"type": "message", "role": "developer", "content": [{"type": "text", "text": "d"}]},
            {"role": "user", "content": [{"type": "input_text", "text": "a"}], "extra": 1},
            {
                "type": "message",
                "id": "msg_1",
                "status": "completed",
                "role": "assistant",
                "content": [
                    {"type": "output_text", "text": "b", "annotations": [], "logprobs": []}
                ],
            },
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
            {"role": "user", "content": "c"},
        ]
    },
    {"input": [{"role": "user", "content": []}]},
    {"input": [{"role": "assistant", "content": ""}, {"role": "user", "content": "😀 \u202e"}]},
)


@pytest.mark.slow
def test_each_wrong_request_is_a_400_that_names_its_field(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        caller, count = home.caller(), 0
        faults: list[object] = []
        cases: list[tuple[object, str | None]] = [(raw, None) for raw in RAW]
        for fields, param in WRONG:
            cases.append((laid(asked(), fields), param))
            if param != "stream_options":
                cases.append((laid(asked(stream=True), fields), param))
        for body, param in cases:
            count += 1
            answer = await caller.post(RESPONSES, body)
            if answer.status != 400:
                faults.append((answer.status, str(body)[:200]))
                continue
            if param is not None and answer.error["param"] != param:
                faults.append((answer.error, str(body)[:200]))
        assert faults == []
        assert home.echo.gauges.prompt_tokens == 0
        records = home.audited()
        assert len([each for each in records if each["kind"] == "request.rejected"]) == count
        read(await caller.post(RESPONSES, asked()))

    lived(tmp_path, story)


@pytest.mark.slow
def test_each_odd_but_right_request_is_answered(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        faults = []
        for fields in RIGHT:
            answer = await home.caller().post(RESPONSES, laid(asked(), fields))
            if answer.status != 200:
                faults.append((answer.status, answer.body, fields))
            else:
                read(answer)
            answer = await home.caller().post(RESPONSES, laid(asked(), fields | {"stream": True}))
            if answer.status != 200:
                faults.append((answer.status, answer.body, fields))
        assert faults == []

    lived(tmp_path, story)


def test_a_refusal_never_repeats_what_was_sent(tmp_path: Path) -> None:
    canary = "CANARY-77aa"

    async def story(home: Inhouse) -> None:
        for body in (
            asked([{"role": canary * 9, "content": canary}]),
            asked(text={"format": {"type": canary * 9}}),
            asked(temperature=[canary]),
            asked(metadata={canary: [canary]}),
        ):
            answer = await home.caller().post(RESPONSES, body)
            assert answer.status == 400
            assert canary.encode() * 2 not in answer.body

    lived(tmp_path, story)


def parsed(**fields: Any) -> Any:
    return parse_responses({"model": "m", "input": "x", **fields}, vocab_size=300)


@pytest.mark.parametrize(
    ("fields", "tools"),
    (
        ({"tools": [LOOK]}, Tools((Tool("look", None, LOOK["parameters"]),))),
        (
            {"tools": [SEE, {**SEE, "name": "t", "strict": True}], "parallel_tool_calls": False},
            Tools((Tool("see"), Tool("t", strict=True)), parallel=False),
        ),
        ({"tools": [SEE], "tool_choice": "none"}, Tools((Tool("see"),), Choosing.NONE)),
        ({"tools": [SEE], "tool_choice": "required"}, Tools((Tool("see"),), Choosing.REQUIRED)),
        (
            {"tools": [SEE], "tool_choice": {"type": "function", "name": "see"}},
            Tools((Tool("see"),), Choosing.REQUIRED, "see"),
        ),
        (
            {
                "tools": [LOOK, SEE],
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "required",
                    "tools": [{"type": "function", "name": "see"}],
                },
            },
            Tools(
                (Tool("look", None, LOOK["parameters"]), Tool("see")),
                Choosing.REQUIRED,
                allowed=frozenset({"see"}),
            ),
        ),
        ({"tools": []}, None),
        ({}, None),
    ),
)
def test_tools_are_read_from_their_flat_form(fields: Any, tools: Tools | None) -> None:
    assert parsed(**fields).tools == tools


def test_instructions_come_first_and_calls_belong_to_what_was_said_before_them() -> None:
    items: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "input_text", "text": t} for t in "ab"]},
        {"role": "assistant", "content": "Let me look."},
        CALL,
        {**CALL, "call_id": "c2"},
        {"type": "reasoning"},
        {"type": "function_call_output", "call_id": "c2", "output": "2"},
        {
            "type": "function_call_output",
            "call_id": "c1",
            "output": [{"type": "input_text", "text": "1"}],
        },
    ]
    asking = parsed(input=items, instructions="Be brief.")
    job = asking.job(asking.items)
    assert job.messages == (
        ChatMessage("system", "Be brief."),
        ChatMessage("user", "a\nb"),
        ChatMessage(
            "assistant",
            "Let me look.",
            calls=(ToolCall("c1", "look", "{}"), ToolCall("c2", "look", "{}")),
        ),
        ChatMessage("tool", "2", call_id="c2"),
        ChatMessage("tool", "1", call_id="c1"),
    )


def test_what_came_before_stands_between_instructions_and_input() -> None:
    before = (Message("user", (InputText("first"),)), Call("c1", "look", "{}"))
    asking = parsed(
        input=[{"type": "function_call_output", "call_id": "c1", "output": "1"}],
        instructions="Now.",
    )
    assert [each.role for each in asking.job((*before, *asking.items)).messages] == [
        "system",
        "user",
        "assistant",
        "tool",
    ]
    with pytest.raises(ApiError, match="c1"):
        asking.job(asking.items)


def test_a_call_without_words_before_it_has_an_assistant_of_its_own() -> None:
    items: Any = items_of(
        [
            GivenItem(role="user", content=[GivenPart("input_text", "x")]),
            GivenItem(type="function_call", call_id="c", name="f", arguments="{}"),
            GivenItem(type="function_call_output", call_id="c", output="y"),
        ]
    )
    assert isinstance(items[2], Result)
    assert messages_of(items)[1] == ChatMessage("assistant", "", calls=(ToolCall("c", "f", "{}"),))


def test_effort_reaches_the_template_and_templates_are_named() -> None:
    asking = parsed(
        reasoning={"effort": "low"},
        prompt={"id": "tmpl_1", "version": "2", "variables": {"a": "x", "b": 3}},
    )
    assert asking.extras == {"reasoning_effort": "low"}
    reference = asking.job(asking.items).references.template
    assert (reference.id, reference.version) == ("tmpl_1", 2)
    assert asking.repeated["prompt"] == {
        "id": "tmpl_1",
        "version": "2",
        "variables": {"a": "x", "b": "3"},
    }


def test_a_schema_is_asked_for_in_its_flat_form_and_always_kept() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    form = {"type": "json_schema", "name": "it", "schema": schema, "strict": False}
    asking = parsed(text={"format": form})
    assert asking.controls.structure.param == "text.format"
    assert asking.controls.structure.grammar.kind is GrammarKind.JSON_SCHEMA
    assert asking.repeated["text"]["format"] == {**form, "description": None, "strict": True}
    asking = parsed(text={"format": {"type": "json_object"}})
    assert asking.controls.structure.grammar.kind is GrammarKind.JSON_OBJECT
