"""The events of /v1/responses: every item and part is opened, told and closed, in order, each event numbered.

    created → queued? → in_progress → (item added → (part added → text … → text done → part done
                                                    | arguments … → arguments done) → item done)*
            → completed | incomplete | error, failed

However it ends, what is open is closed first.  What was cancelled ends in `incomplete`, its status `cancelled`: nothing
has failed, and OpenAI's types know no event for it.
One item is open at a time.  A call closes the text before it, and text after a call is an item of its own, so that
what is told, put together, is the whole answer's output.  `event:` is each event's type; there is no `[DONE]`.
Progress is told in comments, as on the other paths, and with `x_status` in events that carry it.

Refuses to know: when an event is due, sockets.  Source: API.md §1, §2 (72), §3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from executor.contract import Prefilling, Waiting
from gateway.api import sse
from gateway.api.answers import Usage
from gateway.api.gathered import Gathered
from gateway.api.generate import Speaking, usage_of, x_limit_of
from gateway.api.responses.items import Call, Message, OutputText
from gateway.api.responses.object import (
    Became,
    Output,
    Status,
    encode,
    item_id,
    logprobs_of,
    output_of,
    response_fields,
    text_part,
)
from gateway.errors import ApiError
from gateway.telling import Delta
from gateway.text.reply import ShownToken
from gateway.tools.calls import CallPart

SEQUENCE_MAX = 2**31 - 1
_LAST_OF = {"cancelled": "response.incomplete"}
"""The last event, where it is not named as the status."""


def event(kind: str, number: int, fields: Mapping[str, Any]) -> bytes:
    data = encode({"type": kind, "sequence_number": number, **fields})
    return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"


def fault(why: ApiError) -> bytes:
    """The last words to one reader of a stream that others go on with.  The response goes on too, so nothing of it is
    closed: whoever may, takes it up again behind what they have heard.  What number comes next is not known here; the
    largest that there is rises above all."""
    return event("error", SEQUENCE_MAX, _error(why))


def lost(queued: Mapping[str, Any], became: Mapping[str, Any], after: int) -> bytes:
    """The events of what nobody was left to end: how it began, and how it ended.  What was told in between is not known,
    so the end comes next behind whatever its reader has heard."""
    told = [("response.created", {"response": queued})]
    if (why := became["error"]) is not None:
        told.append(("error", {"code": why["x_code"], **{k: why[k] for k in ("message", "param")}}))
    status = became["status"]
    told.append((_LAST_OF.get(status, f"response.{status}"), {"response": became}))
    if after >= 0:
        del told[0]
    return b"".join(event(kind, after + 1 + i, fields) for i, (kind, fields) in enumerate(told))


def _error(why: ApiError) -> dict[str, Any]:
    return {"code": why.code, "message": why.message, "param": why.param}


@dataclass(frozen=True, slots=True)
class Last:
    """What a response became, and the words that say so, the last of its stream or all of its answer."""

    fields: dict[str, Any]
    words: Callable[[Mapping[str, Any]], bytes]


class _Text:
    """The message that is being said."""

    def __init__(self, id_: str) -> None:
        self.id = id_
        self.said: list[str] = []
        self.shown: list[ShownToken] = []


class _Calling:
    def __init__(self, id_: str, call_id: str, name: str) -> None:
        self.id = id_
        self.call_id = call_id
        self.name = name
        self.arguments: list[str] = []

    def item(self, arguments: str, status: str) -> Call:
        return Call(self.call_id, self.name, arguments, self.id, status)


class ResponseStream:
    """One answer's.  A `streaming.Shape`."""

    def __init__(
        self,
        speaking: Speaking,
        ended: Callable[[Last], None] = lambda _: None,
        *,
        x_status: bool | None = None,
    ) -> None:
        """`ended` hears what it became.  `x_status`: whether progress is told in events, where the controls do not
        say."""
        self._ended = ended
        self._head = speaking.head
        self._repeated = speaking.asked.repeated
        self._case = speaking.case
        self._vocabulary = speaking.reading.vocabulary
        asked_for = speaking.asked.controls.x_status
        self._x_status = asked_for if x_status is None else x_status
        self._gathered = Gathered(speaking.asked.controls.logprobs)
        self._number = -1
        self._index = -1  # of the item that is open, or was last
        self._open: _Text | _Calling | None = None
        self._broken = False  # it ended by itself in the midst of a call
        self._status = Status.QUEUED

    def opening(self) -> bytes:
        return self._response("response.created")

    def keep_alive(self) -> bytes:
        return sse.KEEP_ALIVE

    def status(self, told: Waiting | Prefilling) -> bytes:
        if isinstance(told, Waiting):
            progress: dict[str, Any] = {"state": "queued", "position": told.position}
            if told.eta_ms is not None:
                progress["eta_ms"] = told.eta_ms
            first = self._status is Status.QUEUED and (self._number == 0 or self._x_status)
            kind = "response.queued" if first else None
            return self._told(kind, progress, sse.queued_comment(told.position, told.eta_ms))
        done = told.done_tokens / max(1, told.total_tokens)
        first = self._status is Status.QUEUED or self._x_status
        self._status = Status.IN_PROGRESS
        return self._told(
            "response.in_progress" if first else None,
            {"state": "preparing", "progress": round(done, 2)},
            sse.preparing_comment(done),
        )

    def _told(self, kind: str | None, progress: Mapping[str, Any], comment: bytes) -> bytes:
        """`kind` None: only how far it is has changed."""
        if kind is None:
            return comment
        if self._x_status:
            return self._response(kind, {"x_status": progress})
        return comment + self._response(kind)

    def delta(self, delta: Delta) -> bytes:
        self._gathered.add(delta)
        events = [self._begun()]
        if delta.text:
            events.append(self._text(delta.text, delta.shown))
        events += [self._called(part) for part in delta.calls]
        return b"".join(events)

    def closing(self) -> bytes:
        case = self._case
        cut = case.finish_reasons[0] == "length"
        self._broken = case.finish_reasons[0] == "stop" and isinstance(self._open, _Calling)
        events = [self._begun()]
        if self._index < 0:
            events.append(self._open_text())
        events.append(self._close("incomplete" if cut or self._broken else "completed"))
        limit = case.limit(0) if self._x_status else x_limit_of(case)
        self._status = Status.INCOMPLETE if cut else Status.COMPLETED
        return self._end(b"".join(events), self._became(usage_of(case), limit=limit))

    def error(self, why: ApiError) -> bytes:
        """Twice: as an event with our code, and in the response with OpenAI's."""
        self._status = Status.FAILED
        more = {"x_status": sse.failed_status(why)} if self._x_status else {}
        told = self._close("incomplete") + self._event("error", _error(why) | more)
        return self._end(told, self._became(usage_of(self._case), why), more)

    def cancelled(self) -> bytes:
        """The last words of one that somebody ended on purpose, once what it cost is settled."""
        self._status = Status.CANCELLED
        return self._end(self._close("incomplete"), self._became(usage_of(self._case)))

    def now(self) -> dict[str, Any]:
        """The response as it is by now."""
        return response_fields(self._head, self._repeated, self._became())

    @property
    def state(self) -> Status:
        return self._status

    # How.

    def _became(
        self, usage: Usage | None = None, why: ApiError | None = None, *, limit: str | None = None
    ) -> Became:
        """With the output so far; what ended otherwise than by itself has none that is whole at its end."""
        output: tuple[Output, ...] = ()
        whole = self._status is Status.COMPLETED and not self._broken
        if self._index >= 0:
            choice = self._gathered.choice(0, "")
            output = output_of(self._head.id, choice, self._vocabulary, cut=not whole)
        return Became(self._status, output, usage, why, limit)

    def _end(self, before: bytes, became: Became, more: Mapping[str, Any] | None = None) -> bytes:
        """The last event, told so that whoever keeps the response may still say that it was not kept."""
        self._number += 1
        kind = _LAST_OF.get(became.status, f"response.{became.status}")
        number = self._number

        def words(fields: Mapping[str, Any]) -> bytes:
            return before + event(kind, number, {"response": fields, **(more or {})})

        fields = response_fields(self._head, self._repeated, became)
        self._ended(Last(fields, words))
        return words(fields)

    def _begun(self) -> bytes:
        if self._status is not Status.QUEUED:
            return b""
        self._status = Status.IN_PROGRESS
        return self._response("response.in_progress")

    def _text(self, text: str, shown: tuple[ShownToken, ...]) -> bytes:
        opening = b""
        if not isinstance(self._open, _Text):
            opening = self._close("completed") + self._open_text()
        assert isinstance(self._open, _Text)
        self._open.said.append(text)
        told: tuple[Mapping[str, Any], ...] = ()
        if self._gathered.logprobs:
            self._open.shown.extend(shown)
            told = logprobs_of(shown, self._vocabulary)
        return opening + self._in_part("output_text.delta", {"delta": text, "logprobs": told})

    def _open_text(self) -> bytes:
        self._index += 1
        self._open = _Text(item_id(self._head.id, self._index, call=False))
        message = Message("assistant", (), self._open.id, "in_progress")
        return self._item("added", message) + self._in_part(
            "content_part.added", {"part": OutputText("")}
        )

    def _called(self, part: CallPart) -> bytes:
        opening = b""
        if part.id is not None:
            assert part.name is not None
            opening = self._close("completed")
            self._index += 1
            id_ = item_id(self._head.id, self._index, call=True)
            self._open = _Calling(id_, part.id, part.name)
            opening += self._item("added", self._open.item("", "in_progress"))
        if not part.arguments:
            return opening
        assert isinstance(self._open, _Calling)  # one call is told at a time
        self._open.arguments.append(part.arguments)
        return opening + self._in_item("function_call_arguments.delta", {"delta": part.arguments})

    def _close(self, status: str) -> bytes:
        """What is open, if anything is."""
        events: tuple[bytes, ...] = ()
        match self._open:
            case _Text() as text:
                said = "".join(text.said)
                whole = text_part(said, text.shown, self._vocabulary)
                events = (
                    self._in_part("output_text.done", {"text": said, "logprobs": whole.logprobs}),
                    self._in_part("content_part.done", {"part": whole}),
                    self._item("done", Message("assistant", (whole,), text.id, status)),
                )
            case _Calling() as call:
                arguments = "".join(call.arguments)
                events = (
                    self._in_item(
                        "function_call_arguments.done",
                        {"name": call.name, "arguments": arguments},
                    ),
                    self._item("done", call.item(arguments, status)),
                )
        self._open = None
        return b"".join(events)

    def _item(self, what: str, item: Message | Call) -> bytes:
        return self._event(
            f"response.output_item.{what}", {"output_index": self._index, "item": item}
        )

    def _in_item(self, what: str, fields: Mapping[str, Any]) -> bytes:
        assert self._open is not None
        place = {"item_id": self._open.id, "output_index": self._index}
        return self._event(f"response.{what}", {**place, **fields})

    def _in_part(self, what: str, fields: Mapping[str, Any]) -> bytes:
        return self._in_item(what, {"content_index": 0, **fields})

    def _response(self, kind: str, more: Mapping[str, Any] | None = None) -> bytes:
        status = self._status
        if kind == "response.created" and not self._repeated.get("background"):
            status = Status.IN_PROGRESS
        fields = response_fields(self._head, self._repeated, Became(status))
        return self._event(kind, {"response": fields, **(more or {})})

    def _event(self, kind: str, fields: Mapping[str, Any]) -> bytes:
        self._number += 1
        return event(kind, self._number, fields)
