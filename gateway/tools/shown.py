"""Tools, and the calls of a conversation, in the shape in which chat templates expect them.

Arguments are objects there, and text where a model's JSON does not parse.  Ids of calls, which only tie a result to its
call, are numbers of ours: a client's would be content, and some templates accept none but nine letters or digits.
What a client wrote is masked, keys included; the words of JSON Schema are not, since templates look at them.
Refuses to know: templates, tokens.  Source: transformers' chat template conventions ("Tool use").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from gateway import strict_json
from gateway.errors import ApiError
from gateway.text.masks import Mask
from gateway.tools.asked import Tool
from gateway.tools.calls import ToolCall

_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}
_KEYS = frozenset(
    [
        "$defs",
        "$ref",
        "additionalProperties",
        "allOf",
        "anyOf",
        "const",
        "default",
        "definitions",
        "description",
        "enum",
        "examples",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "format",
        "items",
        "maxItems",
        "maxLength",
        "maximum",
        "minItems",
        "minLength",
        "minimum",
        "multipleOf",
        "nullable",
        "oneOf",
        "pattern",
        "prefixItems",
        "properties",
        "required",
        "title",
        "type",
        "uniqueItems",
    ]
)
_TYPES = frozenset(["array", "boolean", "integer", "null", "number", "object", "string"])


def shown_tools(tools: Sequence[Tool], mask: Mask) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = []
    for place, tool in enumerate(tools):
        at = f"tools[{place}].function"
        function: dict[str, Any] = {"name": mask(tool.name, at, None)}
        if tool.description is not None:
            function["description"] = mask(tool.description, at, None)
        hide_key, hide = partial(_hidden, mask, at, _KEYS), partial(_hidden, mask, at, _TYPES)
        parameters = _NO_PARAMETERS if tool.parameters is None else tool.parameters
        function["parameters"] = _masked(parameters, hide_key, hide)
        shown.append({"type": "function", "function": function})
    return shown


def _hidden(mask: Mask, source: str, known: frozenset[str], text: str) -> str:
    return text if text in known else mask(text, source, None)


def shown_calls(
    told: Iterable[tuple[Sequence[ToolCall], str | None]], mask: Mask
) -> list[dict[str, Any]]:
    """What messages have beside role and content.  `told`: the calls of each, and the id of the one it answers."""
    shown: list[dict[str, Any]] = []
    known: dict[str, tuple[str, str]] = {}
    number = 0
    for place, (calls, answers) in enumerate(told):
        at = f"messages[{place}].tool_calls"
        made: list[dict[str, Any]] = []
        for call in calls:
            number += 1
            name = mask(call.name, at, None)
            known[call.id] = (f"{number:09d}", name)  # where an id is used again, the latest has it
            function = {"name": name, "arguments": _arguments(call, at, mask)}
            made.append({"id": f"{number:09d}", "type": "function", "function": function})
        more: dict[str, Any] = {"tool_calls": made} if made else {}
        if answers is not None:
            id_, name = known.get(answers, ("", ""))
            more |= {"tool_call_id": id_, "name": name}
        shown.append(more)
    return shown


def _arguments(call: ToolCall, at: str, mask: Mask) -> Any:
    def hide(text: str) -> str:
        return mask(text, at, None)

    parsed = parsed_arguments(call)
    return hide(call.arguments) if parsed is None else _masked(parsed, hide, hide)


def parsed_arguments(call: ToolCall) -> dict[str, Any] | None:
    """None where they are no JSON object: models err."""
    try:
        value = strict_json.loads(call.arguments.encode())
    except ApiError:
        return None
    return value if isinstance(value, dict) else None


def _masked(value: Any, key: Callable[[str], str], text: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return text(value)
    if isinstance(value, Mapping):
        return {key(name): _masked(inner, key, text) for name, inner in value.items()}
    if isinstance(value, list):
        return [_masked(inner, key, text) for inner in value]
    return value
