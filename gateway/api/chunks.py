"""When which chunk is due: the stream of an answer in OpenAI's two older families, over the words in `sse`.

Source: API.md §3.
"""

from __future__ import annotations

from executor.contract import Prefilling, Waiting
from gateway.api import sse
from gateway.api.answers import Usage
from gateway.api.generate import Speaking, usage_of
from gateway.api.sse import ChatStream, CompletionStream
from gateway.errors import ApiError
from gateway.telling import Delta


class Chunks:
    """One answer's stream.  A `streaming.Shape`."""

    def __init__(self, kind: type[ChatStream | CompletionStream], speaking: Speaking) -> None:
        self._controls = speaking.asked.controls
        self._case = speaking.case
        self._wording = kind(
            speaking.head,
            speaking.reading.vocabulary,
            include_usage=self._controls.include_usage,
            logprobs=self._controls.logprobs,
        )
        self._opened: set[int] = set()
        self._told_tokens = 0

    def opening(self) -> bytes:
        return b""  # the role, which comes with each choice

    def keep_alive(self) -> bytes:
        return sse.KEEP_ALIVE

    def delta(self, delta: Delta) -> bytes:
        self._told_tokens += delta.tokens
        usage = None
        if self._controls.continuous_usage:
            usage = Usage(self._case.job.prompt_tokens, self._told_tokens)
        opening = self._open(delta.index)
        return opening + self._wording.delta(
            delta.index, delta.text, delta.shown, calls=delta.calls, usage=usage
        )

    def closing(self) -> bytes:
        """Every choice was opened and is finished; usage last, if it was asked for."""
        case, parts = self._case, []
        usage = usage_of(case)
        so_far = usage if self._controls.continuous_usage else None
        for index in range(case.job.choices):
            parts.append(self._open(index))
            limited = case.limit(index)
            if limited != "token_budget" and not self._controls.x_status:
                limited = None  # the client's own number, or what it knows of the model
            reason = case.finish_reasons[index]
            parts.append(self._wording.finish(index, reason, x_limit=limited, usage=so_far))
        if self._controls.include_usage:
            parts.append(self._wording.usage(usage))
        return b"".join(parts) + sse.DONE

    def status(self, told: Waiting | Prefilling) -> bytes:
        if isinstance(told, Waiting):
            if not self._controls.x_status:
                return sse.queued_comment(told.position, told.eta_ms)
            eta = {} if told.eta_ms is None else {"eta_ms": told.eta_ms}
            return self._wording.status("queued", position=told.position, **eta)
        progress = told.done_tokens / max(1, told.total_tokens)
        if self._controls.x_status:
            return self._wording.status("preparing", progress=round(progress, 2))
        return sse.preparing_comment(progress)

    def error(self, why: ApiError) -> bytes:
        return sse.fault(why, x_status=self._controls.x_status)

    def _open(self, index: int) -> bytes:
        if index in self._opened or not isinstance(self._wording, ChatStream):
            return b""
        self._opened.add(index)
        return self._wording.role(index)
