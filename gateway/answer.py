"""The turns of one request read as one, and what may end them from outside.

A request with n choices holds n turns.  `next` gives whichever has something to say; a turn that
ended through a fault of ours or of the caller raises the `ApiError` that explains it.  Knows token
ids, no text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Self

from msgspec.structs import replace

from executor.contract import Cause, Ended, Executor, ExecutorLost, Pace, Submit, Turn, Update
from gateway.errors import ApiError, invalid, unavailable
from gateway.live import authorization_revoked
from gateway.unbroken import unbroken

NORMAL = frozenset({Cause.STOP, Cause.LENGTH})
PATIENCE_S = 60


@dataclass(slots=True)
class _Seat:
    turn: Turn
    stack: AsyncExitStack  # holds the turn's context, so that one choice can be left alone


class Answer:
    """Async context: submits on entry, aborts what still runs on exit.  Afterwards `ended` has the
    last word on every choice that was submitted, and `paces` how its tokens came until it was let go."""

    def __init__(self, executor: Executor, submits: Sequence[Submit], *, n: int = 1) -> None:
        """Every `n` submits in a row have the same prompt, which the first of them computes."""
        self._executor = executor
        self._n = n
        self._submits = tuple(submits)
        self._seats: dict[int, _Seat] = {}
        self._open: set[int] = set()
        self._reading: dict[asyncio.Task[Update | None], int] = {}
        self._why: BaseException | None = None
        self.ended: dict[int, Ended] = {}
        self.paces: dict[int, Pace] = {}
        self.start = ""  # of the executor in which it ran

    async def __aenter__(self) -> Self:
        try:
            for index, submit in enumerate(self._submits):
                leader = index - index % self._n
                sibling = self._seats[leader].turn.request if index > leader else None
                stack = AsyncExitStack()
                turn = await stack.enter_async_context(
                    self._executor.turn(replace(submit, sibling=sibling))
                )
                self._seats[index] = _Seat(turn, stack)
                self.start = turn.start
                self._open.add(index)
        except ExecutorLost as lost:
            await unbroken(self._leave())
            raise unavailable("The model is restarting. Try again.", code="executor_lost") from lost
        except BaseException:
            await unbroken(self._leave())
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await unbroken(self._leave())

    async def next(self) -> tuple[int, Update] | None:
        """The next update of any choice, or None when all have ended.  Cancelling loses nothing."""
        while self._open:
            if self._why is not None:
                raise self._why
            index, update = await (self._hear_one() if self._alone() else self._hear_any())
            if update is None or index not in self._open:
                continue  # ended without a word, or stopped meanwhile
            if isinstance(update, Ended):
                self._open.discard(index)
                if update.cause not in NORMAL:
                    raise fault(update)
            return index, update
        return None

    async def stop(self, index: int) -> None:
        """End one choice (a stop string was found); the others go on."""
        self._open.discard(index)
        await unbroken(self._close(index))

    def interrupt(self, why: BaseException) -> None:
        """End the whole answer with `why`; the reader hears it next."""
        self._why = why
        for index in self._open:
            self._seats[index].turn.interrupt(why)

    def _alone(self) -> bool:
        return len(self._open) == 1 and not self._reading

    async def _hear_one(self) -> tuple[int, Update | None]:
        (index,) = self._open
        try:
            return index, await self._seats[index].turn.__anext__()
        except StopAsyncIteration:
            self._open.discard(index)
            return index, None

    async def _hear_any(self) -> tuple[int, Update | None]:
        for index in self._open.difference(self._reading.values()):
            reader = asyncio.create_task(_read(self._seats[index].turn))
            self._reading[reader] = index
        done, _ = await asyncio.wait(self._reading, return_when=asyncio.FIRST_COMPLETED)
        reader = min(done, key=self._reading.__getitem__)
        index = self._reading.pop(reader)
        update = reader.result()
        if update is None:
            self._open.discard(index)
        return index, update

    async def _close(self, index: int) -> None:
        seat = self._seats[index]
        self.paces.setdefault(index, seat.turn.pace)
        await seat.stack.aclose()
        if seat.turn.ended is not None:
            self.ended[index] = seat.turn.ended

    async def _leave(self) -> None:
        for reader in self._reading:
            reader.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)
        self._reading.clear()
        self._open.clear()
        unended = [index for index in self._seats if index not in self.ended]
        if len(unended) == 1:
            await self._close(unended[0])
        else:  # at once, so that n choices stop within one step and not n
            await asyncio.gather(*(self._close(index) for index in unended))


async def _read(turn: Turn) -> Update | None:
    """StopAsyncIteration cannot leave a task, so None says the same."""
    try:
        return await turn.__anext__()
    except StopAsyncIteration:
        return None


def fault(ended: Ended) -> ApiError:
    """The error that explains an abnormal end to the caller."""
    if ended.cause is Cause.QUEUE_DEADLINE:
        return ApiError(
            408,
            "timeout",
            "queue_deadline",
            "The request waited too long for its turn and was not started. Try again.",
            headers={"retry-after": "5"},
        )
    if ended.cause is Cause.BACKLOG:
        return _backlog(_seconds(ended.retry_ms))
    if ended.cause is Cause.OVERLOADED:
        wait_s = _seconds(ended.retry_ms)
        return unavailable(
            "The model is too busy to serve this request in the time that its class is promised; "
            f"it was not served and costs nothing. Try again in {wait_s} s.",
            retry_after_s=wait_s,
        )
    if ended.cause is Cause.REFUSED:
        return invalid(
            "This request can never fit the model's memory. Shorten the prompt.",
            param="messages",
            code="context_length_exceeded",
        )
    if ended.cause is Cause.GRAMMAR:
        return invalid(
            f"The answer's shape was not accepted: {ended.detail}.", code="invalid_grammar"
        )
    if ended.cause is Cause.GRAMMAR_BUDGET:
        return invalid(
            f"The answer's shape is too costly: {ended.detail}. Simplify it.",
            code="grammar_too_costly",
        )
    if ended.cause is Cause.REVOKED:
        return authorization_revoked()
    if ended.cause is Cause.QUOTA and not ended.prefilled:  # no client asks for what ends so
        return ApiError(403, "permission_error", "no_room", "It is not kept: there is no room.")
    if ended.cause is Cause.QUOTA:  # purged meanwhile
        return unavailable("It is not kept yet. Try again.", code="not_kept")
    return unavailable(
        "The model stopped while this answer was running. Try again.", code="executor_lost"
    )


def cut_short(why: ApiError) -> ApiError:
    """The same for who has heard, and pays for, a part: another of the choices was still waiting."""
    if why.code == "queue_backlog":
        why.message = (
            "A choice of this request was still waiting for its turn and made room for others, since too "
            "many of your own requests wait. The answer ends here; what was sent of it is charged."
        )
    return why


def _seconds(retry_ms: int | None) -> int:
    return 1 if retry_ms is None else max(1, -(-retry_ms // 1000))


def _backlog(wait_s: int) -> ApiError:
    """Clients that retry by themselves take no advice beyond a minute: they are told not to."""
    headers = {"retry-after": str(wait_s)}
    if wait_s > PATIENCE_S:
        headers["x-should-retry"] = "false"
    return ApiError(
        429,
        "rate_limit_error",
        "queue_backlog",
        "Too many of your own requests are waiting for this one to be served in time; it was not "
        f"served and costs nothing. Let some of them end, or try again in {wait_s} s.",
        headers=headers,
    )
