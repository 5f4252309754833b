"""One request as its reader sees it: a merging mailbox between whoever brings updates (the socket
client, the echo) and the one task that reads them.

Unread updates merge: tokens join, a newer status replaces an older one, and tokens make a status
before them stale.  So a reader that never reads holds its own output and nothing else (ENGINE.md §5,
item 19).  All of it happens on one event loop, so there is no lock.

Refuses to know: sockets, executors.  Time is an argument.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from executor.contract import (
    Cause,
    Emitted,
    Ended,
    Pace,
    Prefilling,
    Submit,
    TokenLogprobs,
    Update,
    Waiting,
)


class MailboxTurn:
    """Implements `contract.Turn`.  `push` is the writing end."""

    __slots__ = (
        "_clock_ns",
        "_ended",
        "_finished",
        "_generated",
        "_heard",
        "_last_ns",
        "_logprobs",
        "_marks_ns",
        "_prefilled",
        "_prompt_tokens",
        "_status",
        "_tokens",
        "_why",
        "request",
        "start",
    )

    def __init__(self, job: Submit, *, clock_ns: Callable[[], int], start: str = "") -> None:
        self.request = job.request
        self.start = start
        self._prompt_tokens = len(job.prompt)
        self._clock_ns = clock_ns
        self._marks_ns = [clock_ns()]  # submitted, prefill begun, first token
        self._last_ns = 0  # the last token so far
        self._status: Waiting | Prefilling | None = None
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._ended: Ended | None = None
        self._finished = False
        self._why: BaseException | None = None
        self._heard = asyncio.Event()
        self._prefilled = 0
        self._generated = 0

    # The reader's end

    def __aiter__(self) -> MailboxTurn:
        return self

    async def __anext__(self) -> Update:
        while True:
            if self._why is not None:
                raise self._why
            if self._finished:
                raise StopAsyncIteration
            if (update := self._next()) is not None:
                return update
            self._heard.clear()
            await self._heard.wait()

    @property
    def ended(self) -> Ended | None:
        return self._ended

    @property
    def pace(self) -> Pace:
        if not self._generated:
            return Pace()
        return Pace(tokens=self._generated, span_ns=self._last_ns - self._marks_ns[2])

    def interrupt(self, why: BaseException) -> None:
        if self._ended is None and self._why is None:
            self._why = why
            self._heard.set()

    async def wait_ended(self) -> None:
        """Until the last word is here; what comes before it is left for a reader."""
        while self._ended is None:
            self._heard.clear()
            await self._heard.wait()

    # The writer's end

    def push(self, update: Update) -> None:
        """Bring one update.  After the last word there are no others."""
        if self._ended is not None:
            return
        match update:
            case Waiting():
                self._status = update
            case Prefilling():
                self._status = update
                self._prefilled = update.done_tokens
                self._mark(1)
            case Emitted():
                self._status = None
                self._tokens += update.tokens
                self._logprobs += update.logprobs
                self._generated += len(update.tokens)
                self._prefilled = self._prompt_tokens
                self._mark(2)
                self._last_ns = self._clock_ns()
            case Ended():
                self._status = None
                self._ended = update
        self._heard.set()

    def lose(self, cause: Cause, detail: str) -> None:
        """End it from this side, by what was seen from here; nothing if it has ended."""
        if self._ended is not None:
            return
        marks = [*self._marks_ns, *[self._clock_ns()] * (4 - len(self._marks_ns))]
        queued_ns, prefill_ns, decode_ns = (marks[i + 1] - marks[i] for i in range(3))
        self.push(
            Ended(
                request=self.request,
                cause=cause,
                prefilled=self._prefilled,
                generated=self._generated,
                queued_ns=queued_ns,
                prefill_ns=prefill_ns,
                decode_ns=decode_ns,
                detail=detail,
            )
        )

    def _mark(self, reached: int) -> None:
        while len(self._marks_ns) <= reached:
            self._marks_ns.append(self._clock_ns())

    def _next(self) -> Update | None:
        if self._tokens:
            emitted = Emitted(
                request=self.request, tokens=tuple(self._tokens), logprobs=tuple(self._logprobs)
            )
            self._tokens, self._logprobs = [], []
            return emitted
        if self._status is not None:
            status, self._status = self._status, None
            return status
        if self._ended is not None:
            self._finished = True
            return self._ended
        return None
