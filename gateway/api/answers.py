"""Whole answers: chat completions, text completions, usage and log-probabilities, as JSON bytes.

Pure: everything comes as an argument.  A field that is empty in OpenAI's answers is `null` here too;
`tool_calls` is absent where there are none, as clients take an empty list for a call.
Refuses to know: streams (`sse`), how the text came about.  Source: API.md §1, §2 (21, 29, 32, 39).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from executor.contract import Logprob
from gateway.text.reply import ShownToken
from gateway.text.tokenizer import Vocabulary
from gateway.tools.calls import ToolCall

FLOOR = -9999.0
"""The least log-probability that is written: JSON has no -inf."""


@dataclass(frozen=True, slots=True)
class Head:
    """What every chunk of one answer repeats.  `service_tier` is the tier that was used."""

    id: str
    created_s: int
    model: str
    fingerprint: str | None = None
    service_tier: str | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens.  `prompt` includes `cached` and `cache_write`."""

    prompt: int
    completion: int
    cached: int = 0
    cache_write: int = 0
    reasoning: int = 0

    def as_json(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {
                "cached_tokens": self.cached,
                "cache_write_tokens": self.cache_write,
            },
            "completion_tokens_details": {"reasoning_tokens": self.reasoning},
        }


@dataclass(frozen=True, slots=True)
class Said:
    """Text that no call interrupts.  `tokens` None: log-probabilities were not asked for."""

    text: str
    tokens: tuple[ShownToken, ...] | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """`tokens` None: log-probabilities were not asked for.  `finish` is stop, length or tool_calls.  `parts`: the text
    and the calls in the order in which they came, for who words them so.  `stopped_by`: which of the stop strings ended it."""

    index: int
    text: str
    finish: str
    tokens: tuple[ShownToken, ...] | None = None
    calls: tuple[ToolCall, ...] = ()
    parts: tuple[Said | ToolCall, ...] = ()
    stopped_by: int | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """A whole answer, before it is worded.  `x_limit` names what cut it short, as `token_budget`."""

    head: Head
    choices: tuple[Choice, ...]
    usage: Usage
    vocabulary: Vocabulary
    x_limit: str | None = None


def chat_answer(answered: Answered) -> bytes:
    written = [
        {
            "index": choice.index,
            "message": _message(choice),
            "logprobs": chat_logprobs(choice.tokens, answered.vocabulary),
            "finish_reason": choice.finish,
        }
        for choice in answered.choices
    ]
    return _answer("chat.completion", answered, written)


def _message(choice: Choice) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
    if choice.calls:
        message["content"] = choice.text or None
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in choice.calls
        ]
    return message


def completion_answer(answered: Answered) -> bytes:
    written = [
        {
            "index": choice.index,
            "text": choice.text,
            "logprobs": completion_logprobs(choice.tokens, answered.vocabulary, offset=0),
            "finish_reason": choice.finish,
        }
        for choice in answered.choices
    ]
    return _answer("text_completion", answered, written)


def _answer(kind: str, answered: Answered, choices: list[dict[str, Any]]) -> bytes:
    answer = head_fields(kind, answered.head)
    answer |= {"choices": choices, "usage": answered.usage.as_json()}
    if answered.x_limit is not None:
        answer["x_limit"] = {"reason": answered.x_limit}
    return msgspec.json.encode(answer)


def head_fields(kind: str, head: Head) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "id": head.id,
        "object": kind,
        "created": head.created_s,
        "model": head.model,
    }
    if head.service_tier is not None:
        fields["service_tier"] = head.service_tier
    return fields | {"system_fingerprint": head.fingerprint}


def chat_logprobs(
    tokens: Sequence[ShownToken] | None, vocabulary: Vocabulary
) -> Mapping[str, Any] | None:
    if tokens is None:
        return None
    return {
        "content": [
            {
                "token": token.text,
                "logprob": floored(token.chosen.logprob),
                "bytes": list(token.raw),
                "top_logprobs": [_likely(one, vocabulary) for one in token.top],
            }
            for token in tokens
        ],
        "refusal": None,
    }


def _likely(one: Logprob, vocabulary: Vocabulary) -> dict[str, Any]:
    return {
        "token": vocabulary.token_text(one.token),
        "logprob": floored(one.logprob),
        "bytes": list(vocabulary.token_bytes(one.token)),
    }


def completion_logprobs(
    tokens: Sequence[ShownToken] | None, vocabulary: Vocabulary, *, offset: int
) -> Mapping[str, Any] | None:
    """The legacy shape.  `offset`: characters of this choice's text before the first token.
    The chosen token is always among `top_logprobs`, so there may be one more than was asked for."""
    if tokens is None:
        return None
    offsets: list[int] = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.text)
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [floored(token.chosen.logprob) for token in tokens],
        "top_logprobs": [_by_text(token, vocabulary) for token in tokens],
        "text_offset": offsets,
    }


def _by_text(token: ShownToken, vocabulary: Vocabulary) -> dict[str, float]:
    """Where two ids have the same text the likelier one is kept."""
    likely: dict[str, float] = {}
    for one in (*token.top, token.chosen):
        likely.setdefault(vocabulary.token_text(one.token), floored(one.logprob))
    return likely


def floored(logprob: float) -> float:
    """JSON has neither -inf nor NaN."""
    return FLOOR if math.isnan(logprob) else max(FLOOR, logprob)
