"""Strict JSON: what is refused, where the refusal points, and that text is never taken for structure."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import strict_json
from gateway.errors import ApiError

MIB = 1 << 20

REFUSED: list[tuple[bytes, str]] = [
    (b"", "empty"),
    (b" ", "too early"),
    (b"\xef\xbb\xbf{}", "byte order mark"),
    (b'{"a":1} x', "near byte 9"),
    (b"{}{}", "near byte 3"),
    (b'{"a":1', "too early"),
    (b"{'a':1}", "byte 1"),
    (b"[1,]", "byte 3"),
    (b"01", "byte 1"),
    (b"+1", "byte 0"),
    (b"NaN", "byte 0"),
    (b'{"a":NaN}', "byte 5"),
    (b"[Infinity]", "byte 1"),
    (b"[-Infinity]", "byte 2"),
    (b"[1e400]", "too large"),
    (b"[-1e400]", "too large"),
    (b"1" * 20, "20 digits"),
    (b"-" + b"1" * 20, "20 digits"),
    (b"1" * 400, "400 digits"),
    (b'{"seed":18446744073709551616}', "20 digits"),
    (b"1" * 30 + b".5", "30 digits"),
    (b"1e" + b"9" * 30, "30 digits"),
    (b"0." + b"1" * 65, "65 digits"),
    (b"[" + b"0.12345678901234567890," * 1001 + b"1]", "numbers of over"),
    (b'"\xff"', "UTF-8"),
    (b'"\xed\xa0\x80"', "UTF-8"),
    (b'{"\xff":1}', "UTF-8"),
    (b'"\xc0\x80"', "UTF-8"),
    (b"\xff\xfe{\x00}\x00", "byte 0"),
    (b'"\\ud800"', "valid JSON"),
    (b'["\\ud800x"]', "valid JSON"),
    (b'"\\udc00\\ud800"', "surrogate"),
    (b'{"a":"\\ud83d"}', "valid JSON"),
    (b'"\x00"', "byte 1"),
    (b'"a\nb"', "byte 2"),
    (b"\x00", "byte 0"),
    (b"[" * 65 + b"]" * 65, "deeper than 64"),
    (b'{"a":' * 65 + b"1" + b"}" * 65, "deeper than 64"),
    (b'[{"a":' * 33 + b"1" + b"}]" * 33, "deeper than 64"),
    (b"[" * 10_000 + b"]" * 10_000, "deeper than 64"),
    (b'{"a":1,"a":2}', 'key "a"'),
    (b'{"a":1,"\\u0061":2}', 'key "a"'),
    (b'{"a" :1,"a"\n:2}', 'key "a"'),
    (b'{"x":[{"b":{}},{"b":1,"c":2,"b":3}]}', 'key "b"'),
    (b'{"":1,"":2}', 'key ""'),
    (b'{"\\"":1,"\\"":2}', 'key "\\""'),
    (b'{"a":1,"a":2,"x":":","y":"\\":"}', 'key "a"'),
    (b'{"' + b"k" * 500 + b'":1,"' + b"k" * 500 + b'":2}', "k" * 64),
    (b'{"a":1,"a":"' + b"x" * 70_000 + b'"}', "repeats a key"),
    (b'{"' + b'x":1,"' * 3000 + b'a":1}', "repeats the key"),
    # a megabyte of each kind of hostility
    (b"[" * MIB, "objects and arrays"),
    (b"[" + b"[]," * (MIB // 3) + b"1]", "objects and arrays"),
    (b'{"a":' * (MIB // 5), "strings"),
    (b"{" + b'"a":1,' * (MIB // 6) + b'"a":1}', "strings"),
    (b"{" + b'"a":1,' * 60_000 + b'"a":1}', "repeats a key"),
    (b"[" + b'"\\\\",' * 70_000 + b"1]", "strings"),
    (b"1" * MIB, "digits"),
    (b"{}" + b" " * MIB + b"x", f"byte {MIB + 3}"),
]

GOOD: list[bytes] = [
    b"null",
    b" 42 ",
    b'"x"',
    b"[]",
    b"{}",
    b"[" * 64 + b"]" * 64,
    b"9223372036854775807",
    b"-9223372036854775808",
    b"0.1000000000000000055511151231257827",
    b'"\\ud83d\\ude00"',
    b'{"a":"\\u0000"}',
    b'{"a":1,"b":{"a":1},"c":[{"a":1},{"a":1}]}',
    b'{"a" : 1 , "b"\t:\r\n2}',
    b'{"a":":","b":"\\":","c":"\\\\","d":"x\\\\\\":"}',
    b'[":",":",": ","\\": "]',
    b'{"":1}',
    b'{"card":"4111111111111111111111111111"}',
    b'"' + b"[{" * 30_000 + b'"',
    b'"' + b'\\"' * 200_000 + b'"',
    b'{"t":"' + b'\\\\\\":' * 3000 + b'"}',
    b"[" + b"1," * 100_000 + b"1]",
    b"[" + b'":",' * 3000 + b'""]',
    b"1e-400",
]


@pytest.mark.parametrize(("body", "says"), REFUSED, ids=range(len(REFUSED)))
def test_bad_json_is_a_400_that_says_where(body: bytes, says: str) -> None:
    with pytest.raises(ApiError) as caught:
        strict_json.loads(body)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")
    assert says in caught.value.message
    assert len(caught.value.message) < 200


@pytest.mark.parametrize("body", GOOD, ids=range(len(GOOD)))
def test_good_json_is_what_the_standard_library_reads(body: bytes) -> None:
    assert strict_json.loads(body) == json.loads(body)


JSONS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.sampled_from('":\\ [{a1é\n'), max_size=6),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.sampled_from('":\\ {a\n'), max_size=4), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(JSONS, st.sampled_from([None, 0, 1]), st.booleans())
def test_any_value_survives_any_spelling(
    value: object, indent: int | None, ascii_only: bool
) -> None:
    body = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    assert strict_json.loads(body) == value


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(JSONS, st.text(st.sampled_from('":\\ {a\n'), max_size=3), st.sampled_from(["", " ", "\n"]))
def test_a_repeated_key_is_found_anywhere(value: object, key: str, gap: str) -> None:
    name, inner = json.dumps(key), json.dumps(value)
    body = f'[{inner},{{{name}{gap}:{inner},"other":0,{name}:{inner}}}]'.encode()
    with pytest.raises(ApiError, match="repeats"):
        strict_json.loads(body)


class Message(msgspec.Struct):
    role: Literal["user", "system"]
    content: str = ""


class Tool(msgspec.Struct, tag="function"):
    name: str


class Other(msgspec.Struct, tag="other"):
    name: str


class Body(msgspec.Struct):
    messages: list[Message]
    n: Annotated[int, msgspec.Meta(ge=1, le=8)] = 1
    user: Annotated[str, msgspec.Meta(max_length=3)] = ""
    logit_bias: dict[int, float] = {}
    tool: Tool | Other | None = None


class Closed(msgspec.Struct, forbid_unknown_fields=True):
    a: int = 0
    b: list[Closed] = []


def test_decode_gives_the_struct() -> None:
    body = strict_json.decode(b'{"messages":[{"role":"user","content":"hi"}],"extra":1}', Body)
    assert body == Body(messages=[Message(role="user", content="hi")])


@pytest.mark.parametrize(
    ("body", "param", "says"),
    (
        (b"[]", None, "The body is of the wrong kind: expected object, got array."),
        (b"42", None, "expected object, got int"),
        (b"null", None, "expected object, got null"),
        (b"{}", "messages", "'messages' is required"),
        (b'{"messages":{}}', "messages", "expected array, got object"),
        (b'{"messages":[{}]}', "messages[0].role", "'messages[0].role' is required"),
        (b'{"messages":[{"role":123}]}', "messages[0].role", "expected str, got int"),
        (
            b'{"messages":[{"role":"user"},{"role":"SECRET"}]}',
            "messages[1].role",
            "'messages[1].role' is not one of the accepted values.",
        ),
        (b'{"messages":[{"role":"user","content":5}]}', "messages[0].content", "got int"),
        (b'{"messages":[],"n":0}', "n", "expected int >= 1"),
        (b'{"messages":[],"n":true}', "n", "expected int, got bool"),
        (b'{"messages":[],"n":"1"}', "n", "expected int, got str"),
        (b'{"messages":[],"user":"SECRET"}', "user", "expected str of length <= 3"),
        (b'{"messages":[],"logit_bias":{"SECRET":1}}', "logit_bias", "A key of 'logit_bias'"),
        (b'{"messages":[],"logit_bias":{"1":"SECRET"}}', "logit_bias", "expected float, got str"),
        (b'{"messages":[],"tool":{"type":"SECRET"}}', "tool.type", "accepted values"),
    ),
)
def test_a_misfit_names_its_field_and_never_its_value(
    body: bytes, param: str | None, says: str
) -> None:
    with pytest.raises(ApiError) as caught:
        strict_json.decode(body, Body)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert says in caught.value.message
    assert "SECRET" not in caught.value.message


def test_an_unknown_field_is_named_where_a_type_is_closed() -> None:
    with pytest.raises(ApiError) as caught:
        strict_json.decode(b'{"b":[{"c":1}]}', Closed)
    assert caught.value.param == "b[0].c"


def test_decode_is_as_strict_as_loads() -> None:
    with pytest.raises(ApiError, match="repeats"):
        strict_json.decode(b'{"messages":[],"messages":[]}', Body)
