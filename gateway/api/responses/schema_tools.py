"""What /v1/responses says of tools: chat's fields without the `function` around them.

`tools: []` is as if left out, since every answer of OpenAI's repeats it and clients send it back.
Source: API.md §1, §2 (44); openai-python's types.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.api.refused import unsupported
from gateway.api.schema_tools import (
    DESCRIPTION_CHARS_MAX,
    TOOLS_MAX,
    AllowedField,
    AllowedToolsField,
    ChoiceField,
    NamedField,
    ToolField,
    ToolFunction,
    tools_of,
)
from gateway.errors import ApiError, invalid
from gateway.quoting import fit
from gateway.tools.asked import Tools


class FlatTool(msgspec.Struct, frozen=True):
    type: str
    name: str | None = None
    description: Annotated[str, Meta(max_length=DESCRIPTION_CHARS_MAX)] | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FlatNamed(msgspec.Struct, frozen=True):
    type: str
    name: str | None = None


class FlatChoice(msgspec.Struct, frozen=True):
    type: str
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: Annotated[list[FlatNamed], Meta(max_length=TOOLS_MAX)] | None = None


def flat_tools(
    listed: Sequence[FlatTool] | None, chosen: str | FlatChoice | None, *, parallel: bool | None
) -> Tools | None:
    """None: there are none.  Raises ApiError 400."""
    if not listed:
        if chosen is None or chosen in ("none", "auto"):  # a tuple: what is no word has no hash
            return None
        raise invalid("tool_choice: needs tools.", param="tool_choice")
    fields = [_field(tool, f"tools[{i}]") for i, tool in enumerate(listed)]
    choice = _choice(chosen) if isinstance(chosen, FlatChoice) else chosen
    try:
        tools = tools_of(fields, choice, parallel=parallel)
    except ApiError as why:
        raise _flat(why) from None
    assert tools is not None
    own = [
        replace(one, schema_param=f"tools[{i}].parameters") for i, one in enumerate(tools.listed)
    ]
    return replace(tools, listed=tuple(own))


def _field(tool: FlatTool, at: str) -> ToolField:
    if tool.type != "function":
        raise unsupported(
            f"{at}.type: '{fit(tool.type)}' is not supported here: nothing is searched, fetched or run "
            "for a request. Send tools of type function, which your own code runs.",
            param=f"{at}.type",
        )
    if tool.name is None:
        raise invalid(f"{at}.name: this field is required.", param=f"{at}.name")
    function = ToolFunction(tool.name, tool.description, tool.parameters, tool.strict)
    return ToolField("function", function)


def _choice(chosen: FlatChoice) -> ChoiceField:
    match chosen.type:
        case "function":
            return ChoiceField("function", NamedField(chosen.name or ""))
        case "allowed_tools":
            named = [
                AllowedField(one.type, NamedField(one.name or "")) for one in chosen.tools or ()
            ]
            if not named:
                raise invalid("tool_choice.tools: name at least one.", param="tool_choice.tools")
            allowed = AllowedToolsField(chosen.mode or "auto", named)
            return ChoiceField("allowed_tools", allowed_tools=allowed)
        case other:
            raise unsupported(
                f"tool_choice.type: '{fit(other)}' is not supported here: only functions are called.",
                param="tool_choice.type",
            )


def _flat(why: ApiError) -> ApiError:
    """By the names that the fields have here."""

    def here(name: str) -> str:
        return name.replace(".allowed_tools.", ".").replace(".function.", ".")

    if why.param is None:
        return why
    says = why.message.replace(why.param, here(why.param), 1)
    return invalid(says, param=here(why.param), code=why.code)


def shown_tool(tool: FlatTool) -> dict[str, Any]:
    """As every answer repeats it."""
    return {
        "type": tool.type,
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict is True,
    }


def shown_choice(chosen: str | FlatChoice | None) -> str | dict[str, Any]:
    if not isinstance(chosen, FlatChoice):
        return chosen or "auto"
    shown: dict[str, Any] = msgspec.to_builtins(chosen)
    if chosen.tools is not None:
        shown["tools"] = [{"type": one.type, "name": one.name} for one in chosen.tools]
    return {name: value for name, value in shown.items() if value is not None}
