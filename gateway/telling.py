"""From token ids to words: what the choices of one answer have to tell, piece by piece.

Sits between `answer` (ids) and the endpoint families (JSON, SSE); leaves a choice when a stop
string ends it, and writes down why each one ended.  Knows no HTTP.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from executor.contract import Cause, Emitted, Ended, Prefilling, Waiting
from gateway.answer import Answer
from gateway.case import Case
from gateway.text.reply import Piece, Reply, ShownToken
from gateway.tools.calls import CallPart
from gateway.tools.hearing import Heard, Hearing


@dataclass(frozen=True, slots=True)
class Delta:
    """What one choice says next: text, then parts of calls.  `tokens` counts what was generated since the last,
    shown or not."""

    index: int
    text: str
    shown: tuple[ShownToken, ...] = ()
    tokens: int = 0
    calls: tuple[CallPart, ...] = ()


Told = Delta | Waiting | Prefilling


@dataclass(slots=True)
class Voice:
    """One choice as it is being told.  `by_token`: something in it may end it (a stop string, the only call that
    may be made) in the middle of what arrived together; usage counts up to that very token.  `hearing`: it may
    call tools."""

    index: int
    reply: Reply
    by_token: bool
    hearing: Hearing | None = None
    tokens: int = 0
    untold_tokens: int = 0
    stopped: bool = False

    @property
    def reason(self) -> str:
        """Why it ended, if it did so by itself."""
        return "tool_calls" if self.hearing is not None and self.hearing.called else "stop"

    def hear(self, emitted: Emitted) -> list[Delta]:
        if not self.by_token:
            return self._told(self.reply.push(emitted.tokens, emitted.logprobs), emitted.tokens)
        said: list[Delta] = []
        for place, token in enumerate(emitted.tokens):
            piece = self.reply.push((token,), emitted.logprobs[place : place + 1])
            said += self._told(piece, (token,))
            if self.stopped:
                break
        return _joined(said)

    def finish(self) -> list[Delta]:
        return self._told(self.reply.finish(), (), over=True)

    def _told(self, piece: Piece, tokens: Sequence[int], *, over: bool = False) -> list[Delta]:
        self.tokens += len(tokens)
        self.untold_tokens += len(tokens)
        self.stopped = piece.stopped
        if self.hearing is None:
            if not piece.text:
                return []
            untold, self.untold_tokens = self.untold_tokens, 0
            return [Delta(self.index, piece.text, piece.tokens, untold)]
        heard = self.hearing.push(piece)
        if over or piece.stopped or self.hearing.done:
            heard += self.hearing.finish()
        self.stopped = self.stopped or self.hearing.done
        return [self._delta(each) for each in heard]

    def _delta(self, heard: Heard) -> Delta:
        untold, self.untold_tokens = self.untold_tokens, 0
        return Delta(self.index, heard.text, heard.shown, untold, heard.calls)


def _joined(said: Sequence[Delta]) -> list[Delta]:
    """As few as keep the order of text and calls."""
    whole: list[Delta] = []
    for delta in said:
        if whole and not (whole[-1].calls and delta.text):
            last = whole[-1]
            whole[-1] = Delta(
                last.index,
                last.text + delta.text,
                last.shown + delta.shown,
                last.tokens + delta.tokens,
                last.calls + delta.calls,
            )
        else:
            whole.append(delta)
    return whole


class Telling:
    """Reads an answer to its end.  A read that is cancelled may lose a piece: keep it pending."""

    def __init__(
        self,
        answer: Answer,
        voices: Sequence[Voice],
        case: Case,
        monotonic_ns: Callable[[], int],
    ) -> None:
        self._answer = answer
        self._voices = voices
        self._case = case
        self._monotonic_ns = monotonic_ns
        self._untold: deque[Delta] = deque()

    async def next(self) -> Told | None:
        """The next piece, or None when every choice has ended.  Raises ApiError."""
        while not self._untold:
            if (heard := await self._answer.next()) is None:
                return None
            index, update = heard
            if isinstance(update, Waiting | Prefilling):
                return update
            voice = self._voices[index]
            if isinstance(update, Emitted):
                self._untold.extend(await self._hear(voice, update))
            else:
                self._untold.extend(self._end(voice, update))
        return self._untold.popleft()

    async def _hear(self, voice: Voice, emitted: Emitted) -> list[Delta]:
        if self._case.first_token_ns is None:
            self._case.first_token_ns = self._monotonic_ns()
        deltas = voice.hear(emitted)
        if voice.stopped:
            self._stop(voice)
            await self._answer.stop(voice.index)
        return deltas

    def _end(self, voice: Voice, ended: Ended) -> list[Delta]:
        deltas = voice.finish()
        if voice.stopped:
            self._stop(voice)
        else:
            length = ended.cause is Cause.LENGTH
            self._case.finish_reasons[voice.index] = "length" if length else voice.reason
        return deltas

    def _stop(self, voice: Voice) -> None:
        self._case.cap_output(voice.index, voice.tokens)
        self._case.finish_reasons[voice.index] = voice.reason
        if voice.reply.stopped_by is not None:
            self._case.stopped_by[voice.index] = voice.reply.stopped_by
