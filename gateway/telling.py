"""From token ids to words: what the choices of one answer have to tell, piece by piece.

Sits between `answer` (ids) and the endpoint families (JSON, SSE); leaves a choice when a stop
string ends it, and writes down why each one ended.  Knows no HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from executor.contract import Cause, Emitted, Ended, Prefilling, Waiting
from gateway.answer import Answer
from gateway.case import Case
from gateway.text.reply import Piece, Reply, ShownToken
from gateway.tools.calls import CallPart


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
    """One choice as it is being told.  `by_token`: it has stop strings, and one of them may end in
    the middle of what arrived together; usage counts up to that very token."""

    index: int
    reply: Reply
    by_token: bool
    tokens: int = 0
    untold_tokens: int = 0
    stopped: bool = False

    def hear(self, emitted: Emitted) -> Delta | None:
        if not self.by_token:
            return self._told(self.reply.push(emitted.tokens, emitted.logprobs), emitted.tokens)
        said: list[Piece] = []
        for place, token in enumerate(emitted.tokens):
            piece = self.reply.push((token,), emitted.logprobs[place : place + 1])
            said.append(piece)
            if piece.stopped:
                break
        joined = Piece(
            "".join(piece.text for piece in said),
            tuple(token for piece in said for token in piece.tokens),
            said[-1].stopped,
        )
        return self._told(joined, emitted.tokens[: len(said)])

    def finish(self) -> Delta | None:
        return self._told(self.reply.finish(), ())

    def _told(self, piece: Piece, tokens: Sequence[int]) -> Delta | None:
        self.tokens += len(tokens)
        self.untold_tokens += len(tokens)
        self.stopped = piece.stopped
        if not piece.text:
            return None
        untold, self.untold_tokens = self.untold_tokens, 0
        return Delta(self.index, piece.text, piece.tokens, untold)


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

    async def next(self) -> Told | None:
        """The next piece, or None when every choice has ended.  Raises ApiError."""
        while (heard := await self._answer.next()) is not None:
            index, update = heard
            if isinstance(update, Waiting | Prefilling):
                return update
            voice = self._voices[index]
            if isinstance(update, Emitted):
                delta = await self._hear(voice, update)
            else:
                delta = self._end(voice, update)
            if delta is not None:
                return delta
        return None

    async def _hear(self, voice: Voice, emitted: Emitted) -> Delta | None:
        if self._case.first_token_ns is None:
            self._case.first_token_ns = self._monotonic_ns()
        delta = voice.hear(emitted)
        if voice.stopped:
            self._stop(voice)
            await self._answer.stop(voice.index)
        return delta

    def _end(self, voice: Voice, ended: Ended) -> Delta | None:
        delta = voice.finish()
        if voice.stopped:
            self._stop(voice)
        else:
            length = ended.cause is Cause.LENGTH
            self._case.finish_reasons[voice.index] = "length" if length else "stop"
        return delta

    def _stop(self, voice: Voice) -> None:
        self._case.cap_output(voice.index, voice.tokens)
        self._case.finish_reasons[voice.index] = "stop"
        if voice.reply.stopped_by is not None:
            self._case.stopped_by[voice.index] = voice.reply.stopped_by
