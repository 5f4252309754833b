"""Streamed answers as server-sent events: bytes ready to be sent, one call an event.

The contract of API.md §3, in which every word was paid for by some client's bug: LF only; no `id:`,
`retry:` or named event; the role first and alone; never an empty content without role; `delta:{}`
with the finish reason; `choices:[]` only in the usage chunk that was asked for (every other chunk
then says `usage:null`); `[DONE]` last, also after an error.

Refuses to know: when an event is due, sockets, what the text means.  The parts of a chunk that never
change are encoded once for an answer; a delta costs about a microsecond.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.api.answers import (
    Head,
    Usage,
    chat_logprobs,
    completion_logprobs,
    head_fields,
)
from gateway.errors import ApiError
from gateway.text.reply import ShownToken
from gateway.text.tokenizer import Vocabulary
from gateway.tools.calls import CallPart

_encode = msgspec.json.Encoder().encode

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


def fault(error: ApiError, *, x_status: bool = False) -> bytes:
    """After the first byte, and the last words of its stream; no choice gets a finish reason.
    `x_status`: the client asked to be told whether, and when, to come again."""
    body = error.body()
    if x_status:
        body["x_status"] = failed_status(error)
    return b"data: " + _encode(body) + b"\n\n" + DONE


def failed_status(error: ApiError) -> dict[str, object]:
    return {
        "state": "failed",
        "retryable": error.retryable,
        "retry_after_ms": error.retry_after_ms,
    }


def queued_comment(position: int, eta_ms: int | None) -> bytes:
    """`: status queued 3 4000`; the position is within the tenant, 0 next."""
    eta = b"" if eta_ms is None else b" %d" % eta_ms
    return b": status queued %d%s\n\n" % (position, eta)


def preparing_comment(progress: float) -> bytes:
    """`: status preparing 0.4`"""
    return f": status preparing {min(1.0, max(0.0, progress)):.2g}\n\n".encode()


class _Stream:
    """What both kinds of stream share.  One answer's; holds no text."""

    kind = ""

    def __init__(
        self,
        head: Head,
        vocabulary: Vocabulary,
        *,
        include_usage: bool = False,
        logprobs: bool = False,
    ) -> None:
        self._vocabulary = vocabulary
        self._logprobs = logprobs
        fields = _encode(head_fields(self.kind, head))
        self._start = b"data: " + fields[:-1] + b',"choices":['
        self._plain_end = b'],"usage":null' if include_usage else b"]"

    def usage(self, usage: Usage) -> bytes:
        """The last chunk, if the client asked for it with `include_usage`."""
        return self._start + b'],"usage":' + _encode(usage.as_json()) + b"}\n\n"

    def status(self, state: str, **detail: float) -> bytes:
        """A data event for clients that asked with `stream_options.x_status`: `queued`,
        `preparing`."""
        status = {"state": state, **detail}
        return self._start + b'],"x_status":' + _encode(status) + b"}\n\n"

    def _chunk(
        self, choice: Mapping[str, Any], usage: Usage | None = None, x_limit: str | None = None
    ) -> bytes:
        end = self._plain_end
        if usage is not None:
            end = b'],"usage":' + _encode(usage.as_json())
        if x_limit is not None:
            end += b',"x_limit":' + _encode({"reason": x_limit})
        return self._start + _encode(choice) + end + b"}\n\n"


class ChatStream(_Stream):
    """For each choice: `role`, any number of `delta`s, `finish`.  Then `usage`, then `DONE`."""

    kind = "chat.completion.chunk"

    def role(self, index: int, *, usage: Usage | None = None) -> bytes:
        return self._choice(index, {"role": "assistant", "content": ""}, None, usage=usage)

    def delta(
        self,
        index: int,
        text: str,
        tokens: Sequence[ShownToken] = (),
        *,
        calls: Sequence[CallPart] = (),
        usage: Usage | None = None,
    ) -> bytes:
        """One chunk for the text, if there is any, and one for each part of a call: clients put parts of one
        index together over chunks, and not within one.  `usage` so far, where `continuous_usage_stats` was asked for."""
        assert text or not tokens  # they come with the text that they are
        said = self._choice(index, {"content": text}, None, tokens, usage=usage) if text else b""
        for part in calls:
            said += self._choice(index, {"tool_calls": [_call(part)]}, None, usage=usage)
        return said

    def finish(
        self, index: int, reason: str, *, x_limit: str | None = None, usage: Usage | None = None
    ) -> bytes:
        return self._choice(index, {}, reason, usage=usage, x_limit=x_limit)

    def _choice(
        self,
        index: int,
        delta: Mapping[str, Any],
        reason: str | None,
        tokens: Sequence[ShownToken] = (),
        *,
        usage: Usage | None = None,
        x_limit: str | None = None,
    ) -> bytes:
        logprobs = chat_logprobs(tokens, self._vocabulary) if self._logprobs and tokens else None
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return self._chunk(choice, usage, x_limit)


def _call(part: CallPart) -> dict[str, Any]:
    """Id, type and name come once; then more of the arguments."""
    function = {"arguments": part.arguments}
    if part.id is None:
        return {"index": part.index, "function": function}
    named = {"name": part.name, **function}
    return {"index": part.index, "id": part.id, "type": "function", "function": named}


class CompletionStream(_Stream):
    """For each choice: any number of `delta`s, then `finish`.  Then `usage`, then `DONE`."""

    kind = "text_completion"

    def __init__(
        self,
        head: Head,
        vocabulary: Vocabulary,
        *,
        include_usage: bool = False,
        logprobs: bool = False,
    ) -> None:
        super().__init__(head, vocabulary, include_usage=include_usage, logprobs=logprobs)
        self._offsets: dict[int, int] = {}  # characters of tokens sent, by choice

    def delta(
        self,
        index: int,
        text: str,
        tokens: Sequence[ShownToken] = (),
        *,
        calls: Sequence[CallPart] = (),
        usage: Usage | None = None,
    ) -> bytes:
        """b"" for an empty text."""
        assert not calls  # a plain text calls nothing
        if not text:
            assert not tokens
            return b""
        logprobs = None
        if self._logprobs and tokens:
            offset = self._offsets.get(index, 0)
            logprobs = completion_logprobs(tokens, self._vocabulary, offset=offset)
            self._offsets[index] = offset + sum(len(token.text) for token in tokens)
        return self._choice(index, text, None, logprobs, usage=usage)

    def finish(
        self, index: int, reason: str, *, x_limit: str | None = None, usage: Usage | None = None
    ) -> bytes:
        return self._choice(index, "", reason, None, usage=usage, x_limit=x_limit)

    def _choice(
        self,
        index: int,
        text: str,
        reason: str | None,
        logprobs: Mapping[str, Any] | None,
        *,
        usage: Usage | None = None,
        x_limit: str | None = None,
    ) -> bytes:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
        return self._chunk(choice, usage, x_limit)
