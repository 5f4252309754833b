"""What shape an answer is asked to have: `response_format` of OpenAI, `structured_outputs` of vLLM.

Cheap bounds only; whether a schema or a grammar means anything, the executor says.
`strict` changes nothing: a schema is always enforced.
Refuses to know: the compiler, tokens.  Source: API.md §1, §2 (45).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from executor.contract import GRAMMAR_BYTES_MAX, Grammar, GrammarKind
from gateway import strict_json
from gateway.errors import ApiError, invalid
from gateway.tools.asked import Choosing, Tools
from gateway.tools.forced import forced
from gateway.tools.formats import Style

CHOICES_MAX = 1024
SCHEMA_DEPTH = 48
"""Objects and arrays within each other.  What is generic in a schema is said once, in $defs."""
_LINE = re.compile(r"\bin line ([0-9]{1,6}):")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


class JsonSchema(msgspec.Struct, frozen=True):
    name: str
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True):
    type: str
    json_schema: JsonSchema | None = None


class StructuredOutputs(msgspec.Struct, frozen=True):
    """Exactly one.  `json` is a schema, as an object or as its text."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: Annotated[list[str], Meta(min_length=1, max_length=CHOICES_MAX)] | None = None
    grammar: str | None = None
    json_object: bool | None = None


@dataclass(frozen=True, slots=True)
class Structure:
    """`param` is the field that asked for it, to be named where it is refused; `params` the one that a line of
    the grammar came from."""

    grammar: Grammar
    param: str
    params: Mapping[int, str] = field(default_factory=dict)


def structure(form: ResponseFormat | None, outputs: StructuredOutputs | None) -> Structure | None:
    """None: any text.  Raises ApiError 400."""
    first = None if form is None else _of_format(form)
    second = None if outputs is None else _of_outputs(outputs)
    if first is not None and second is not None:
        raise _wrong("structured_outputs", "give either this or response_format, not both")
    return first or second


def _of_format(form: ResponseFormat) -> Structure | None:
    at = "response_format"
    match form.type:
        case "text":
            return None
        case "json_object":
            return Structure(Grammar(kind=GrammarKind.JSON_OBJECT), at)
        case "json_schema":
            asked = form.json_schema
            if asked is None:
                raise _wrong(f"{at}.json_schema", "this field is required")
            if _NAME.fullmatch(asked.name) is None:
                raise _wrong(f"{at}.json_schema.name", "expected 1 to 64 of a-z, A-Z, 0-9, _ and -")
            return bounded_schema(asked.schema, at)
        case _:
            raise _wrong(at, "expected text, json_object or json_schema", says=f"{at}.type")


def _of_outputs(outputs: StructuredOutputs) -> Structure:
    at = "structured_outputs"
    found: list[Structure] = []
    if outputs.json is not None:
        found.append(bounded_schema(_loaded(outputs.json, f"{at}.json"), f"{at}.json"))
    if outputs.regex is not None:
        found.append(_bounded(GrammarKind.REGEX, outputs.regex, f"{at}.regex"))
    if outputs.grammar is not None:
        found.append(_bounded(GrammarKind.LARK, outputs.grammar, f"{at}.grammar"))
    if outputs.choice is not None:
        if "" in outputs.choice:
            raise _wrong(f"{at}.choice", "a choice must not be empty")
        found.append(_bounded(GrammarKind.CHOICE, _json(outputs.choice, at), f"{at}.choice"))
    if outputs.json_object:
        found.append(Structure(Grammar(kind=GrammarKind.JSON_OBJECT), at))
    if len(found) != 1:
        raise _wrong(at, "expected exactly one of json, regex, choice, grammar and json_object")
    return found[0]


def _loaded(schema: dict[str, Any] | str, at: str) -> dict[str, Any]:
    if not isinstance(schema, str):
        return schema
    try:
        value = strict_json.loads(schema.encode())
    except (ApiError, UnicodeEncodeError):
        value = None
    if not isinstance(value, dict):
        raise _wrong(at, "expected a JSON Schema, as an object or as the text of one")
    return value


def bounded_schema(schema: dict[str, Any], at: str) -> Structure:
    """Raises ApiError 400 for one that is too deep or too large."""
    level: list[Any] = [schema]
    for _ in range(SCHEMA_DEPTH):
        level = [
            inner
            for one in level
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return _bounded(GrammarKind.JSON_SCHEMA, _json(schema, at), at)
    raise _wrong(
        at, f"the schema is nested deeper than {SCHEMA_DEPTH} levels; use $defs for what repeats"
    )


def _json(value: object, at: str) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        raise _wrong(at, "contains half of a surrogate pair, which is no text") from None


def _bounded(kind: GrammarKind, text: str, at: str) -> Structure:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise _wrong(at, "contains half of a surrogate pair, which is no text") from None
    if not 0 < size <= GRAMMAR_BYTES_MAX:
        raise _wrong(at, f"expected 1 to {GRAMMAR_BYTES_MAX} bytes, got {size}")
    return Structure(Grammar(kind=kind, text=text), at)


def _wrong(param: str, what: str, *, says: str = "") -> ApiError:
    return invalid(f"{says or param}: {what}.", param=param)


def calling(asked: Structure | None, tools: Tools, style: Style) -> Structure | None:
    """The shape of an answer that must call tools, or may where another shape was asked for.  Raises ApiError 400."""
    if not tools.callable:
        return asked
    content: dict[str, Any] | None = None
    if asked is not None:
        if tools.choosing is Choosing.REQUIRED:
            raise _wrong(asked.param, "an answer that has to call a tool has no other shape")
        match asked.grammar.kind:
            case GrammarKind.JSON_OBJECT:
                content = {"type": "object"}
            case GrammarKind.JSON_SCHEMA:
                content = msgspec.json.decode(asked.grammar.text)
            case _:
                raise _wrong(asked.param, "with tools, the other shape can only be a JSON Schema")
    elif tools.choosing is not Choosing.REQUIRED:
        return None
    made = forced(tools, style, content)
    whole = _bounded(GrammarKind.LARK, made.text, "tools")
    return replace(whole, params=made.params)


def named(why: ApiError, asked: Structure | None) -> ApiError:
    """The executor's refusal of a shape, with the field that asked for it."""
    if asked is not None and why.code in {"invalid_grammar", "grammar_too_costly"}:
        line = _LINE.search(why.message)
        why.param = asked.param if line is None else asked.params.get(int(line[1]), asked.param)
        if line is not None and asked.params:  # of a grammar that the client has never seen
            why.message = why.message.replace(f"{line[0]} ", "", 1)
    return why
