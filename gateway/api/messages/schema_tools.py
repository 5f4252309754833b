"""What a request of /v1/messages says of tools: `tools` and `tool_choice`, in Anthropic's form.

The bounds are those of a chat's.  Refuses to know: chat templates, grammars.  Source: Anthropic's Messages API.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.api.refused import unsupported
from gateway.api.schema import whole
from gateway.api.schema_tools import (
    DESCRIPTION_CHARS_MAX,
    TOOLS_BYTES_MAX,
    TOOLS_MAX,
    check_name,
    check_parameters,
)
from gateway.errors import invalid
from gateway.tools.asked import Choosing, Tool, Tools

__all__ = ["TOOLS_MAX", "MessagesTool", "ToolChoice", "ToolName", "message_tools"]

ToolName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]
"""Of a call in a conversation, which another model may have made."""


class MessagesTool(msgspec.Struct, frozen=True):
    """Of the client's own."""

    name: ToolName
    input_schema: dict[str, Any] | None = None
    type: str | None = None
    description: Annotated[str, Meta(max_length=DESCRIPTION_CHARS_MAX)] | None = None
    strict: bool | None = None


class ToolChoice(msgspec.Struct, frozen=True):
    type: Literal["auto", "any", "tool", "none"]
    name: ToolName | None = None
    disable_parallel_tool_use: bool | None = None


def message_tools(given: Sequence[MessagesTool] | None, choice: ToolChoice | None) -> Tools | None:
    """None: there are none.  Raises ApiError 400."""
    if not given:
        if choice is not None and choice.type not in {"auto", "none"}:
            raise invalid("tool_choice: there are no tools to choose from.", param="tool_choice")
        return None
    listed = tuple(_tool(tool, f"tools[{place}]") for place, tool in enumerate(given))
    names = [tool.name for tool in listed]
    if len(set(names)) < len(names):
        raise invalid("tools: two have the same name.", param="tools")
    if len(msgspec.json.encode(listed)) > TOOLS_BYTES_MAX:
        raise invalid(f"tools: expected at most {TOOLS_BYTES_MAX} bytes in all.", param="tools")
    if choice is None:
        return Tools(listed)
    named = choice.name if choice.type == "tool" else None
    if choice.type == "tool" and named is None:
        raise invalid("'tool_choice.name' is required and was not given.", param="tool_choice.name")
    if named is not None and named not in names:
        raise invalid("tool_choice.name: there is no tool of this name.", param="tool_choice.name")
    choosing = {"auto": Choosing.AUTO, "none": Choosing.NONE}.get(choice.type, Choosing.REQUIRED)
    return Tools(listed, choosing, named, parallel=not choice.disable_parallel_tool_use)


def _tool(tool: MessagesTool, at: str) -> Tool:
    if tool.type not in {None, "custom"}:
        raise unsupported(
            f"{at}.type: tools that a server runs are not supported here; describe your own by name, description "
            "and input_schema.",
            param=f"{at}.type",
        )
    if tool.input_schema is None:
        raise invalid(
            f"'{at}.input_schema' is required and was not given.", param=f"{at}.input_schema"
        )
    check_name(tool.name, f"{at}.name")
    check_parameters(tool.input_schema, f"{at}.input_schema")
    description = None if tool.description is None else whole(tool.description, at)
    return Tool(
        tool.name,
        description,
        tool.input_schema,
        strict=bool(tool.strict),
        schema_param=f"{at}.input_schema",
    )
