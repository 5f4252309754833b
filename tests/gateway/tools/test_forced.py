"""Grammars that make a model call: walked at random with the real compiler, each walk is a call that the reader reads."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from executor.contract import Grammar, GrammarKind
from executor.echo_card import IM_END
from executor.grammar.source import LIMITS, source
from gateway.api.structure import Structure, calling, named
from gateway.errors import ApiError
from gateway.text.detokenize import Detokenizer
from gateway.tools.asked import Choosing, Tool, Tools
from gateway.tools.forced import CALLS_MAX, forced
from gateway.tools.reader import Called, Said
from tests.gateway.tools.cards import FAMILIES, card, model

WEATHER = Tool(
    "get_weather",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 6},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
            "unit": {"enum": ["C", 'F"}']},
        },
        "required": ["city", "unit"],
    },
    schema_param="tools[0].function.parameters",
)
TIME = Tool("get_time", schema_param="tools[1].function.parameters")
TOOLS = (WEATHER, TIME)


def walk(family: str, text: str, seed: int) -> list[int]:
    """An answer at random: each token one of those that the grammar allows, an end more likely than not."""
    found = card(family)
    tokenizer = LLTokenizer(
        found.tokenizer_json.decode(), n_vocab=found.vocab_size, eos_token=IM_END
    )
    matcher = LLMatcher(tokenizer, source(Grammar(kind=GrammarKind.LARK, text=text)), limits=LIMITS)
    assert not matcher.get_error(), matcher.get_error()
    random = Random(seed)
    said: list[int] = []
    for _ in range(20_000):
        mask = matcher.compute_bitmask()
        may = [token for token in range(found.vocab_size) if mask[token // 8] >> (token % 8) & 1]
        plain = [token for token in may if token == 10 or 32 <= token < 127 or token > IM_END]
        token = IM_END if IM_END in may and random.random() < 0.6 else random.choice(plain or may)
        if token == IM_END:
            return said
        assert matcher.consume_token(token), matcher.get_error()
        said.append(token)
        if matcher.is_stopped():
            return said
    raise AssertionError("it never ended")


def calls_of(family: str, tokens: list[int], tools: Tools) -> tuple[str, list[tuple[str, str]]]:
    vocabulary, _, style = model(family)
    reader = style.reader(tools, str, skip_special_tokens=True)
    detokenizer = Detokenizer(vocabulary, printed=style.printed)
    out = reader.push(detokenizer.push(tokens)) + reader.finish()
    names: list[str] = []
    arguments: list[str] = []
    for each in out:
        if isinstance(each, Called) and each.name is not None:
            names.append(each.name)
            arguments.append("")
        elif isinstance(each, Called):
            arguments[-1] += each.part.arguments
    shown = "".join(each.text for each in out if isinstance(each, Said))
    return shown, list(zip(names, arguments, strict=True))


def check(name: str, arguments: str) -> None:
    given = json.loads(arguments)
    if name == "get_time":
        assert given == {}
        return
    assert name == "get_weather"
    assert {"city", "unit"} <= set(given) <= {"city", "days", "unit"}
    assert len(given["city"]) <= 6
    assert given["unit"] in {"C", 'F"}'}
    assert given.get("days", 1) in range(1, 10)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_whatever_the_model_says_is_calls_that_keep_their_schemas(family: str) -> None:
    _, _, style = model(family)
    several = Tools(TOOLS, Choosing.REQUIRED)
    counts = set()
    for seed in range(30):
        tokens = walk(family, forced(several, style).text, seed)
        shown, calls = calls_of(family, tokens, several)
        assert shown == ""
        assert 1 <= len(calls) <= CALLS_MAX
        counts.add(len(calls))
        for name, arguments in calls:
            check(name, arguments)
    assert len(counts) > 1


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_named_one_is_called_once(family: str) -> None:
    _, _, style = model(family)
    for tools in (
        Tools(TOOLS, Choosing.REQUIRED, "get_time"),
        Tools(TOOLS, Choosing.REQUIRED, allowed=frozenset({"get_time"}), parallel=False),
    ):
        text = forced(tools, style).text
        assert "get_weather" not in text
        for seed in range(5):
            assert calls_of(family, walk(family, text, seed), tools) == ("", [("get_time", "{}")])


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_where_another_shape_was_asked_for_it_is_that_or_calls(family: str) -> None:
    _, _, style = model(family)
    tools = Tools(TOOLS)
    text = forced(
        tools,
        style,
        {
            "type": "object",
            "properties": {"ok": {"type": "boolean"}},
            "required": ["ok"],
            "additionalProperties": False,
        },
    ).text
    seen = set()
    for seed in range(60):
        shown, calls = calls_of(family, walk(family, text, seed), tools)
        assert bool(shown) != bool(calls)
        seen.add(bool(calls))
        if shown:
            assert isinstance(json.loads(shown)["ok"], bool)
    assert seen == {True, False}


@pytest.mark.slow
def test_a_schema_that_cannot_be_kept_names_its_tool() -> None:
    _, _, style = model("hermes")
    good = Tool("good", parameters={"type": "object"}, schema_param="tools[0].function.parameters")
    for keyword, says in (
        ({"properties": {"a": {"type": "hiccup"}}}, "hiccup"),
        ({"properties": {"a": {"contains": {}}}}, "not supported"),
        ({"$ref": "http://127.0.0.1/x"}, "nothing is ever fetched"),
    ):
        bad = Tool("bad", parameters=keyword, schema_param="tools[1].function.parameters")
        asked = calling(None, Tools((good, bad), Choosing.REQUIRED), style)
        assert asked is not None
        matcher = LLMatcher(
            LLTokenizer(card("hermes").tokenizer_json.decode(), n_vocab=258, eos_token=IM_END),
            source(asked.grammar),
        )
        from executor.grammar.source import reason

        told = reason(matcher.get_error())
        assert says in told
        why = named(ApiError(400, "x", "invalid_grammar", f"The answer's shape: {told}."), asked)
        assert why.param == "tools[1].function.parameters"
        for ours in ("in line", "call:", "x-guidance"):
            assert ours not in why.message, "the client wrote a schema and no grammar"


def shape(kind: GrammarKind, text: str = "") -> Structure:
    return Structure(Grammar(kind=kind, text=text), "response_format")


def test_what_is_called_freely_has_no_grammar() -> None:
    _, _, style = model("hermes")
    assert calling(None, Tools(TOOLS), style) is None
    asked = shape(GrammarKind.REGEX, "a+")
    assert calling(asked, Tools(TOOLS, Choosing.NONE), style) == asked


@pytest.mark.parametrize(
    ("asked", "tools"),
    (
        (shape(GrammarKind.JSON_OBJECT), Tools(TOOLS, Choosing.REQUIRED)),
        (shape(GrammarKind.JSON_SCHEMA, "{}"), Tools(TOOLS, Choosing.REQUIRED, "get_time")),
        (shape(GrammarKind.REGEX, "a+"), Tools(TOOLS)),
        (shape(GrammarKind.LARK, "start: x"), Tools(TOOLS)),
    ),
)
def test_two_shapes_are_one_too_many(asked: Structure, tools: Tools) -> None:
    _, _, style = model("hermes")
    with pytest.raises(ApiError) as caught:
        calling(asked, tools, style)
    assert (caught.value.status, caught.value.param) == (400, "response_format")


def test_too_much_of_schemas_is_refused_before_it_is_compiled() -> None:
    _, _, style = model("hermes")
    large: dict[str, Any] = {"type": "object", "description": "x" * 50_000}
    tools = tuple(Tool(f"f{i}", parameters=large) for i in range(4))
    with pytest.raises(ApiError) as caught:
        calling(None, Tools(tools, Choosing.REQUIRED), style)
    assert (caught.value.status, caught.value.param) == (400, "tools")
    assert calling(None, Tools(tools, Choosing.REQUIRED, "f1"), style) is not None
