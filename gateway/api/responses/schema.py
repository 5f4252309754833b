"""POST /v1/responses: the request, read into the same frozen `ChatJob` that a chat becomes.

What OpenAI's own answers repeat of a request is read here too (`repeated`), so that what was understood is what is
told.  `tools: []` is as if left out, since every answer of OpenAI's repeats it and clients send it back.
Refuses to know: the chat template, the words of the answer, limits of a plan.
Source: API.md §1 (Responses, minimum), §2 (44, 72); openai-python's types.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.api.refused import RESPONSES, refuse
from gateway.api.responses.items import (
    Given,
    GivenInput,
    Item,
    documents_of,
    items_of,
    messages_of,
)
from gateway.api.responses.schema_tools import (
    FlatChoice,
    FlatTool,
    flat_tools,
    shown_choice,
    shown_tool,
)
from gateway.api.schema import (
    CommonRequest,
    Controls,
    TokenCount,
    controls,
    object_of,
    shape,
    whole,
)
from gateway.api.schema_chat import ChatJob, documents_once
from gateway.api.schema_tools import DESCRIPTION_CHARS_MAX, TOOLS_MAX
from gateway.api.structure import JsonSchema, ResponseFormat
from gateway.errors import ApiError, invalid
from gateway.quoting import fit
from gateway.references import References, TemplateReference
from gateway.text.templates import ChatMessage
from gateway.tools.asked import Tools
from policies.registered import VARIABLES_MAX

LOGPROBS = "message.output_text.logprobs"
_INCLUDED = frozenset(
    {
        LOGPROBS,
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "reasoning.encrypted_content",
        "web_search_call.action.sources",
        "web_search_call.results",
    }
)
"""All but the first ask for more of what is never in an answer here."""
_VERSION = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)


class _Format(msgspec.Struct, frozen=True):
    """All of it is repeated in every answer and kept with it; the model is shown none of it."""

    type: str
    name: str | None = None
    schema: dict[str, Any] | None = None
    description: Annotated[str, Meta(max_length=DESCRIPTION_CHARS_MAX)] | None = None
    strict: bool | None = None


class _Text(msgspec.Struct, frozen=True):
    format: _Format | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class _Reasoning(msgspec.Struct, frozen=True):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class _Prompt(msgspec.Struct, frozen=True):
    id: Annotated[str, Meta(min_length=1, max_length=64)]
    version: int | str | None = None
    variables: Annotated[dict[str, Any], Meta(max_length=VARIABLES_MAX)] | None = None


class ResponsesRequest(CommonRequest, frozen=True, kw_only=True):
    input: GivenInput
    instructions: str | None = None
    max_output_tokens: TokenCount | None = None
    max_tool_calls: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    text: _Text | None = None
    reasoning: _Reasoning | None = None
    tools: Annotated[list[FlatTool], Meta(max_length=TOOLS_MAX)] | None = None
    tool_choice: Literal["none", "auto", "required"] | FlatChoice | None = None
    parallel_tool_calls: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    include: Annotated[list[str], Meta(max_length=16)] | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    prompt: _Prompt | None = None


@dataclass(frozen=True, slots=True)
class Asking:
    """One request.  `items` is its input; what came before it in a conversation is put in front by `job`.
    `previous`: the stored response that it goes on from.  Nothing is stored unless that is asked for."""

    items: tuple[Given, ...]
    instructions: str | None
    controls: Controls
    extras: Mapping[str, Any] = field(default_factory=dict)
    template: TemplateReference | None = None
    tools: Tools | None = None
    repeated: Mapping[str, Any] = field(default_factory=dict)
    previous: str | None = None
    store: bool = False
    background: bool = False

    def job(self, items: Sequence[Item]) -> ChatJob:
        """`items`: of the whole conversation.  Instructions stand before everything.  Raises ApiError 400."""
        messages = messages_of(items)
        if self.instructions is not None:
            messages = (ChatMessage("system", self.instructions), *messages)
        if not messages:
            raise invalid("input: there is nothing in it to answer.", param="input")
        return ChatJob(
            self.controls,
            messages,
            self.extras,
            References(documents_once(documents_of(items), "input"), self.template),
            self.tools,
            self.repeated,
        )


def parse_responses(body: object, *, vocab_size: int) -> Asking:
    """Raises ApiError 400, naming `param`."""
    given = object_of(body)
    refuse(given, RESPONSES)
    request = shape(given, ResponsesRequest)
    instructions = request.instructions
    if instructions is not None:
        whole(instructions, "instructions")
    tools = flat_tools(request.tools, request.tool_choice, parallel=request.parallel_tool_calls)
    template = _template(request.prompt)
    read = _controls(request, vocab_size)
    extras: dict[str, Any] = {}
    if request.reasoning is not None and request.reasoning.effort is not None:
        extras["reasoning_effort"] = request.reasoning.effort
    return Asking(
        items_of(request.input),
        instructions,
        read,
        extras,
        template,
        tools,
        _repeated(request, template),
        whole(request.previous_response_id or "", "previous_response_id") or None,
        _stores(request),
        bool(request.background),
    )


def _stores(request: ResponsesRequest) -> bool:
    """What runs in the background is asked for later, so it is stored."""
    if request.background and request.store is False:
        raise invalid("store: what is made in the background is stored.", param="store")
    return bool(request.store or request.background)


def _controls(request: ResponsesRequest, vocab_size: int) -> Controls:
    text = request.text or _Text()
    top = request.top_logprobs
    include = request.include or []
    check_included(include)
    if top and LOGPROBS not in include:
        raise invalid(f"top_logprobs: needs include: ['{LOGPROBS}'].", param="top_logprobs")
    try:
        read = controls(
            msgspec.structs.replace(request, response_format=_format(text.format)),
            max_tokens=request.max_output_tokens,
            max_tokens_field="max_output_tokens",
            top_logprobs=(top or 0) if LOGPROBS in include else None,
            vocab_size=vocab_size,
        )
    except ApiError as why:
        raise _renamed(why) from None
    structure = read.structure
    if structure is not None and structure.param == "response_format":
        return replace(read, structure=replace(structure, param="text.format"))
    return read


def check_included(include: Iterable[str]) -> None:
    """Raises ApiError 400."""
    for name in include:
        if name not in _INCLUDED:
            accepted = ", ".join(sorted(_INCLUDED))
            raise invalid(
                f"include: '{fit(name)}' is not one of the accepted values: {accepted}.",
                param="include",
            )


def _format(given: _Format | None) -> ResponseFormat | None:
    if given is None:
        return None
    if given.type != "json_schema":
        return ResponseFormat(given.type)
    for name in ("name", "schema"):
        if getattr(given, name) is None:
            raise invalid(
                f"text.format.{name}: this field is required.", param=f"text.format.{name}"
            )
    assert given.name is not None
    assert given.schema is not None
    return ResponseFormat("json_schema", JsonSchema(given.name, given.schema))


def _renamed(why: ApiError) -> ApiError:
    """By the name that the client wrote: chat's `response_format.json_schema` is `text.format` here."""
    if why.param is None or not why.param.startswith("response_format"):
        return why

    def here(name: str) -> str:
        return name.replace("response_format.json_schema", "text.format").replace(
            "response_format", "text.format"
        )

    return invalid(here(why.message), param=here(why.param), code=why.code)


def _template(prompt: _Prompt | None) -> TemplateReference | None:
    if prompt is None:
        return None
    version = prompt.version
    if isinstance(version, str):
        version = int(version) if _VERSION.fullmatch(version) else 0
    if version is not None and not 1 <= version < 2**31:
        raise invalid("prompt.version: expected a number from 1 on.", param="prompt.version")
    variables = {name: _variable(name, value) for name, value in (prompt.variables or {}).items()}
    return TemplateReference(whole(prompt.id, "prompt.id"), version, variables)


def _variable(name: str, value: object) -> object:
    """Text may come as a part of its own."""
    if isinstance(value, dict) and value.get("type") == "input_text":
        value = value.get("text")
    whole(name + (value if isinstance(value, str) else ""), "prompt.variables")
    return value


def _repeated(request: ResponsesRequest, template: TemplateReference | None) -> dict[str, Any]:
    """What every answer of OpenAI's repeats of its request, with its defaults where nothing was said."""
    text, reasoning = request.text or _Text(), request.reasoning or _Reasoning()
    shown = text.format or _Format("text")
    form: dict[str, Any] = {"type": shown.type}
    if shown.type == "json_schema":
        form |= {
            "name": shown.name,
            "schema": shown.schema,
            "description": shown.description,
            "strict": True,  # a schema is always enforced
        }
    prompt = None
    if template is not None:
        prompt = {
            "id": template.id,
            "version": None if template.version is None else str(template.version),
            "variables": {name: str(value) for name, value in template.variables.items()},
        }
    return {
        "background": bool(request.background),
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "metadata": dict(request.metadata or {}),
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "prompt": prompt,
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": {"effort": reasoning.effort, "summary": None},
        "safety_identifier": request.safety_identifier,
        "store": _stores(request),
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "text": {"format": form, "verbosity": text.verbosity or "medium"},
        "tool_choice": shown_choice(request.tool_choice),
        "tools": [shown_tool(tool) for tool in request.tools or ()],
        "top_logprobs": request.top_logprobs or 0,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "truncation": "disabled",
        "user": request.user,
    }
