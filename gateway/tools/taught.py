"""Tools for a model whose chat template knows none: told in its system message, in the words that its family was
trained on, with calls and results as text of the conversation.

All of it is content, as whatever a client writes: no marker in it is a control token.
Refuses to know: templates, tokens.  Source: the model cards of SmolLM2 and Hermes 2 Pro ("function calling").
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gateway.text.masks import bare
from gateway.text.templates import ChatMessage, Piece
from gateway.tools.asked import Tool
from gateway.tools.formats import Format
from gateway.tools.shown import parsed_arguments, shown_tools

_HERMES = """You may call one or more of these functions to help with the request. Their signatures are between \
<tools></tools>:
<tools>
{tools}
</tools>

To call one, write a JSON object with its name and its arguments between <tool_call></tool_call>:
<tool_call>
{{"name": "function_name", "arguments": {{"argument": "value"}}}}
</tool_call>"""

_SMOLLM2 = """You are an expert in composing functions. You are given a question and a set of possible functions. To \
answer, make one or more calls of them. If none of them fits, or the question lacks what a function needs, say so.

You have access to the following tools:
<tools>{tools}</tools>

To call them, write nothing but a JSON list in this form, with each argument of its type:
<tool_call>[
{{"name": "func_name1", "arguments": {{"argument1": "value1", "argument2": "value2"}}}},
... (more calls as needed)
]</tool_call>"""

_LLAMA3 = """You may call these functions to help with the request:

{tools}

To call one, answer with nothing but a JSON object in this form: \
{{"name": "function_name", "parameters": {{"argument": "value"}}}}"""


def taught(
    messages: Sequence[ChatMessage], tools: Sequence[Tool], format_: Format
) -> tuple[ChatMessage, ...]:
    """The same conversation for a template that knows neither tools nor calls."""
    told = list(_as_text(messages, format_))
    if not tools:
        return tuple(told)
    said = _instruction(tools, format_)
    first = told[0]
    if first.role not in {"system", "developer"}:
        return (ChatMessage("system", said), *told)
    pieces = first.pieces or ((Piece(first.content),) if first.content else ())
    gap = (Piece("\n\n" + said),) if pieces else (Piece(said),)
    return (replace(ChatMessage.of(first.role, [*pieces, *gap]), name=first.name), *told[1:])


def _instruction(tools: Sequence[Tool], format_: Format) -> str:
    listed = shown_tools(tools, bare)
    if format_ is Format.SMOLLM2:
        return _SMOLLM2.format(tools=json.dumps(listed, ensure_ascii=False))
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in listed)
    return (_LLAMA3 if format_ is Format.LLAMA3_JSON else _HERMES).format(tools=lines)


def _as_text(messages: Sequence[ChatMessage], format_: Format) -> Iterator[ChatMessage]:
    """Calls as the model writes them, and results as what it is told next: those of one turn together, since many
    templates want user and assistant in turn."""
    results: list[str] = []
    for message in messages:
        if message.role == "tool":
            results.append(f"<tool_response>\n{message.content}\n</tool_response>")
            continue
        if results and message.role == "user":
            yield replace(message, content="\n".join([*results, message.content]))
            results.clear()
            continue
        if results:
            yield ChatMessage("user", "\n".join(results))
            results.clear()
        if message.calls:
            said = [message.content] if message.content else []
            yield ChatMessage(
                message.role, "\n".join([*said, _calls(message, format_)]), message.name
            )
        else:
            yield message
    if results:
        yield ChatMessage("user", "\n".join(results))


def _calls(message: ChatMessage, format_: Format) -> str:
    key = "parameters" if format_ is Format.LLAMA3_JSON else "arguments"
    calls = [
        json.dumps(
            {"name": call.name, key: call.arguments if parsed is None else parsed},
            ensure_ascii=False,
        )
        for call in message.calls
        for parsed in (parsed_arguments(call),)
    ]
    match format_:
        case Format.SMOLLM2:
            return f"<tool_call>[{', '.join(calls)}]</tool_call>"
        case Format.HERMES:
            return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)
        case Format.LLAMA3_JSON:
            return "; ".join(calls)
        case Format.MISTRAL:
            return f"[TOOL_CALLS][{', '.join(calls)}]"
