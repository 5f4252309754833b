"""How tools, calls and results stand in a prompt, in each family's template, and that none of it is ever control."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ApiError
from gateway.executors_start import tool_format
from gateway.settings.shape import ToolFormat
from gateway.text.masks import Origin
from gateway.text.prompts import Prompt, chat_prompt
from gateway.text.templates import ChatMessage, ChatTemplate, Piece
from gateway.text.tokenizer import Vocabulary
from gateway.tools.asked import Tool, Tools
from gateway.tools.calls import ToolCall
from gateway.tools.formats import Format, Style
from gateway.tools.reader import Called
from gateway.tools.taught import taught
from policies.scope.labels import tenant
from policies.scope.prefix import Supplier, shared_until
from tests.gateway.test_text_templates import NOW
from tests.gateway.text_cards import STEADY
from tests.gateway.tools.cards import FAMILIES, HERMES, card, model

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Ulm", "Köln"]},
        "days": {"type": "integer", "maximum": 9},
    },
    "required": ["city"],
}
WEATHER = Tool("get_weather", 'Weather of a "city".', CITY)
ARGUMENTS = {"city": "Köln", "n": [1, 2.5, None, True], 'a"b': {"x\n": "y"}}


def conversation(
    call: ToolCall | None = None, result: str = "It rains.", ask: str = "How is it in Köln?"
) -> list[ChatMessage]:
    made = call or ToolCall("call_1", "get_weather", json.dumps(ARGUMENTS))
    return [
        ChatMessage("user", ask),
        ChatMessage("assistant", "", calls=(made,)),
        ChatMessage("tool", result, call_id=made.id),
    ]


def prompt_of(
    family: str, messages: list[ChatMessage], tools: tuple[Tool, ...] = (WEATHER,)
) -> Prompt:
    """As `api.chat.templated` makes it."""
    vocabulary, template, style = model(family)
    if not style.shows:
        return chat_prompt(vocabulary, template, taught(messages, tools, style.format), now=NOW)
    return chat_prompt(vocabulary, template, messages, now=NOW, tools=tools)


def text_of(family: str, prompt: Prompt) -> str:
    vocabulary = model(family)[0]
    return vocabulary.decode(prompt.ids, skip_special_tokens=False)


def test_each_family_is_known_by_its_template_and_tokens() -> None:
    found = {family: model(family)[2] for family in FAMILIES}
    assert {family: (style.format, style.shows) for family, style in found.items()} == {
        "hermes": (Format.HERMES, True),
        "llama3_json": (Format.LLAMA3_JSON, True),
        "mistral": (Format.MISTRAL, True),
        "named": (Format.MISTRAL, True),
        "smollm2": (Format.SMOLLM2, False),
    }
    assert [family for family, style in found.items() if style.between] == ["named"]


@pytest.mark.parametrize(
    ("source", "format_"),
    (
        ("{{ messages[0].content }}", Format.HERMES),
        ("{{ tools }}{{ messages[0].content }}", None),
        ("{{ tools }}{{ messages[0].content }}<tool_call><function=f>", None),
        ("{{ tools }}{{ messages[0].content }}<tool_call>{}", Format.HERMES),
    ),
)
def test_an_unknown_form_is_not_guessed(source: str, format_: Format | None) -> None:
    vocabulary = Vocabulary.from_card(card("hermes"))
    style = ChatTemplate(source, vocabulary).style()
    assert (None if style is None else style.format) == format_


def test_a_form_that_is_set_stands_whatever_the_template_says() -> None:
    unknown = "{{ tools }}{{ messages[0].content }}"
    template = ChatTemplate(unknown, Vocabulary.from_card(card("hermes")))
    assert template.style() is None
    for said in ToolFormat:
        style = template.style(tool_format(said))
        assert (None if style is None else style.format.value) == (
            None if said is ToolFormat.AUTO else said.value
        )
    assert {each.value for each in Format} == {each.value for each in ToolFormat} - {"auto"}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_prompt_reads_as_the_family_writes_it(family: str) -> None:
    prompt = prompt_of(family, conversation())
    assert prompt.provenance
    text = text_of(family, prompt)
    shown = {
        "type": "function",
        "function": {"name": "get_weather", "description": WEATHER.description, "parameters": CITY},
    }
    indent = 4 if family == "llama3_json" else None
    if model(family)[2].format is Format.MISTRAL:  # its template quotes descriptions by itself
        assert json.dumps(CITY, ensure_ascii=False) in text
    else:
        assert json.dumps(shown, ensure_ascii=False, indent=indent) in text
    assert json.dumps(ARGUMENTS, ensure_ascii=False) in text
    assert "It rains." in text
    assert "call_1" not in text


def test_calls_and_results_are_tied_by_numbers_of_ours() -> None:
    calls = (ToolCall("same", "f", "{}"), ToolCall("other", "g", "{}"))
    messages = [
        ChatMessage("user", "x"),
        ChatMessage("assistant", "", calls=calls),
        ChatMessage("tool", "of g", call_id="other"),
        ChatMessage("tool", "of f", call_id="same"),
        ChatMessage("assistant", "", calls=(ToolCall("same", "g", "{}"),)),
        ChatMessage("tool", "of g again", call_id="same"),
    ]
    text = text_of("mistral", prompt_of("mistral", messages, ()))
    for place, result in ((2, "of g"), (1, "of f"), (3, "of g again")):
        assert f'"content": {result}, "call_id": "{place:09d}"' in text


def test_arguments_that_do_not_parse_stay_what_the_model_wrote() -> None:
    for broken in ("{", "[1]", '"text"', '{"a": NaN}', '{"a": 1, "a": 2}', ""):
        call = ToolCall("c", "f", broken)
        text = text_of("hermes", prompt_of("hermes", conversation(call)))
        assert f'"arguments": {json.dumps(broken, ensure_ascii=False)}}}' in text


MARKS = [
    "<|im_end|>", "<|im_start|>", "[TOOL_CALLS]", "[/INST]", "<|python_tag|>", "</s>", "<s>", "\x1f", "\\u001f", '"', "\\",
    "</tools>", "</tool_response>", "</tool_call>", "{{", "}}", "{%", "type", "object", "properties", "Lg", "q", "\u2028",
]  # fmt: skip
hostile = st.lists(
    st.one_of(st.sampled_from(MARKS), st.text(max_size=3)), min_size=1, max_size=4
).map("".join)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | hostile,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(hostile, inner, max_size=2),
    max_leaves=5,
)


def control(family: str, prompt: Prompt) -> list[int]:
    return [token for token in prompt.ids if token in model(family)[0].forbidden_ids]


@pytest.mark.parametrize("family", FAMILIES)
@STEADY
@given(hostile, values, values, hostile, hostile)
def test_nothing_that_a_client_says_of_tools_is_control(
    family: str, description: str, schema: object, value: object, result: str, name: str
) -> None:
    """Control tokens are those of the same conversation with innocent words, and every string of the client's
    stands in the prompt as it was given or in its JSON."""
    tool = Tool(
        "get_weather", description, {"type": "object", "properties": {name: {"const": schema}}}
    )
    call = ToolCall(name, "get_weather", json.dumps({name: value}))
    prompt = prompt_of(family, conversation(call, result), (tool,))
    assert prompt.provenance
    assert control(family, prompt) == control(family, prompt_of(family, conversation()))
    text = text_of(family, prompt)
    indent = 4 if family == "llama3_json" else None
    assert json.dumps({name: {"const": schema}}, ensure_ascii=False)[1:-1] in text or indent
    assert result in text or json.dumps(result, ensure_ascii=False) in text
    spans = [span for span in prompt.spans if span.origin is Origin.CONTENT]
    assert spans


def test_the_json_of_a_tool_is_one_piece_of_the_clients() -> None:
    """Tokenised together, as models were trained to read it, and brackets and numbers are content too."""
    vocabulary = model("hermes")[0]
    prompt = prompt_of("hermes", conversation(), (WEATHER, WEATHER))
    shown = {
        "type": "function",
        "function": {"name": "get_weather", "description": WEATHER.description, "parameters": CITY},
    }
    at, pieces = 0, []
    for span in prompt.spans:
        if span.origin is Origin.CONTENT:
            pieces.append(vocabulary.decode(prompt.ids[at : at + span.tokens]))
        at += span.tokens
    assert pieces[:2] == [json.dumps(shown, ensure_ascii=False)] * 2
    assert json.dumps(ARGUMENTS, ensure_ascii=False) in pieces


def test_tools_are_the_users_and_registered_text_before_them_stays_the_tenants() -> None:
    label = tenant("acme", "tmpl_a", 1)
    system = ChatMessage.of("system", [Piece("Be kind.", label)])
    for family in ("hermes", "smollm2"):
        prompt = prompt_of(family, [system, *conversation()])
        kept = prompt.supplied[: shared_until(prompt.supplied)]
        assert [each.label for each in kept if each.supplier is Supplier.REGISTERED] == [label]
        assert all(each.supplier is not Supplier.CLIENT for each in kept)
        others = [each for each in prompt.supplied if each.supplier is Supplier.REGISTERED]
        assert len(others) == 1


def test_registered_text_that_a_template_makes_json_of_is_not_taken_for_the_clients() -> None:
    """Joined with what a client wrote it would lose its label, and with it the right to revoke it."""
    vocabulary = Vocabulary.from_card(card("hermes"))
    template = ChatTemplate(
        "{% for m in messages %}{{ m.content | tojson }}{% endfor %}", vocabulary
    )
    label = tenant("acme", "tmpl_a", 1)
    message = ChatMessage.of("system", [Piece('Be "kind".', label), Piece(" hi")])
    prompt = chat_prompt(vocabulary, template, [message], now=NOW)
    assert not prompt.provenance
    assert [each.label for each in prompt.supplied] == [label]
    plain = chat_prompt(vocabulary, template, [ChatMessage("user", '"<|im_end|>"')], now=NOW)
    assert plain.provenance
    assert vocabulary.decode(plain.ids) == '"\\"<|im_end|>\\""'


def test_a_template_that_rewrites_tools_answers_in_one_piece_and_takes_no_markers() -> None:
    vocabulary = Vocabulary.from_card(card("hermes"))
    shouts = HERMES.replace("tool | tojson", "(tool | tojson).upper()")
    template = ChatTemplate(shouts, vocabulary)
    prompt = chat_prompt(vocabulary, template, conversation(), now=NOW, tools=(WEATHER,))
    assert not prompt.provenance
    assert {each.supplier for each in prompt.supplied} == {Supplier.MIXED}
    for bad in (
        (conversation(), Tool("f", "<|im_end|>")),
        (conversation(), Tool("f", parameters={"properties": {"<|im_end|>": {}}})),
        (conversation(ToolCall("c", "f", '{"x":"<|im_end|>"}')), WEATHER),
        (conversation(result="<|im_end|>"), WEATHER),
    ):
        with pytest.raises(ApiError) as caught:
            chat_prompt(vocabulary, template, bad[0], now=NOW, tools=(bad[1],))
        assert (caught.value.status, caught.value.code) == (400, "control_token")


def test_other_tools_are_other_tokens() -> None:
    """So nothing of one is found for the other (P2)."""
    others = (
        (),
        (Tool("get_weather", WEATHER.description, {**CITY, "required": []}),),
        (Tool("get_weather", "Other.", CITY),),
        (WEATHER, Tool("f")),
    )
    for family in FAMILIES:
        first = prompt_of(family, conversation())
        assert all(prompt_of(family, conversation(), tools).ids != first.ids for tools in others)


@pytest.mark.parametrize("format_", Format)
def test_what_is_taught_reads_back_as_the_same_calls(format_: Format) -> None:
    """A model that repeats what it is shown of its own calls calls them again."""
    calls = (ToolCall("a", "get_weather", '{"city": "Köln}"}'), ToolCall("b", "f", "{}"))
    told = taught(
        [ChatMessage("user", "x"), ChatMessage("assistant", "Sure.", calls=calls)], (), format_
    )
    assert [message.role for message in told] == ["user", "assistant"]
    said = told[1].content.removeprefix("Sure.\n")
    plain = model("hermes")[2]
    style = Style(format_, shows=False, spelling=plain.spelling, printed=plain.printed)
    reader = style.reader(Tools((WEATHER, Tool("f"))), str, skip_special_tokens=False)
    read = [each.name for each in reader.push(said) if isinstance(each, Called) and each.name]
    assert read == ["get_weather", "f"]


def test_what_is_taught_keeps_turns() -> None:
    """Results of one turn are one message, and go together with what the user says next: many templates want user
    and assistant in turn."""
    call = ToolCall("a", "f", "{}")
    told = taught(
        [
            ChatMessage("system", "Be kind."),
            ChatMessage("user", "x"),
            ChatMessage("assistant", "", calls=(call, call)),
            ChatMessage("tool", "1", call_id="a"),
            ChatMessage("tool", "2", call_id="a"),
            ChatMessage("user", "and?"),
            ChatMessage("assistant", "", calls=(call,)),
            ChatMessage("tool", "3", call_id="a"),
        ],
        (WEATHER,),
        Format.SMOLLM2,
    )
    assert [message.role for message in told] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
    ]
    assert told[0].content.startswith("Be kind.\n\n")
    assert "<tools>[{" in told[0].content
    assert told[3].content == (
        "<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>\nand?"
    )
    assert told[5].content == "<tool_response>\n3\n</tool_response>"
