"""POST /v1/messages: Anthropic's form of a conversation, and in which words it is answered."""

from __future__ import annotations

from executor.contract import Prefilling, Waiting
from gateway.api import sse
from gateway.api.answers import Answered, Usage
from gateway.api.chat import templated
from gateway.api.generate import Asked, Family, Resolve, Speaking, usage_of
from gateway.api.messages import blocks
from gateway.api.messages.blocks import BlockEvents
from gateway.api.messages.schema import parse_messages
from gateway.errors import ApiError
from gateway.house import Reading
from gateway.telling import Delta
from gateway.worded import anthropic_error


async def ask(body: object, reading: Reading, wall_ms: int, resolve: Resolve) -> Asked:
    """Raises ApiError 400, and what `resolve` raises."""
    job = parse_messages(body, vocab_size=reading.card.vocab_size)
    return await templated(job, reading, wall_ms, resolve)


def write(asked: Asked, answered: Answered) -> bytes:
    (choice,) = answered.choices
    stops = asked.controls.stops
    return blocks.message(answered.head, choice, answered.usage, stops, answered.x_limit)


class Blocks:
    """One answer's stream.  A `streaming.Shape`."""

    def __init__(self, speaking: Speaking) -> None:
        self._stops = speaking.asked.controls.stops
        self._case = speaking.case
        self._events = BlockEvents(speaking.head)

    def opening(self) -> bytes:
        return self._events.start(self._case.job.prompt_tokens)

    def delta(self, delta: Delta) -> bytes:
        said = self._events.text(delta.text)
        return said + b"".join(map(self._events.call, delta.calls))

    def status(self, told: Waiting | Prefilling) -> bytes:
        """In comments, which Anthropic's clients pass over."""
        if isinstance(told, Waiting):
            return sse.queued_comment(told.position, told.eta_ms)
        return sse.preparing_comment(told.done_tokens / max(1, told.total_tokens))

    def keep_alive(self) -> bytes:
        return blocks.PING

    def closing(self) -> bytes:
        case = self._case
        finish = blocks.ended(case.finish_reasons[0], case.stopped_by.get(0), self._stops)
        limited = "token_budget" if case.limited_by_budget(0) else None
        usage: Usage = usage_of(case)
        return self._events.end(finish, usage, limited)

    def error(self, why: ApiError) -> bytes:
        return blocks.fault(why, self._case.request_id)


MESSAGES = Family(
    route="/v1/messages",
    id_prefix="msg_",
    prompt_param="messages",
    ask=ask,
    shape=Blocks,
    write=write,
    fault=blocks.fault,
    refusal=anthropic_error,
)
