"""What the public API answers, as types: for the document, and for tests that hold real answers against them.

Nothing here is used to write an answer; `tests/gateway/test_openapi_answers.py` decodes real ones by these types,
which know no other fields.  `UNSET`: a field that may be absent.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.api.responses.items import Call, Message, Result

Unix = Annotated[int, Meta(description="Seconds of Unix time.")]


class Told(msgspec.Struct, forbid_unknown_fields=True):
    """Of what is answered."""


class Limit(Told):
    """What cut an answer short, where that was no limit of the request's own."""

    reason: str


# Refusals


class Fault(Told):
    message: str
    type: str
    param: str | None
    code: Annotated[str, Meta(description="Stable: to be matched on.")] | None


class Error(Told):
    error: Fault


class MessagesError(Told):
    """In Anthropic's words."""

    type: Literal["error"]
    error: Fault
    request_id: str


# Completions


class PromptDetails(Told):
    cached_tokens: int
    cache_write_tokens: int


class CompletionDetails(Told):
    reasoning_tokens: int


class Usage(Told):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class LikelyToken(Told):
    token: str
    logprob: float
    bytes: list[int]


class ChosenToken(LikelyToken):
    top_logprobs: list[LikelyToken]


class ChatLogprobs(Told):
    content: list[ChosenToken]
    refusal: None


class CalledFunction(Told):
    name: str
    arguments: Annotated[str, Meta(description="The text of a JSON object.")]


class ToolCall(Told):
    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatAnswer(Told):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[ToolCall] | UnsetType = UNSET


Finish = Literal["stop", "length", "tool_calls"]


class ChatChoice(Told):
    index: int
    message: ChatAnswer
    logprobs: ChatLogprobs | None
    finish_reason: Finish


class ChatCompletion(Told):
    id: str
    object: Literal["chat.completion"]
    created: Unix
    model: str
    system_fingerprint: str | None
    choices: list[ChatChoice]
    usage: Usage
    service_tier: str | UnsetType = UNSET
    x_limit: Limit | UnsetType = UNSET


class TextLogprobs(Told):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class TextChoice(Told):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Finish


class Completion(Told):
    id: str
    object: Literal["text_completion"]
    created: Unix
    model: str
    system_fingerprint: str | None
    choices: list[TextChoice]
    usage: Usage
    service_tier: str | UnsetType = UNSET
    x_limit: Limit | UnsetType = UNSET


# Responses


class Response(msgspec.Struct):
    """And what it repeats of the request."""

    id: str
    object: Literal["response"]
    created_at: Unix
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    error: dict[str, Any] | None
    incomplete_details: dict[str, Any] | None
    model: str
    output: list[Message | Call]
    service_tier: str | None
    usage: dict[str, Any] | None
    x_limit: Limit | UnsetType = UNSET


class ResponseItems(Told):
    object: Literal["list"]
    data: list[Message | Call | Result]
    first_id: str | None
    last_id: str | None
    has_more: bool


# Messages


class TextSaid(Told, tag_field="type", tag="text"):
    text: str


class ToolUse(Told, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


class MessageUsage(Told):
    """`input_tokens` are those that were not found in the cache."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    service_tier: Literal["standard", "priority", "batch"] | UnsetType = UNSET


class MessageAnswer(Told):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextSaid | ToolUse]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: MessageUsage
    x_limit: Limit | UnsetType = UNSET


# Tokens


class InputTokens(Told):
    input_tokens: int


class Tokens(Told):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Prompt(Told):
    prompt: str
