"""Tools over HTTP, with a model that follows a script: what is asked, answered whole and streamed, refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from executor.contract import GrammarKind, Submit
from executor.echo import EchoExecutor
from tests.gateway.inhouse import CHAT, Inhouse, chat_body, inhouse

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Weather of a city.", "parameters": CITY},
}
TIME = {"type": "function", "function": {"name": "get_time"}}
TOOLS = [WEATHER, TIME]
ULM = '{"city": "Ulm"}'
ONE = f'<tool_call>\n{{"name": "get_weather", "arguments": {ULM}}}\n</tool_call>'
TWO = f'{ONE}\n<tool_call>\n{{"name": "get_time", "arguments": {{}}}}\n</tool_call>'


def answering(
    tmp_path: Path, text: str, story: Callable[[Inhouse], Awaitable[None]]
) -> list[Submit]:
    """Live a story in a house whose model says this; what it was asked."""
    asked: list[Submit] = []

    def says(submit: Submit) -> bytes:
        asked.append(submit)
        return text.encode()

    async def run() -> None:
        async with inhouse(tmp_path, echo=EchoExecutor(says=says)) as home:
            await story(home)
            await home.at_rest()

    asyncio.run(run())
    return asked


async def both(home: Inhouse, **fields: object) -> tuple[dict[str, Any], list[Any]]:
    """The whole answer, and the events of the same as a stream."""
    whole = await home.caller().chat("hi", **fields)
    assert whole.status == 200, whole.body
    options = {"stream": True, "stream_options": {"include_usage": True}}
    streamed = await home.caller().chat("hi", **fields, **options)
    assert streamed.status == 200, streamed.body
    return whole.json(), streamed.events()


def put_together(events: list[Any], index: int = 0) -> dict[str, Any]:
    """What a client makes of a stream, and that each event is one that clients can read."""
    assert events[-1] == "[DONE]"
    message: dict[str, Any] = {"content": "", "calls": {}, "finish": None, "tokens": []}
    for chunk in events[:-2]:
        for choice in chunk["choices"]:
            if choice["index"] != index:
                continue
            delta = choice["delta"]
            assert delta.get("tool_calls") != []
            message["content"] += delta.get("content") or ""
            if "content" in delta and "role" not in delta:
                assert delta["content"]
            for part in delta.get("tool_calls", ()):
                known = message["calls"]
                if part["index"] not in known:
                    assert part["index"] == len(known)
                    assert set(part) == {"index", "id", "type", "function"}
                    assert part["function"]["arguments"] == ""
                    known[part["index"]] = {
                        "id": part["id"],
                        "type": part["type"],
                        "function": part["function"],
                    }
                else:
                    assert set(part) == {"index", "function"}
                    assert set(part["function"]) == {"arguments"}
                    known[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
            message["finish"] = choice["finish_reason"] or message["finish"]
            if choice["logprobs"] is not None:
                message["tokens"] += choice["logprobs"]["content"]
    return message


def anonymous(calls: Any) -> list[Any]:
    """Ids differ between two answers."""
    return [(call["type"], call["function"]) for call in calls]


def assert_same(whole: dict[str, Any], events: list[Any], index: int = 0) -> None:
    choice, streamed = whole["choices"][index], put_together(events, index)
    message = choice["message"]
    assert (message["content"] or "") == streamed["content"]
    assert anonymous(message.get("tool_calls", ())) == anonymous(streamed["calls"].values())
    assert choice["finish_reason"] == streamed["finish"]
    for tokens in ("prompt_tokens", "completion_tokens", "total_tokens"):  # the second finds more
        assert whole["usage"][tokens] == events[-2]["usage"][tokens]
    if choice["logprobs"] is not None:
        assert choice["logprobs"]["content"] == streamed["tokens"]


def test_calls_whole_and_streamed(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        whole, events = await both(home, tools=TOOLS)
        (choice,) = whole["choices"]
        message = choice["message"]
        assert (message["content"], choice["finish_reason"]) == ("Let me look.", "tool_calls")
        assert [call["function"] for call in message["tool_calls"]] == [
            {"name": "get_weather", "arguments": ULM},
            {"name": "get_time", "arguments": "{}"},
        ]
        ids = [call["id"] for call in message["tool_calls"]]
        assert len(set(ids)) == 2
        assert all(id_.startswith("call_") and len(id_) <= 40 for id_ in ids)
        assert_same(whole, events)

    (first, *_) = answering(tmp_path, f"Let me look.\n{TWO}\n", story)
    prompt = bytes(token for token in first.prompt if token < 256).decode()
    assert json.dumps(WEATHER) in prompt
    assert "<tools>" in prompt


def test_a_call_alone_has_no_content(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        whole, events = await both(home, tools=TOOLS)
        assert whole["choices"][0]["message"]["content"] is None
        assert_same(whole, events)

    answering(tmp_path, ONE, story)


def test_text_without_a_call_has_no_tool_calls(tmp_path: Path) -> None:
    """An empty list would be taken for a call (API.md §2, 32)."""

    async def story(home: Inhouse) -> None:
        for fields in ({"tools": TOOLS}, {}):
            whole, events = await both(home, **fields)
            assert "tool_calls" not in whole["choices"][0]["message"]
            assert all("tool_calls" not in str(event) for event in events)
            assert whole["choices"][0]["finish_reason"] == "stop"
            assert_same(whole, events)

    answering(tmp_path, "It rains <tool_call>always</tool_call>.", story)


def test_none_shows_the_tools_and_never_calls(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        whole, events = await both(home, tools=TOOLS, tool_choice="none")
        choice = whole["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == (ONE, "stop")
        assert_same(whole, events)

    (first, *_) = answering(tmp_path, ONE, story)
    assert b"get_weather" in bytes(token for token in first.prompt if token < 256)


def test_an_answer_that_is_cut_ends_length_in_both_modes(tmp_path: Path) -> None:
    """`length` beats `tool_calls`; what there is of the arguments stays (API.md §3)."""
    text = f"Hm. {TWO}"

    async def story(home: Inhouse) -> None:
        for room in (1, 7, 18, 35, 60, 70, 80, 81, 90, 95, 110, 133, len(text), len(text) + 1):
            whole, events = await both(home, tools=TOOLS, max_tokens=room)
            choice = whole["choices"][0]
            assert choice["finish_reason"] == ("length" if room <= len(text) else "tool_calls")
            calls = choice["message"].get("tool_calls", ())
            assert all(ULM.startswith(call["function"]["arguments"]) for call in calls[:1])
            assert text.startswith(choice["message"]["content"] or "") or calls
            assert_same(whole, events)

    answering(tmp_path, text, story)


def test_one_call_at_most_ends_the_answer_and_the_bill(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        whole, events = await both(home, tools=TOOLS, parallel_tool_calls=False)
        choice = whole["choices"][0]
        assert [call["function"]["arguments"] for call in choice["message"]["tool_calls"]] == [ULM]
        assert choice["finish_reason"] == "tool_calls"
        assert whole["usage"]["completion_tokens"] == len(TWO[: TWO.index("}") + 1])
        assert_same(whole, events)

    answering(tmp_path, TWO, story)


def test_only_what_is_allowed_is_called(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        only = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "get_time"}}]}
        choice = {"type": "allowed_tools", "allowed_tools": only}
        whole, events = await both(home, tools=TOOLS, tool_choice=choice)
        message = whole["choices"][0]["message"]
        assert [call["function"]["name"] for call in message["tool_calls"]] == ["get_time"]
        assert message["content"] == ONE + "\n"[:0]
        assert_same(whole, events)

    answering(tmp_path, TWO, story)


def test_log_probabilities_are_those_of_the_content(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        whole, events = await both(home, tools=TOOLS, logprobs=True, top_logprobs=1)
        choice = whole["choices"][0]
        tokens = choice["logprobs"]["content"]
        assert choice["message"]["content"] == "Grüße, 世界.It is late."
        assert "".join(token["token"] for token in tokens) == choice["message"]["content"]
        raw = bytes(byte for token in tokens for byte in token["bytes"])
        assert raw == choice["message"]["content"].encode()
        assert_same(whole, events)

    answering(tmp_path, f"Grüße, 世界. {TWO}\nIt is late.", story)


def test_a_stop_string_ends_a_call_too(tmp_path: Path) -> None:
    """As everywhere: an answer stops where the string stands, in both modes."""

    async def story(home: Inhouse) -> None:
        whole, events = await both(home, tools=TOOLS, stop=["Ulm"])
        (call,) = whole["choices"][0]["message"]["tool_calls"]
        assert call["function"]["arguments"] == '{"city": "'
        assert whole["choices"][0]["finish_reason"] == "stop"  # nothing that could be run
        assert_same(whole, events)

    answering(tmp_path, ONE, story)


def test_calls_are_to_be_run_only_where_the_last_is_whole(tmp_path: Path) -> None:
    """Whoever sees `tool_calls` runs them.  Whatever ended the answer, a string or the model itself."""
    first, second = TWO.index("}"), TWO.rindex("{}") + 1
    ends = {first - 4: "stop", first + 1: "tool_calls", second: "stop", second + 1: "tool_calls"}
    for end, reason in ends.items():

        async def story(home: Inhouse, reason: str = reason) -> None:
            whole, events = await both(home, tools=TOOLS)
            assert whole["choices"][0]["finish_reason"] == reason
            assert_same(whole, events)

        answering(tmp_path / str(end), TWO[:end], story)


def test_each_choice_has_its_own_calls(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        whole, events = await both(home, tools=TOOLS, n=3)
        ids = [choice["message"]["tool_calls"][0]["id"] for choice in whole["choices"]]
        assert len(set(ids)) == 3
        for index in range(3):
            assert_same(whole, events, index)

    answering(tmp_path, TWO, story)


def history(*more: dict[str, Any]) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": ULM}}
    return {
        "messages": [
            {"role": "user", "content": "How is the weather in Ulm?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            *more,
        ]
    }


def test_a_conversation_goes_on_after_a_call(tmp_path: Path) -> None:
    """Contents "", null and lists of parts (API.md §2, 9), a result, and JSON that a model broke."""

    async def story(home: Inhouse) -> None:
        parts = [{"type": "text", "text": "Rain"}, {"type": "text", "text": "and wind"}]
        broken = {
            "id": "c2",
            "type": "function",
            "function": {"name": "get_time", "arguments": "{{"},
        }
        answer = await home.caller().post(
            CHAT,
            chat_body(tools=TOOLS)
            | history(
                {"role": "tool", "tool_call_id": "c1", "content": parts},
                {"role": "assistant", "content": "", "tool_calls": [broken]},
                {"role": "tool", "tool_call_id": "c2", "content": "error"},
                {"role": "user", "content": "Go on."},
            ),
        )
        assert answer.status == 200, answer.body

    (asked,) = answering(tmp_path, "It rains.", story)
    prompt = bytes(token for token in asked.prompt if token < 256).decode()
    assert f'<tool_call>\n{{"name": "get_weather", "arguments": {ULM}}}\n</tool_call>' in prompt
    assert "<tool_response>\nRain\nand wind\n</tool_response>" in prompt
    assert '{"name": "get_time", "arguments": "{{"}' in prompt


NO_SCHEMAS: list[Any] = [
    [],
    "x",
    {"type": "string"},
    {"type": ["object"]},
    {"description": "x" * 140_000},
]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tools": []}, "tools"),
    ({"tools": {}}, "tools"),
    ({"tools": [TIME] * 129}, "tools"),
    ({"tools": [TIME, TIME]}, "tools[1].function.name"),
    ({"tools": [{}]}, "tools[0].type"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    *(
        ({"tools": [{"type": "function", "function": {"name": name}}]}, "tools[0].function.name")
        for name in ("", "a b", "x" * 65, "é", 5)
    ),
    *(
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": form}}]}, "tools[0].function.parameters")
        for form in NO_SCHEMAS
    ),
    (
        {"tools": [{"type": "function", "function": {"name": f"f{i}", "description": "x" * 16_000}} for i in range(20)]},
        "tools",
    ),
    ({"tools": TOOLS, "tool_choice": "perhaps"}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {}}, "tool_choice.type"),
    ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "custom", "custom": {"name": "x"}}}, "tool_choice"),
    (
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}},
        "tool_choice.function.name",
    ),
    *(
        ({"tool_choice": choice}, "tool_choice")
        for choice in (
            *("auto", "required", {"type": "function", "function": {"name": "f"}}),
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [TIME]}},
        )
    ),
    ({"tools": TOOLS, "parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"function_call": "auto"}, "function_call"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
    ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "c1"}]}, "messages[0].tool_call_id"),
    ({"messages": [{"role": "function", "content": "x", "name": "f"}]}, "messages[0].role"),
    (history({"role": "tool", "content": "x", "tool_call_id": "c2"}), "messages[2].tool_call_id"),
    (history({"role": "tool", "tool_call_id": "c1"}), "messages[2].content"),
    *(
        ({"messages": [{"role": "assistant", "content": None, "tool_calls": calls}]}, f"messages[0].{param}")
        for calls, param in (
            ([], "content"),
            ([{}], "tool_calls[0].id"),
            ([{"id": "c"}], "tool_calls[0].function"),
            ([{"id": "c", "type": "custom"}], "tool_calls[0].type"),
            ([{"id": "c", "function": {"name": "f", "arguments": {}}}], "tool_calls[0].function.arguments"),
            ([{"id": "c", "function": {"name": "", "arguments": "{}"}}], "tool_calls[0].function.name"),
        )
    ),
    (
        {"messages": [{"role": "user", "content": "x", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": ""}}]}]},
        "messages[0].tool_calls",
    ),
]  # fmt: skip


def test_what_is_refused_names_its_field(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        deep: dict[str, Any] = {}
        for _ in range(49):
            deep = {"properties": deep}
        nested = {"tools": [{"type": "function", "function": {"name": "f", "parameters": deep}}]}
        for fields, param in [*REFUSED, (nested, "tools[0].function.parameters")]:
            answer = await home.caller().post(CHAT, chat_body() | fields)
            assert (answer.status, answer.error["param"]) == (400, param), fields
            assert answer.error["type"] == "invalid_request_error"

    assert answering(tmp_path, "never", story) == []


def test_what_asks_for_nothing_is_accepted(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        for fields in (
            {"tools": None, "tool_choice": None, "parallel_tool_calls": None},
            {"tool_choice": "none"},
            {"tools": [TIME], "tool_choice": None, "parallel_tool_calls": True},
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "f", "parameters": {}, "strict": None},
                    }
                ]
            },
        ):
            assert (await home.caller().chat("hi", **fields)).status == 200, fields

    answering(tmp_path, "fine", story)


def test_a_call_that_is_asked_for_is_forced_and_another_shape_beside_it_refused(
    tmp_path: Path,
) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}

    async def story(home: Inhouse) -> None:
        for choice in ("required", named):
            whole, events = await both(home, tools=TOOLS, tool_choice=choice)
            assert whole["choices"][0]["finish_reason"] == "tool_calls"
            assert len(whole["choices"][0]["message"]["tool_calls"]) == (
                2 if choice == "required" else 1
            )
            assert_same(whole, events)
            answer = await home.caller().chat(
                "hi", tools=TOOLS, tool_choice=choice, response_format=form
            )
            assert (answer.status, answer.error["param"]) == (400, "response_format")
        for fields in ({"response_format": form}, {"tool_choice": "none", "response_format": form}):
            assert (await home.caller().chat("hi", tools=TOOLS, **fields)).status == 200
        outputs = {"regex": "a+"}
        answer = await home.caller().chat("hi", tools=TOOLS, structured_outputs=outputs)
        assert (answer.status, answer.error["param"]) == (400, "structured_outputs.regex")

    asked = answering(tmp_path, TWO, story)
    kinds = [None if each.grammar is None else each.grammar.kind for each in asked]
    assert kinds == [GrammarKind.LARK] * 5 + [GrammarKind.JSON_SCHEMA]
    texts = [each.grammar.text for each in asked if each.grammar is not None]
    assert ["get_time" in text for text in texts] == [True, True, False, False, True, False]
