"""Anthropic's words: any answer's stream is balanced blocks, and says what the whole answer says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.answers import Head, Usage
from gateway.api.gathered import Gathered
from gateway.api.messages.blocks import BlockEvents, arguments, ended, message, usage_fields
from gateway.telling import Delta
from gateway.tools.calls import CallPart
from tests.gateway.text_cards import STEADY

HEAD = Head("msg_1", 7, "m", service_tier="flex")
USAGE = Usage(prompt=9, completion=4, cached=3)
OBJECTS = st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=3)


def events_of(data: bytes) -> list[dict[str, Any]]:
    """Of a stream as it is sent: each names itself twice, alike, and nothing else is there."""
    assert data.endswith(b"\n\n")
    found = []
    for block in data.decode().removesuffix("\n\n").split("\n\n"):
        if block.startswith(": "):
            continue
        named, _, told = block.partition("\n")
        assert "\n" not in told
        event = json.loads(told.removeprefix("data: "))
        assert named == f"event: {event['type']}"
        found.append(event)
    return found


def put_together(events: list[dict[str, Any]]) -> dict[str, Any]:
    """As a client does, which trusts nothing: every block is begun, told and ended before the next."""
    first, *middle, delta, last = events
    assert (first["type"], last) == ("message_start", {"type": "message_stop"})
    whole: dict[str, Any] = first["message"]
    assert (whole["content"], whole["stop_reason"]) == ([], None)
    told: dict[int, list[str]] = {}
    current: int | None = None
    for event in middle:
        match event["type"]:
            case "content_block_start":
                assert current is None
                current = event["index"]
                assert current == len(whole["content"])
                whole["content"].append(event["content_block"])
                told[current] = []
            case "content_block_delta":
                assert current is not None
                assert event["index"] == current
                block = whole["content"][current]
                field = {"text": "text", "tool_use": "partial_json"}[block["type"]]
                assert set(event["delta"]) == {"type", field}
                assert event["delta"][field]
                told[current].append(event["delta"][field])
            case "content_block_stop":
                assert event["index"] == current
                current = None
            case kind:
                raise AssertionError(kind)
    assert current is None
    for place, block in enumerate(whole["content"]):
        said = "".join(told[place])
        if block["type"] == "text":
            block["text"] += said
        else:
            block["input"] = json.loads(said or "{}")
    assert delta["type"] == "message_delta"
    whole |= delta["delta"]
    whole["usage"] |= delta["usage"]
    for name in delta.keys() - {"type", "delta", "usage"}:
        whole[name] = delta[name]
    return whole


@st.composite
def deltas(draw: st.DrawFn) -> list[Delta]:
    """Text and calls in any order, cut anywhere, as a model may have written them."""
    told: list[Delta] = []
    calls = 0
    for _ in range(draw(st.integers(0, 6))):
        if draw(st.booleans()):
            told.append(Delta(0, draw(st.text(max_size=4))))
            continue
        text = json.dumps(draw(OBJECTS))
        cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        first, *others = pieces
        parts = [CallPart(calls, first, f"call_{calls}", draw(st.sampled_from(("f", "g"))))]
        parts += [CallPart(calls, piece) for piece in others]
        calls += 1
        lead = draw(st.text(max_size=2))
        if draw(st.booleans()):
            told.append(Delta(0, lead, calls=tuple(parts)))
        else:
            told.append(Delta(0, lead, calls=tuple(parts[:1])))
            told += [Delta(0, "", calls=(part,)) for part in parts[1:]]
    return told


@STEADY
@given(
    told=deltas(),
    finish=st.sampled_from(("stop", "length", "tool_calls")),
    stopped_by=st.none() | st.just(1),
    x_limit=st.none() | st.just("token_budget"),
)
def test_any_stream_is_balanced_and_says_what_the_whole_says(
    told: list[Delta], finish: str, stopped_by: int | None, x_limit: str | None
) -> None:
    stops = ("a", "b")
    events, gathered = BlockEvents(HEAD), Gathered()
    data = events.start(USAGE.prompt)
    for delta in told:
        data += events.text(delta.text) + b"".join(map(events.call, delta.calls))
        gathered.add(delta)
    data += events.end(ended(finish, stopped_by, stops), USAGE, x_limit)
    whole = json.loads(message(HEAD, gathered.choice(0, finish, stopped_by), USAGE, stops, x_limit))
    assert put_together(events_of(data)) == whole


def test_each_end_has_its_reason() -> None:
    assert ended("stop", None, ()) == {"stop_reason": "end_turn", "stop_sequence": None}
    assert ended("stop", 1, ("a", "b")) == {"stop_reason": "stop_sequence", "stop_sequence": "b"}
    assert ended("length", None, ("a",))["stop_reason"] == "max_tokens"
    assert ended("tool_calls", None, ())["stop_reason"] == "tool_use"


def test_what_was_cached_is_no_input() -> None:
    assert usage_fields(Usage(10, 2, cached=6, cache_write=1), "flex") == {
        "input_tokens": 3,
        "cache_creation_input_tokens": 1,
        "cache_read_input_tokens": 6,
        "output_tokens": 2,
        "service_tier": "batch",
    }
    assert usage_fields(USAGE, "default")["service_tier"] == "standard"
    assert "service_tier" not in usage_fields(USAGE)


@pytest.mark.parametrize(
    "text", ('{"a": ', "", "[1]", "null", '{"a":NaN}', '{"a":1e999}', "[" * 5000)
)
def test_arguments_that_are_no_object_are_none(text: str) -> None:
    assert bytes(arguments(text)) == b"{}"


def test_arguments_are_told_as_they_were_written() -> None:
    text = '{"a" : [1, 12345678901234567890123]}'
    assert bytes(arguments(text)).decode() == text
