"""Answers that a grammar made and something cut: what calls are written with is never told as text.

By `max_tokens`, a stop string, the budget or the end of the context; whole and streamed, in each API and each form.
Where the model was free to call, a head that never became a call is its text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.contract import Logprob, TokenLogprobs
from executor.echo import EchoExecutor
from gateway.text.reply import Reply
from gateway.tools.asked import Choosing, Tool, Tools
from gateway.tools.forced import forced
from gateway.tools.formats import Format, Style
from gateway.tools.hearing import Hearing
from policies.facts import Budget
from tests.gateway.inhouse import PLAN, Inhouse
from tests.gateway.response_kit import RESPONSES, asked, events_of, followed, read
from tests.gateway.test_blocks import events_of as blocks_of
from tests.gateway.test_blocks import put_together as put_blocks
from tests.gateway.test_line import lived
from tests.gateway.test_messages import MESSAGES
from tests.gateway.test_messages import body as message_body
from tests.gateway.text_cards import STEADY
from tests.gateway.tools.cards import FAMILIES, model
from tests.gateway.tools.test_chat import TOOLS as CHAT_TOOLS
from tests.gateway.tools.test_chat import TWO, ULM, assert_same, both
from tests.gateway.tools.test_forced import TOOLS, walk

NAMES = ("f", "get_weather")
ALL = Tools(tuple(Tool(name) for name in NAMES), Choosing.REQUIRED)


def written(style: Style, calls: Sequence[tuple[str, str]]) -> list[str]:
    """As the grammar has it (`forced`); markers by themselves, since they may be control tokens."""
    opens, closes = style.plain.opens, style.plain.closes
    key = "parameters" if style.format is Format.LLAMA3_JSON else "arguments"
    objects = [f'{{"name": "{name}", "{key}": {given}}}' for name, given in calls]
    match style.format:
        case Format.HERMES:
            each = [[opens, f"\n{one}\n", closes, "\n"] for one in objects]
            return [part for parts in each for part in parts][:-1]
        case Format.SMOLLM2:
            return [opens, f"[{', '.join(objects)}]", closes]
        case Format.LLAMA3_JSON:
            return ["; ".join(objects)]
        case Format.MISTRAL if style.between:
            return [part for name, given in calls for part in (opens, name, "[ARGS]", given)]
        case Format.MISTRAL:
            return [opens, f" [{', '.join(objects)}]"]


def tokens_of(family: str, parts: Sequence[str]) -> list[int]:
    vocabulary, _, style = model(family)
    tokens: list[int] = []
    for part in parts:
        tokens += [style.ids[part]] if part in style.ids else vocabulary.encode_content(part)
    return tokens


def heard(
    family: str,
    tools: Tools,
    tokens: Sequence[int],
    sizes: Sequence[int] = (),
    *,
    shaped: bool = True,
    skip: bool = True,
    logprobs: bool = False,
    stops: Sequence[str] = (),
) -> tuple[str, list[str], int]:
    """The text, the arguments of each call, and how many tokens were shown."""
    vocabulary, _, style = model(family)
    reply = Reply(
        vocabulary,
        printed=style.printed if skip else None,
        skip_special_tokens=skip,
        logprobs=logprobs,
        stops=stops,
    )
    reader = style.reader(tools, str, skip_special_tokens=skip, shaped=shaped)
    hearing = Hearing(reader, logprobs=logprobs)
    out, at = [], 0
    for size in [*sizes, *([1] * len(tokens))]:
        some = tokens[at : at + size]
        at += size
        certain = [TokenLogprobs(chosen=Logprob(token, -0.5)) for token in some]
        piece = reply.push(some, certain if logprobs else ())
        out += hearing.push(piece)
        if piece.stopped:
            break
    else:
        out += hearing.push(reply.finish())
    out += hearing.finish()
    calls: list[str] = []
    for part in (part for each in out for part in each.calls):
        if part.id is not None:
            calls.append("")
        calls[-1] += part.arguments
    return "".join(each.text for each in out), calls, sum(len(each.shown) for each in out)


values = st.recursive(
    st.none() | st.integers(-9, 9) | st.text(max_size=3) | st.sampled_from(["<tool_call>", '"}]']),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)  # fmt: skip
given_calls = st.lists(
    st.tuples(st.sampled_from(NAMES), st.dictionaries(st.text(max_size=2), values, max_size=2)),
    min_size=1,
    max_size=3,
).map(lambda calls: [(name, json.dumps(given)) for name, given in calls])


@pytest.mark.parametrize("family", FAMILIES)
@STEADY
@given(
    given_calls,
    st.lists(st.integers(1, 9), max_size=9),
    st.booleans(),
    st.booleans(),
    st.sampled_from([(), ("name",), ("\n",), ("ool", "x")]),
    st.data(),
)
def test_nothing_of_a_forced_call_is_ever_text(
    family: str,
    calls: list[tuple[str, str]],
    sizes: list[int],
    skip: bool,
    logprobs: bool,
    stops: tuple[str, ...],
    data: st.DataObject,
) -> None:
    tokens = tokens_of(family, written(model(family)[2], calls))
    cut = tokens[: data.draw(st.integers(0, len(tokens)))]
    text, given, shown = heard(
        family, ALL, cut, sizes, skip=skip, logprobs=logprobs, stops=stops
    )  # fmt: skip
    assert (text, shown) == ("", 0)
    assert len(given) <= len(calls)
    for part, (_, whole) in zip(given, calls, strict=False):
        # A character may be cut in the middle of its bytes.
        assert whole.startswith(part.rstrip("\ufffd"))
    if cut == tokens and not stops:
        assert given == [whole for _, whole in calls]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_nor_of_what_the_compiler_lets_through(family: str) -> None:
    tools = Tools(TOOLS, Choosing.REQUIRED)
    grammar = forced(tools, model(family)[2]).text
    for seed in range(4):
        tokens = walk(family, grammar, seed)
        for end in range(0, len(tokens) + 1, 1 + len(tokens) // 150):
            assert heard(family, tools, tokens[:end])[0] == "", tokens[:end]


@pytest.mark.parametrize("family", FAMILIES)
def test_beside_another_shape_it_is_that_or_calls(family: str) -> None:
    """JSON stays JSON, whatever is in its strings; the head of a call is no part of it."""
    free = Tools(ALL.listed)
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    for content in (
        json.dumps({"ok": call}),
        json.dumps(["[TOOL_CALLS]", call]),
        json.dumps("<|python_tag|>"),
        json.dumps({"name": "g", "parameters": {}}),
        "[1, 2]",
    ):
        tokens = tokens_of(family, [content])
        for end in range(2, len(tokens) + 1):
            assert heard(family, free, tokens[:end])[:2] == (content[:end], [])
    _, _, style = model(family)
    tokens = tokens_of(family, written(style, [("f", "{}"), ("f", '{"a": 1}')]))
    # Where calls begin as any object does, the first one's head may be another's.
    least = len('{"name": "f", "parameters": {') if family == "llama3_json" else 0
    for end in range(least, len(tokens) + 1):
        assert heard(family, free, tokens[:end])[0] == ""


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_that_a_free_model_wrote_is_its_text(family: str) -> None:
    free = Tools(ALL.listed)
    for text in ("<tool_", "See <tool_call>\n", '[TOOL_CALLS] [{"name": "f', '{"name": '):
        tokens = model(family)[0].encode_content(text)
        assert heard(family, free, tokens, shaped=False)[0] == text


def says(text: str, **options: Any) -> EchoExecutor:
    return EchoExecutor(says=lambda _: tuple(text.encode()), **options)


ROOMS = (1, 2, 3, 11, 20, 34, TWO.rindex("<") - 30, TWO.rindex("get_time"))
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def test_cut_by_max_tokens_in_chat(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        for room in ROOMS:
            for choice in ("required", NAMED):
                fields = {"tools": CHAT_TOOLS, "tool_choice": choice, "max_tokens": room}
                whole, events = await both(home, **fields, logprobs=True)
                (said,) = whole["choices"]
                assert not said["message"]["content"]
                assert said["logprobs"]["content"] == []
                if choice == "required":
                    assert said["finish_reason"] == "length"
                    assert whole["usage"]["completion_tokens"] == room
                assert_same(whole, events)
        whole, events = await both(home, tools=CHAT_TOOLS, max_tokens=5)
        assert whole["choices"][0]["message"]["content"] == TWO[:5]
        assert_same(whole, events)

    lived(tmp_path, story, echo=says(TWO))


def test_cut_by_a_stop_string(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        for stop in ("ool_", "\n", '"name"', "get_w"):
            fields = {"tools": CHAT_TOOLS, "tool_choice": "required", "stop": [stop]}
            whole, events = await both(home, **fields)
            (said,) = whole["choices"]
            assert (said["message"]["content"], said["finish_reason"]) == ("", "stop")
            assert "tool_calls" not in said["message"]
            assert_same(whole, events)

    lived(tmp_path, story, echo=says(TWO))


@pytest.mark.parametrize("stream", (False, True))
@pytest.mark.parametrize("reason", ("token_budget", "context"))
def test_cut_by_the_budget_and_by_the_end_of_the_context(
    tmp_path: Path, reason: str, stream: bool
) -> None:
    fields: dict[str, Any] = {"tools": CHAT_TOOLS, "tool_choice": "required"}
    prompt = 0

    async def measure(home: Inhouse) -> None:
        nonlocal prompt
        prompt = (await home.caller().chat("hi", **fields)).json()["usage"]["prompt_tokens"]

    async def story(home: Inhouse) -> None:
        if not stream:
            told = (await home.caller().chat("hi", **fields)).json()
            (said,) = told["choices"]
            assert (said["message"]["content"], said["finish_reason"]) == ("", "length")
            assert told["usage"]["completion_tokens"] == 20
            return
        options = {"stream": True, "stream_options": {"x_status": True}}
        *events, end = (await home.caller().chat("hi", **fields, **options)).events()
        chunks = [chunk for chunk in events if chunk["choices"]]
        assert {chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks} == {""}
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        assert (chunks[-1]["x_limit"], end) == ({"reason": reason}, "[DONE]")

    lived(tmp_path / "0", measure, echo=says(TWO))
    if reason == "context":
        lived(tmp_path / "1", story, echo=says(TWO, context_tokens=prompt + 20))
    else:
        plan = replace(PLAN, budget=Budget(prompt * 200 + 20 * 600))
        lived(tmp_path / "1", story, echo=says(TWO), plan=plan)


def test_cut_in_responses(tmp_path: Path) -> None:
    tools = [{"type": "function", **each["function"]} for each in CHAT_TOOLS]  # type: ignore[dict-item]

    async def story(home: Inhouse) -> None:
        for room in (1, 3, 11, 34, TWO.rindex("get_time")):
            fields = {"tools": tools, "tool_choice": "required", "max_output_tokens": room}
            whole = read(await home.caller().post(RESPONSES, asked(**fields)))
            streamed = await home.caller().post(RESPONSES, asked(stream=True, **fields))
            found = followed(events_of(streamed.body))
            for told in (whole, found.last):
                assert told["status"] == "incomplete"
                assert told["incomplete_details"] == {"reason": "max_output_tokens"}
                (item,) = told["output"]
                if room > 40:
                    assert (item["type"], item["arguments"]) == ("function_call", ULM)
                else:  # as of any answer that says nothing
                    assert [part["text"] for part in item["content"]] == [""]

    lived(tmp_path, story, echo=says(TWO))


def test_cut_in_messages(tmp_path: Path) -> None:
    tools: list[dict[str, Any]] = [
        {"name": name, "input_schema": {}} for name in ("get_weather", "get_time")
    ]

    async def story(home: Inhouse) -> None:
        for room in (1, 3, 11, 34, TWO.rindex("get_time")):
            fields = {"tools": tools, "tool_choice": {"type": "any"}, "max_tokens": room}
            whole = (await home.caller().post(MESSAGES, message_body(**fields))).json()
            streamed = await home.caller().post(MESSAGES, message_body(**fields, stream=True))
            for told in (whole, put_blocks(blocks_of(streamed.body))):
                assert told["stop_reason"] == "max_tokens"
                kinds = [block["type"] for block in told["content"]]
                assert kinds == (["tool_use"] if room > 40 else [])

    lived(tmp_path, story, echo=says(TWO))
