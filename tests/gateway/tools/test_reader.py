"""Calls in a text that comes in pieces: the same for every split, nothing lost, nothing shown twice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.tools.formats import _PLAIN, Format
from gateway.tools.reader import Called, Reader, Said, Spelling
from tests.gateway.text_cards import STEADY
from tests.gateway.tools.whole import Reading, Whole

NAMES = ("get_weather", "f")
HIDDEN = Spelling("\ufdd0", named=True, hidden=frozenset("\ufdd0\ufdd2"))
SPELLINGS: dict[str, Spelling] = {
    **{str(name): each for name, each in _PLAIN.items()},
    "hidden": HIDDEN,
}
HERMES, LLAMA = _PLAIN[Format.HERMES], _PLAIN[Format.LLAMA3_JSON]


def read(
    pieces: Sequence[str], spelling: Spelling, *, parallel: bool = True
) -> list[Said | Called]:
    reader = Reader(spelling, NAMES, "id_{}".format, parallel=parallel)
    out = [each for piece in pieces for each in reader.push(piece)]
    return out + reader.finish()


def gathered(out: Sequence[Said | Called]) -> Reading:
    """Put together as a client would; the first part of a call has its name and nothing else."""
    calls: dict[int, list[str]] = {}
    names: dict[int, str] = {}
    for each in out:
        if isinstance(each, Called):
            part = each.part
            if part.id is not None:
                assert (part.index, part.id, part.arguments) == (len(names), f"id_{len(names)}", "")
                assert part.name is not None
                names[part.index], calls[part.index] = part.name, []
            else:
                assert part.name is None
                assert part.index == len(names) - 1
                calls[part.index].append(part.arguments)
    text = "".join(each.text for each in out if isinstance(each, Said))
    return text, [(names[i], "".join(parts)) for i, parts in sorted(calls.items())]


CALL = '{"name": "f", "arguments": {"a": 1}}'
CASES: list[tuple[str, str, str, list[tuple[str, str]]]] = [
    ("plain", "hermes", "Hello, world!\n ", []),
    ("one", "hermes", f"<tool_call>\n{CALL}\n</tool_call>", [("f", '{"a": 1}')]),
    (
        "two",
        "hermes",
        f"<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>\n",
        [("f", '{"a": 1}')] * 2,
    ),
    ("list", "smollm2", f"<tool_call>[{CALL}, {CALL}]</tool_call>", [("f", '{"a": 1}')] * 2),
    ("no list", "smollm2", "<tool_call>[]</tool_call>", []),
    (
        "braces in strings",
        "hermes",
        '<tool_call>{"name":"f","arguments":{"a":"}\\"</tool_call>{[","b":{"c":[{}]}}}</tool_call>',
        [("f", '{"a":"}\\"</tool_call>{[","b":{"c":[{}]}}')],
    ),
    (
        "name last",
        "hermes",
        '<tool_call>{"arguments":{"x":[1]},"name":"f"}</tool_call>',
        [("f", '{"x":[1]}')],
    ),
    (
        "more keys",
        "hermes",
        '<tool_call>{"type":"function","id":3,"name":"f","arguments":{},"z":[{}]}</tool_call>',
        [("f", "{}")],
    ),
    (
        "escaped name",
        "hermes",
        '<tool_call>{"name":"\\u0066","arguments":{}}</tool_call>',
        [("f", "{}")],
    ),
    ("bare", "llama3_json", ' {"name": "f", "parameters": {"a": 1}}', [("f", '{"a": 1}')]),
    ("tagged", "llama3_json", f"<|python_tag|>{CALL}; {CALL}\n{CALL}", [("f", '{"a": 1}')] * 3),
    ("mistral", "mistral", f"[TOOL_CALLS] [{CALL}, {CALL}]", [("f", '{"a": 1}')] * 2),
    (
        "named",
        "mistral",
        "[TOOL_CALLS]f{}[TOOL_CALLS]get_weather[ARGS]{1}",
        [("f", "{}"), ("get_weather", "{1}")],
    ),
    ("hidden", "hidden", "\ufdd0f\ufdd2abc123\ufdd2{}", [("f", "{}")]),
]


@pytest.mark.parametrize(
    ("spelling", "text", "calls"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_each_format(spelling: str, text: str, calls: list[tuple[str, str]]) -> None:
    shown = text if spelling == "hermes" and not calls else ""
    expected = (shown, calls)
    assert gathered(read([text], SPELLINGS[spelling])) == expected
    assert gathered(read(list(text), SPELLINGS[spelling])) == expected


@pytest.mark.parametrize(
    "text",
    (
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "text"}</tool_call>',
        '<tool_call>{"name": f, "arguments": {}}</tool_call>',
        "<tool_call>call f</tool_call>",
        "<tool_call>",
        '<tool_call>{"name": "f", "argum',
        "a < b <tool <tool_call",
        '{"name": "f", "arguments": {}}',
    ),
)
def test_what_is_no_call_is_text_all_of_it(text: str) -> None:
    for whole in (text, "so: " + text + " and on"):
        if whole.endswith("on") and text.endswith("argum"):
            continue
        assert gathered(read(list(whole), HERMES)) == (whole, [])


@pytest.mark.parametrize(
    ("spelling", "text", "shown"),
    (
        ("hermes", f"<tool_call>{CALL}", ""),
        ("hermes", f"<tool_call>{CALL[:-1]}", ""),
        ("hermes", f"<tool_call>{CALL}\n</tool", ""),
        ("hermes", f"<tool_call>{CALL}\n</toolbox>", "\n</toolbox>"),
        ("smollm2", f"<tool_call>[{CALL}, ", ""),
        ("smollm2", f"<tool_call>[{CALL} and", " and"),
        ("llama3_json", f"{CALL}; ", ""),
        ("llama3_json", f"{CALL}; so", "; so"),
        ("llama3_json", f"{CALL} so", "so"),
    ),
)
def test_what_only_closes_a_call_is_no_text_and_what_does_not_close_it_is(
    spelling: str, text: str, shown: str
) -> None:
    expected = (shown, [("f", '{"a": 1}')])
    assert gathered(read(list(text), SPELLINGS[spelling])) == expected
    assert Whole(text, SPELLINGS[spelling], NAMES).read() == expected


def test_text_around_calls_keeps_its_order_and_loses_the_space_before_them() -> None:
    text = f"One \n\n<tool_call>{CALL}</tool_call>\n two <tool_call>{CALL}</tool_call> three "
    out = read([text], HERMES)
    kinds = [each.text if isinstance(each, Said) else each.index for each in out]
    assert kinds == ["One", 0, 0, "two", 1, 1, "three", " "]


def test_text_is_told_as_it_comes_and_only_what_may_begin_a_call_is_held_back() -> None:
    reader = Reader(HERMES, NAMES, str)
    told = [gathered(reader.push(char))[0] for char in "So <tool_cup"]
    assert told == ["S", "o", *[""] * 8, " <tool_cu", "p"]


def test_arguments_are_told_as_they_come() -> None:
    reader = Reader(HERMES, NAMES, "id_{}".format)
    head = reader.push('<tool_call>{"name": "f", "arguments": ')
    assert head == []
    (begun, first) = reader.push("{")
    assert isinstance(begun, Called)
    assert isinstance(first, Called)
    assert (begun.name, first.part.arguments) == ("f", "{")
    (more,) = reader.push('"a": "}')
    assert isinstance(more, Called)
    assert more.part.arguments == '"a": "}'
    assert gathered(read(['<tool_call>{"name":"f","arguments":{"a": "}'], HERMES)) == (
        "",
        [("f", '{"a": "}')],
    )


def test_without_parallel_calls_the_first_is_the_last_word() -> None:
    for spelling, text in (
        (HERMES, f"a <tool_call>{CALL}</tool_call><tool_call>{CALL}</tool_call> b"),
        (HERMES, '<tool_call>{"arguments": {}, "name": "f"}</tool_call> b'),
        (LLAMA, f"{CALL}; {CALL}"),
    ):
        for pieces in ([text], list(text)):
            reader = Reader(spelling, NAMES, "id_{}".format, parallel=False)
            out = [each for piece in pieces for each in reader.push(piece)]
            assert reader.done
            assert out + reader.finish() == out
            shown, calls = gathered(out)
            assert (shown, len(calls)) == ("a" if text[0] == "a" else "", 1)


fragments = st.sampled_from(
    [
        "<tool_call>", "</tool_call>", "<tool_", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "\ufdd0", "\ufdd2", ";", ",",
        "[", "]", "{", "}", '"', "\\", ":", " ", "\n", "x", "1", "null", "f", "{}", '{"a":"}"}', '"name"', '"name":"f"',
        '"name": "g"', '"arguments":{', '"arguments":{}', '"parameters": {"b":[1,{}]}', '{"name":"f","arguments":',
        CALL, f"<tool_call>{CALL}</tool_call>", f"[TOOL_CALLS][{CALL}]", "[TOOL_CALLS]f{", '{"arguments":{"a":"\\""},',
    ]
)  # fmt: skip
hostile = st.lists(st.one_of(fragments, fragments, st.text(max_size=3)), max_size=12).map("".join)


def split(text: str, cuts: Sequence[int]) -> list[str]:
    at = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in pairwise(at)]


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=map(str, SPELLINGS))
@STEADY
@given(hostile, st.lists(st.integers(0, 300), max_size=8))
def test_every_split_is_one_reading_and_that_of_the_whole(
    spelling: Spelling, text: str, cuts: list[int]
) -> None:
    expected = Whole(text, spelling, NAMES).read()
    assert gathered(read([text], spelling)) == expected
    assert gathered(read(list(text), spelling)) == expected
    assert gathered(read(split(text, cuts), spelling)) == expected


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=map(str, SPELLINGS))
@STEADY
@given(hostile)
def test_what_is_told_is_the_text_in_its_order_without_gaps_in_any_part(
    spelling: Spelling, text: str
) -> None:
    """Each shown character is the one at its place, each argument one run of the text, and places only rise."""
    at = 0
    for each in read(list(text), spelling):
        if isinstance(each, Said):
            assert each.at >= at
            assert text[each.at : each.end] == each.text
            at = each.end
        else:
            assert each.end >= at
            at = each.end
    if not any(mark in text for mark in (spelling.opens, *("{" * spelling.bare))):
        shown = "".join(char for char in text if char not in spelling.hidden)
        assert gathered(read([text], spelling)) == (shown, [])


@STEADY
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    ),
    st.sampled_from(list(Format)),
    st.booleans(),
)
@example("</tool_call>[TOOL_CALLS]<|python_tag|>", Format.HERMES, True)
def test_any_arguments_come_back_letter_by_letter(
    value: object, format_: Format, ascii_only: bool
) -> None:
    arguments = json.dumps({"x": value}, ensure_ascii=ascii_only)
    key = "parameters" if format_ is Format.LLAMA3_JSON else "arguments"
    call = f'{{"name": "get_weather", "{key}": {arguments}}}'
    text = {
        Format.HERMES: f"<tool_call>\n{call}\n</tool_call>",
        Format.SMOLLM2: f"<tool_call>[{call}]</tool_call>",
        Format.LLAMA3_JSON: call,
        Format.MISTRAL: f"[TOOL_CALLS] [{call}]",
    }[format_]
    assert gathered(read(list(text), _PLAIN[format_])) == ("", [("get_weather", arguments)])


def test_a_long_answer_of_openings_takes_time_in_proportion() -> None:
    """Nothing is read twice: what a failed call held is text, not read again."""
    reader = Reader(HERMES, NAMES, str)
    sent = 0
    machine = reader._machine

    class Counting:
        def send(self, char: str) -> None:
            nonlocal sent
            sent += 1
            machine.send(char)

    reader._machine = Counting()  # type: ignore[assignment]
    text = '<tool_call>{"x":"<tool_call>{{{ ' * 300
    out = reader.push(text) + reader.finish()
    assert sent == len(text) + 1
    assert gathered(out)[0] == text
