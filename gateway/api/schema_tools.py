"""What a chat request says of tools: `tools`, `tool_choice`, `parallel_tool_calls`, calls and results in messages.

Cheap bounds only; whether a schema can be kept, the executor says.
Refuses to know: chat templates, grammars.  Source: API.md §1, §2 (9, 44); SECURITY.md §4 (A5).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gateway.api.refused import unsupported
from gateway.api.schema import whole
from gateway.api.structure import bounded_schema
from gateway.errors import ApiError, invalid
from gateway.quoting import fit
from gateway.tools.asked import Choosing, Tool, Tools
from gateway.tools.calls import ToolCall

TOOLS_MAX = 128
TOOLS_BYTES_MAX = 256 * 1024
DESCRIPTION_CHARS_MAX = 16 * 1024
CALLS_MAX = 128
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


class ToolFunction(msgspec.Struct, frozen=True):
    name: str
    description: Annotated[str, Meta(max_length=DESCRIPTION_CHARS_MAX)] | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolField(msgspec.Struct, frozen=True):
    type: str
    function: ToolFunction | None = None


class NamedField(msgspec.Struct, frozen=True):
    name: str


class AllowedField(msgspec.Struct, frozen=True):
    type: str
    function: NamedField | None = None


class AllowedToolsField(msgspec.Struct, frozen=True):
    mode: str
    tools: Annotated[list[AllowedField], Meta(min_length=1, max_length=TOOLS_MAX)]


class ChoiceField(msgspec.Struct, frozen=True):
    type: str
    function: NamedField | None = None
    allowed_tools: AllowedToolsField | None = None


class CallFunction(msgspec.Struct, frozen=True):
    """Arguments are text, whatever a model made of them."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    arguments: str


class CallField(msgspec.Struct, frozen=True):
    id: Annotated[str, Meta(min_length=1, max_length=256)]
    function: CallFunction | None = None
    type: str = "function"


def tools_of(
    listed: Sequence[ToolField] | None,
    choice: str | ChoiceField | None,
    *,
    parallel: bool | None,
) -> Tools | None:
    """None: there are none.  Raises ApiError 400."""
    if listed is None:
        if choice is not None and choice != "none":
            raise invalid("tool_choice: only allowed together with tools.", param="tool_choice")
        return None
    if not listed:
        raise invalid("tools: expected at least one; leave it out for none.", param="tools")
    tools = tuple(_tool(one, f"tools[{i}]") for i, one in enumerate(listed))
    names = [tool.name for tool in tools]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise _wrong(f"tools[{i}].function.name", f"'{name}' is the name of another tool too")
    if len(msgspec.json.encode(tools)) > TOOLS_BYTES_MAX:
        raise _wrong("tools", f"expected at most {TOOLS_BYTES_MAX} bytes in all")
    return chosen(tools, choice, parallel=parallel is not False)


def chosen(tools: tuple[Tool, ...], choice: str | ChoiceField | None, *, parallel: bool) -> Tools:
    """Raises ApiError 400."""
    at = "tool_choice"
    match choice:
        case None:
            return Tools(tools, parallel=parallel)
        case str():
            return Tools(tools, _mode(choice, at, ("none", "auto", "required")), parallel=parallel)
        case ChoiceField(type="function", function=NamedField(name=name)):
            _known(name, tools, f"{at}.function.name")
            return Tools(tools, Choosing.REQUIRED, named=name, parallel=parallel)
        case ChoiceField(type="allowed_tools", allowed_tools=AllowedToolsField() as allowed):
            names = [
                _allowed(one, f"{at}.allowed_tools.tools[{i}]")
                for i, one in enumerate(allowed.tools)
            ]
            for i, name in enumerate(names):
                _known(name, tools, f"{at}.allowed_tools.tools[{i}].function.name")
            mode = _mode(allowed.mode, f"{at}.allowed_tools.mode", ("auto", "required"))
            return Tools(tools, mode, parallel=parallel, allowed=frozenset(names))
        case _:
            raise _wrong(
                at,
                'expected none, auto, required, {"type": "function", "function": {"name": …}} or '
                '{"type": "allowed_tools", "allowed_tools": {"mode": …, "tools": […]}}',
            )


def _mode(mode: str, at: str, modes: tuple[str, ...]) -> Choosing:
    if mode not in modes:
        raise _wrong(
            at, "expected " + ", ".join(modes) + (" or an object" if len(modes) > 2 else "")
        )
    return Choosing(mode)


def _allowed(one: AllowedField, at: str) -> str:
    if one.type != "function" or one.function is None:
        raise _wrong(at, 'expected {"type": "function", "function": {"name": …}}')
    return one.function.name


def _known(name: str, tools: Sequence[Tool], at: str) -> None:
    if all(tool.name != name for tool in tools):
        raise _wrong(at, f"'{fit(name)}' is not among the tools of this request")


def _tool(field: ToolField, at: str) -> Tool:
    if field.type != "function":
        raise unsupported(
            f"{at}.type: only tools of type function are run by clients of this server.",
            param=f"{at}.type",
        )
    if field.function is None:
        raise _wrong(f"{at}.function", "this field is required")
    function = field.function
    check_name(function.name, f"{at}.function.name")
    whole(function.description or "", f"{at}.function.description")
    if function.parameters is not None:
        check_parameters(function.parameters, f"{at}.function.parameters")
    return Tool(
        function.name,
        function.description,
        function.parameters,
        strict=bool(function.strict),
        schema_param=f"{at}.function.parameters",
    )


def check_name(name: str, at: str) -> None:
    if _NAME.fullmatch(name) is None:
        raise _wrong(at, "expected 1 to 64 of a-z, A-Z, 0-9, _ and -")


def check_parameters(parameters: dict[str, Any], at: str) -> None:
    """A JSON Schema of an object, within the bounds of every schema.  Raises ApiError 400."""
    if parameters.get("type", "object") != "object":
        raise _wrong(at, "expected the JSON Schema of an object")
    bounded_schema(parameters, at)


def calls_of(fields: Sequence[CallField], at: str) -> tuple[ToolCall, ...]:
    """Raises ApiError 400."""
    calls: list[ToolCall] = []
    for i, field in enumerate(fields):
        if field.type != "function":
            raise unsupported(f"{at}[{i}].type: expected function.", param=f"{at}[{i}].type")
        if field.function is None:
            raise _wrong(f"{at}[{i}].function", "this field is required")
        for text in (field.id, field.function.name, field.function.arguments):
            whole(text, f"{at}[{i}]")
        calls.append(ToolCall(field.id, field.function.name, field.function.arguments))
    return tuple(calls)


def _wrong(at: str, what: str) -> ApiError:
    return invalid(f"{at}: {what}.", param=at)
