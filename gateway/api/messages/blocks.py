"""Answers in Anthropic's words: content blocks, whole and as a stream of events.

    message_start, (content_block_start, content_block_delta…, content_block_stop)…, message_delta, message_stop

A block is text that no call interrupts, or one call; a block that is begun is ended before the next begins.  Each
event names itself twice, as `event:` and as `type`; there is no `[DONE]`.  Anthropic's `input_tokens` are those that
were not found in the cache.

Refuses to know: when an event is due, sockets, how the text came about.
Source: Anthropic's Messages API; API.md §1 (Messages), §2 (73).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from gateway.api.answers import Choice, Head, Said, Usage
from gateway.errors import ApiError
from gateway.tools.calls import CallPart
from gateway.worded import anthropic_error

_encode = msgspec.json.Encoder().encode

PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'
_REASONS: Final = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_TIERS: Final = {"priority": "priority", "flex": "batch"}


def fault(why: ApiError, request_id: str | None = None) -> bytes:
    """The last words of a stream that ends by no end of its own."""
    return b"event: error\ndata: " + anthropic_error(why, request_id) + b"\n\n"


def ended(finish: str, stopped_by: int | None, stops: Sequence[str]) -> dict[str, str | None]:
    """`stop_reason` and `stop_sequence`."""
    if finish == "stop" and stopped_by is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": stops[stopped_by]}
    return {"stop_reason": _REASONS[finish], "stop_sequence": None}


def usage_fields(usage: Usage, tier: str | None = None) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "input_tokens": usage.prompt - usage.cached - usage.cache_write,
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
    }
    return fields if tier is None else {**fields, "service_tier": _TIERS.get(tier, "standard")}


def message(
    head: Head, choice: Choice, usage: Usage, stops: Sequence[str], x_limit: str | None
) -> bytes:
    """The whole answer."""
    return _encode(
        _message(head, [_block(part) for part in choice.parts])
        | ended(choice.finish, choice.stopped_by, stops)
        | {"usage": usage_fields(usage, head.service_tier)}
        | _limited(x_limit)
    )


def _message(head: Head, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": head.id,
        "type": "message",
        "role": "assistant",
        "model": head.model,
        "content": content,
    }


def _block(part: Any) -> dict[str, Any]:
    if isinstance(part, Said):
        return {"type": "text", "text": part.text}
    given = arguments(part.arguments)
    return {"type": "tool_use", "id": part.id, "name": part.name, "input": given}


def arguments(text: str) -> msgspec.Raw:
    """A call's, as the model wrote them; none where it did not come to the end of an object."""
    try:
        is_object = isinstance(msgspec.json.decode(text), dict)
    except (msgspec.MsgspecError, RecursionError):
        is_object = False
    return msgspec.Raw(text if is_object else "{}")


def _limited(x_limit: str | None) -> dict[str, Any]:
    return {} if x_limit is None else {"x_limit": {"reason": x_limit}}


class BlockEvents:
    """One answer's, in bytes of whole events.  Holds no text."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._index = -1
        self._call: int | None = None  # which call is being told; None: text
        self._open = False

    def start(self, prompt_tokens: int) -> bytes:
        """Nothing is known yet of what the cache has."""
        begun = _message(self._head, []) | {
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage_fields(Usage(prompt_tokens, 0), self._head.service_tier),
        }
        return _event("message_start", message=begun)

    def text(self, text: str) -> bytes:
        if not text:
            return b""
        before = b""
        if not self._open or self._call is not None:
            before = self._begin(None, {"type": "text", "text": ""})
        return before + self._delta(b'{"type":"text_delta","text":' + _encode(text))

    def call(self, part: CallPart) -> bytes:
        before = b""
        if part.id is not None:
            block: dict[str, Any] = {
                "type": "tool_use",
                "id": part.id,
                "name": part.name,
                "input": {},
            }
            before = self._begin(part.index, block)
        assert self._open
        assert self._call == part.index  # a model writes one call after the other
        if not part.arguments:
            return before
        given = _encode(part.arguments)
        return before + self._delta(b'{"type":"input_json_delta","partial_json":' + given)

    def end(
        self, ending: Mapping[str, str | None], usage: Usage, x_limit: str | None = None
    ) -> bytes:
        """The last words of an answer that ended by itself."""
        delta = _event(
            "message_delta", delta=dict(ending), usage=usage_fields(usage), **_limited(x_limit)
        )
        return self._stop() + delta + _event("message_stop")

    def _begin(self, call: int | None, block: dict[str, Any]) -> bytes:
        stopped = self._stop()
        self._index, self._call, self._open = self._index + 1, call, True
        return stopped + _event("content_block_start", index=self._index, content_block=block)

    def _stop(self) -> bytes:
        if not self._open:
            return b""
        self._open = False
        return _event("content_block_stop", index=self._index)

    def _delta(self, delta: bytes) -> bytes:
        """`delta` lacks its last brace."""
        return (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":'
            % self._index
            + delta
            + b"}}\n\n"
        )


def _event(kind: str, **fields: Any) -> bytes:
    data = _encode({"type": kind, **fields})
    return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"
