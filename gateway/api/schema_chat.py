"""POST /v1/chat/completions: the request, read into a frozen `ChatJob`.

Refuses to know: the chat template (roles it lacks are its business), limits of a plan.
Source: API.md §1, §2 (8–10, 12–13, 19, 34, 44, 48).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.api.refused import CHAT, refuse, unsupported
from gateway.api.schema import (
    CommonRequest,
    Controls,
    TokenCount,
    controls,
    object_of,
    shape,
    whole,
)
from gateway.api.schema_tools import (
    CALLS_MAX,
    TOOLS_MAX,
    CallField,
    ChoiceField,
    ToolField,
    calls_of,
    tools_of,
)
from gateway.errors import invalid
from gateway.quoting import fit
from gateway.references import DOCUMENTS_MAX, References, TemplateReference
from gateway.text.templates import ChatMessage
from gateway.tools.asked import Tools
from policies.registered import VARIABLES_MAX

MESSAGES_MAX = 2048
PARTS_MAX = 1024

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
_MEDIA = {
    "image_url": "Images are",
    "input_audio": "Audio is",
    "video_url": "Video is",
    "audio_url": "Audio is",
    "image": "Images are",
    "refusal": "Parts of type refusal are",
}
_KWARG = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)
# What a template is given by us.  (CVE-2025-62426: vLLM let these be overridden.)
_RESERVED = frozenset(
    {
        *CHAT,
        "messages",
        "tokenize",
        "bos_token",
        "eos_token",
        "unk_token",
        "pad_token",
        "raise_exception",
        "strftime_now",
    }
)


class _File(msgspec.Struct, frozen=True):
    file_id: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    file_data: Any = None


class _Part(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None
    file: _File | None = None


class _Prompt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: Annotated[str, Meta(min_length=1, max_length=64)]
    version: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    variables: Annotated[dict[str, Any], Meta(max_length=VARIABLES_MAX)] | None = None


class _Message(msgspec.Struct, frozen=True):
    role: str
    content: str | Annotated[list[_Part], Meta(max_length=PARTS_MAX)] | None = None
    name: Annotated[str, Meta(max_length=64)] | None = None
    tool_calls: Annotated[list[CallField], Meta(max_length=CALLS_MAX)] | None = None
    tool_call_id: Annotated[str, Meta(max_length=256)] | None = None
    function_call: Any = None


class ChatRequest(CommonRequest, frozen=True, kw_only=True):
    messages: Annotated[list[_Message], Meta(min_length=1, max_length=MESSAGES_MAX)]
    max_completion_tokens: TokenCount | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = (
        None
    )
    chat_template_kwargs: Annotated[dict[str, Any], Meta(max_length=16)] | None = None
    prompt: _Prompt | None = None
    tools: Annotated[list[ToolField], Meta(max_length=TOOLS_MAX)] | None = None
    tool_choice: str | ChoiceField | None = None
    parallel_tool_calls: bool | None = None


@dataclass(frozen=True, slots=True)
class ChatJob:
    """`template_extras` are for the chat template, which ignores those it does not know.  `references`:
    what is named by id; it stands before the first message, wherever it was named.  `repeated`: what the answer is to
    repeat of the request."""

    controls: Controls
    messages: tuple[ChatMessage, ...]
    template_extras: Mapping[str, Any] = field(default_factory=dict)
    references: References = field(default_factory=References)
    tools: Tools | None = None
    repeated: Mapping[str, Any] = field(default_factory=dict)


def parse_chat(body: object, *, vocab_size: int) -> ChatJob:
    """Raises ApiError 400, naming `param`."""
    refuse(object_of(body), CHAT)
    request = shape(body, ChatRequest)
    top = request.top_logprobs
    if top and not request.logprobs:
        raise invalid("top_logprobs: needs logprobs: true.", param="top_logprobs")
    read = [_message(one, f"messages[{i}]") for i, one in enumerate(request.messages)]
    _check_results([message for message, _ in read])
    tools = tools_of(request.tools, request.tool_choice, parallel=request.parallel_tool_calls)
    extras = _extras(request.chat_template_kwargs or {})
    if request.reasoning_effort is not None:
        extras.setdefault("reasoning_effort", request.reasoning_effort)
    return ChatJob(
        controls(
            request,
            max_tokens=request.max_completion_tokens or request.max_tokens,
            max_tokens_field="max_completion_tokens"
            if request.max_completion_tokens
            else "max_tokens",
            top_logprobs=(top or 0) if request.logprobs else None,
            vocab_size=vocab_size,
        ),
        tuple(message for message, _ in read),
        extras,
        References(
            documents_once([id_ for _, ids in read for id_ in ids], "messages"),
            _template(request.prompt),
        ),
        tools,
    )


def documents_once(ids: Sequence[str], param: str) -> tuple[str, ...]:
    """Raises ApiError 400 where there are too many."""
    once = tuple(dict.fromkeys(ids))
    if len(once) > DOCUMENTS_MAX:
        raise invalid(f"{param}: at most {DOCUMENTS_MAX} documents in a request.", param=param)
    return once


def _template(prompt: _Prompt | None) -> TemplateReference | None:
    if prompt is None:
        return None
    variables = prompt.variables or {}
    for name, value in variables.items():
        whole(name + (value if isinstance(value, str) else ""), "prompt.variables")
    return TemplateReference(whole(prompt.id, "prompt.id"), prompt.version, variables)


def _message(message: _Message, param: str) -> tuple[ChatMessage, list[str]]:
    """And the documents it names."""
    if message.role == "function" or message.function_call:
        at = f"{param}.{'role' if message.role == 'function' else 'function_call'}"
        raise unsupported(f"{at}: an older form; use tool_calls and the role tool.", param=at)
    if message.role not in _ROLES:
        raise invalid(
            f"{param}.role: expected system, developer, user, assistant or tool.",
            param=f"{param}.role",
        )
    calls = calls_of(message.tool_calls or (), f"{param}.tool_calls")
    if calls and message.role != "assistant":
        raise invalid(
            f"{param}.tool_calls: only an assistant calls tools.", param=f"{param}.tool_calls"
        )
    content = "" if message.content is None and calls else message.content
    if content is None:
        raise invalid(f"{param}.content: this field is required.", param=f"{param}.content")
    named: list[str] = []
    if not isinstance(content, str):
        parts: list[str] = []
        for i, part in enumerate(content):
            at = f"{param}.content[{i}]"
            if part.type == "file" and message.role not in {"assistant", "tool"}:
                named.append(_file(part, at))
            else:
                parts.append(_text(part, at))
        content = "\n".join(parts)  # as vLLM joins them
    name = None if message.name is None else whole(message.name, f"{param}.name")
    return ChatMessage(
        message.role,
        whole(content, f"{param}.content"),
        name or None,
        calls=calls,
        call_id=message.tool_call_id if message.role == "tool" else None,
    ), named


def _check_results(messages: Sequence[ChatMessage]) -> None:
    """Each result is of a call before it.  A call may stay without one: its user may have gone on."""
    made: set[str] = set()
    for place, message in enumerate(messages):
        made.update(call.id for call in message.calls)
        if message.role == "tool" and message.call_id not in made:
            param = f"messages[{place}].tool_call_id"
            what = (
                "this field is required"
                if message.call_id is None
                else "no call before this has that id"
            )
            raise invalid(f"{param}: {what}.", param=param)


def _file(part: _Part, param: str) -> str:
    if part.file is None or part.file.file_id is None or part.file.file_data is not None:
        raise unsupported(
            f"{param}.file: expected the file_id of a registered document (POST /v1/documents), and "
            "nothing else: files are not read from a request.",
            param=f"{param}.file",
        )
    return whole(part.file.file_id, f"{param}.file.file_id")


def _text(part: _Part, param: str) -> str:
    if part.type in _MEDIA:
        raise unsupported(
            f"{param}: {_MEDIA[part.type]} not supported here yet, and nothing is ever fetched from "
            "an address in a request. Send parts of type text.",
            param=param,
        )
    if part.type != "text":
        raise invalid(f"{param}.type: expected text.", param=f"{param}.type")
    if part.text is None:
        raise invalid(f"{param}.text: this field is required.", param=f"{param}.text")
    return part.text


def _extras(given: Mapping[str, Any]) -> dict[str, Any]:
    """Scalars only: a template loops over lists, and a client's list is no bound."""
    for name, value in given.items():
        if _KWARG.fullmatch(name) is None or name in _RESERVED:
            raise invalid(
                f"chat_template_kwargs: '{fit(name)}' cannot be set by a request.",
                param="chat_template_kwargs",
            )
        scalar = value is None or isinstance(value, bool)
        number = isinstance(value, int | float) and abs(value) <= 1_000_000
        if not (scalar or number or (isinstance(value, str) and len(value) <= 64)):
            raise invalid(
                f"chat_template_kwargs.{name}: expected a boolean, a number up to a million, or a "
                "string of up to 64 characters.",
                param="chat_template_kwargs",
            )
        if isinstance(value, str):
            whole(value, "chat_template_kwargs")
    return dict(given)
