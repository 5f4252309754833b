"""The Response object of /v1/responses: what it repeats, what became of it, and its output items.

Pure.  Every field of OpenAI's is there, `null` where there is nothing to say.
Refuses to know: events (`stream`), how the text came about.
Source: API.md §1 (Responses, minimum); openai-python's types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from gateway.api.answers import Answered, Choice, Head, Said, Usage, chat_logprobs
from gateway.api.responses.items import OUR_PREFIX, Call, Message, OutputText
from gateway.errors import ApiError
from gateway.text.reply import ShownToken
from gateway.text.tokenizer import Vocabulary
from gateway.tools.calls import ToolCall

Output = Message | Call


class Status(StrEnum):
    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Became:
    """What a response is by now.  `x_limit`: what cut it short, where that was no limit of the request's own."""

    status: Status
    output: Sequence[Output] = ()
    usage: Usage | None = None
    error: ApiError | None = None
    x_limit: str | None = field(default=None)


def response_fields(head: Head, repeated: Mapping[str, Any], became: Became) -> dict[str, Any]:
    incomplete = became.status is Status.INCOMPLETE
    fields: dict[str, Any] = {
        "id": head.id,
        "object": "response",
        "created_at": head.created_s,
        "status": became.status.value,
        "error": None if became.error is None else error_fields(became.error),
        "incomplete_details": {"reason": "max_output_tokens"} if incomplete else None,
        "model": head.model,
        "output": became.output,
        "service_tier": head.service_tier,
        "usage": None if became.usage is None else usage_fields(became.usage),
        **repeated,
    }
    if became.x_limit is not None:
        fields["x_limit"] = {"reason": became.x_limit}
    return fields


def usage_fields(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {
            "cached_tokens": usage.cached,
            "cache_write_tokens": usage.cache_write,
        },
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    }


def error_fields(why: ApiError) -> dict[str, Any]:
    """`code` is one of OpenAI's few; ours, which says more, is `x_code`."""
    code = {400: "invalid_prompt", 413: "invalid_prompt", 429: "rate_limit_exceeded"}
    return {
        "code": code.get(why.status, "server_error"),
        "message": why.message,
        "param": why.param,
        "type": why.kind,
        "x_code": why.code,
    }


def item_id(response_id: str, index: int, *, call: bool) -> str:
    return f"{'fc' if call else 'msg'}_{response_id.removeprefix(OUR_PREFIX)}{index:04x}"


def output_of(
    response_id: str, choice: Choice, vocabulary: Vocabulary, *, cut: bool = False
) -> tuple[Output, ...]:
    """What a choice says as items.  Without a call there is a message, if an empty one.  `cut`: the last is not
    whole."""
    parts = choice.parts or (Said("", () if choice.tokens is not None else None),)
    last = len(parts) - 1
    found: list[Output] = []
    for index, part in enumerate(parts):
        id_ = item_id(response_id, index, call=not isinstance(part, Said))
        status = "incomplete" if cut and index == last else "completed"
        if isinstance(part, Said):
            text = text_part(part.text, part.tokens, vocabulary)
            found.append(Message("assistant", (text,), id_, status))
        else:
            found.append(Call(part.id, part.name, part.arguments, id_, status))
    return tuple(found)


def broken(choice: Choice) -> bool:
    """It ended by itself in the midst of a call."""
    return choice.finish == "stop" and any(isinstance(it, ToolCall) for it in choice.parts[-1:])


def text_part(text: str, tokens: Sequence[ShownToken] | None, vocabulary: Vocabulary) -> OutputText:
    return OutputText(text, logprobs=logprobs_of(tokens, vocabulary))


def logprobs_of(
    tokens: Sequence[ShownToken] | None, vocabulary: Vocabulary
) -> tuple[Mapping[str, Any], ...]:
    told = chat_logprobs(tokens or None, vocabulary)
    return () if told is None else tuple(told["content"])


def response_answer(repeated: Mapping[str, Any], answered: Answered) -> dict[str, Any]:
    """A whole answer that ended by itself."""
    (choice,) = answered.choices
    limited = choice.finish == "length"
    became = Became(
        Status.INCOMPLETE if limited else Status.COMPLETED,
        output_of(answered.head.id, choice, answered.vocabulary, cut=limited or broken(choice)),
        answered.usage,
        x_limit=answered.x_limit,
    )
    return response_fields(answered.head, repeated, became)


encode = msgspec.json.Encoder().encode
