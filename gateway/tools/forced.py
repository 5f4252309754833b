"""A grammar that makes a model call: one of the functions that may be called, in the model's own form, with arguments
by the function's schema.

Each schema stands on a line of its own, by which a complaint names it.  JSON is written as in training, with one space
after each comma and colon: no room for a model to go on for ever between two brackets.
Refuses to know: the compiler, requests.  Source: llguidance 1.9.1, docs/syntax.md (`%json`, `<[id]>`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.tools.asked import Tool, Tools
from gateway.tools.formats import Format, Style

CALLS_MAX: Final = 16
"""In one answer that has to call."""
_FIXED = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


@dataclass(frozen=True, slots=True)
class Forced:
    """`text` in the Lark dialect of llguidance; `params`: by line, the field that it came from."""

    text: str
    params: Mapping[int, str]


def forced(tools: Tools, style: Style, content: Mapping[str, Any] | None = None) -> Forced:
    """`content`: the schema of an answer that does not call, where it may do that instead."""
    called = tools.callable
    opens, between, closes, around = _form(style)
    more = 0 if tools.single else CALLS_MAX - 1
    row = _row("call", _literal(between), more)
    each = " ".join(filter(None, [opens, "one", closes]))
    rules = [
        f"start: calls{'' if content is None else ' | content'}",
        f"calls: {row if not around else ' '.join(filter(None, [opens, row, closes]))}",
        f"call: {'one' if around else each}",
        "one: " + " | ".join(_call(tool, i, style) for i, tool in enumerate(called)),
    ]
    params: dict[int, str] = {}
    for i, tool in enumerate(called):
        rules.append(f"a{i}: %json {_json(_closed(tool))}")
        params[len(rules)] = tool.schema_param
    if content is not None:
        rules.append(f"content: %json {_json(content)}")
    return Forced("\n".join(rules) + "\n", params)


def _form(style: Style) -> tuple[str, str, str, bool]:
    """What opens, stands between and closes calls; whether it stands around all of them."""
    opens, closes = (style.marker(text) for text in (style.plain.opens, style.plain.closes))
    match style.format:
        case Format.HERMES:
            return f'{opens} "\\n"', "\n", f'"\\n" {closes}', False
        case Format.SMOLLM2:
            return f'{opens} "["', ", ", f'"]" {closes}', True
        case Format.LLAMA3_JSON:
            return "", "; ", "", False
        case Format.MISTRAL if style.between:
            return opens, "", "", False
        case Format.MISTRAL:
            return f'{opens} " "? "["', ", ", '"]"', True


def _row(rule: str, between: str, more: int) -> str:
    return rule if not more else f"{rule} ({between} {rule}){{0,{more}}}"


def _call(tool: Tool, place: int, style: Style) -> str:
    if style.format is Format.MISTRAL and style.between:
        return f"{_literal(tool.name)} {style.marker('[ARGS]')} a{place}"
    key = "parameters" if style.format is Format.LLAMA3_JSON else "arguments"
    # The bracket by itself, as in a schema's grammar: a longer word that begins alike would shut that out.
    head = _literal(f'"name": "{tool.name}", "{key}": ')
    return f'"{{" {head} a{place} "}}"'


def _closed(tool: Tool) -> dict[str, Any]:
    """An object, with what its schema names and nothing else unless it says so: a small model adds for ever."""
    schema = {"type": "object", "properties": {}} if tool.parameters is None else tool.parameters
    if "properties" in schema and not {"additionalProperties", "patternProperties"} & set(schema):
        schema = {**schema, "additionalProperties": False}
    return {"type": "object", **schema}


def _json(schema: Mapping[str, Any]) -> str:
    """What it says in `x-guidance` is overridden, as in every schema."""
    return json.dumps({**schema, "x-guidance": _FIXED}, ensure_ascii=False)


def _literal(text: str) -> str:
    """A JSON string is a Lark string."""
    return json.dumps(text) if text else ""
