from __future__ import annotations

import asyncio

import pytest

from executor.contract import (
    Cause,
    Emitted,
    Ended,
    Logprob,
    Prefilling,
    TokenLogprobs,
    Update,
    Waiting,
)
from executor.turn import MailboxTurn
from tests.executor.fakes import Clock, job

WAITING = Waiting(request=1, position=4)
NEXT = Waiting(request=1, position=0)
PREFILLING = Prefilling(request=1, done_tokens=2, total_tokens=3)
ENDED = Ended(request=1, cause=Cause.STOP, generated=2)


def emitted(*tokens: int) -> Emitted:
    logprobs = tuple(TokenLogprobs(Logprob(token, -1.0)) for token in tokens)
    return Emitted(request=1, tokens=tokens, logprobs=logprobs)


def mailbox() -> MailboxTurn:
    return MailboxTurn(job(1), clock_ns=Clock(tick_ns=10))


def read(*pushed: Update) -> list[Update]:
    async def main() -> list[Update]:
        turn = mailbox()
        for update in pushed:
            turn.push(update)
        return [update async for update in turn]

    return asyncio.run(main())


def test_unread_tokens_join_and_keep_their_order() -> None:
    assert read(emitted(1), emitted(2, 3), ENDED) == [emitted(1, 2, 3), ENDED]


def test_a_newer_status_replaces_an_older_one() -> None:
    turn = mailbox()
    for update in (WAITING, NEXT, PREFILLING):
        turn.push(update)
    assert asyncio.run(anext_of(turn)) == PREFILLING


async def anext_of(turn: MailboxTurn) -> Update:
    return await anext(turn)


def test_tokens_make_a_status_before_them_stale() -> None:
    assert read(WAITING, PREFILLING, emitted(1), ENDED) == [emitted(1), ENDED]
    turn = mailbox()
    for update in (PREFILLING, emitted(1)):
        turn.push(update)

    async def one_and_then_nothing() -> None:
        assert await anext(turn) == emitted(1)
        reading = asyncio.create_task(anext_of(turn))
        await asyncio.sleep(0)
        assert not reading.done()
        turn.push(emitted(2))
        assert await reading == emitted(2)

    asyncio.run(one_and_then_nothing())


def test_a_status_after_tokens_comes_after_them() -> None:
    turn = mailbox()
    for update in (emitted(1), NEXT):
        turn.push(update)

    async def two() -> list[Update]:
        return [await anext(turn), await anext(turn)]

    assert asyncio.run(two()) == [emitted(1), NEXT]


def test_nothing_is_heard_after_the_last_word() -> None:
    assert read(ENDED, emitted(9), Ended(request=1, cause=Cause.CRASHED)) == [ENDED]


def test_a_reader_that_waits_is_woken() -> None:
    async def main() -> list[Update]:
        turn = mailbox()
        reading = asyncio.create_task(anext_of(turn))
        await asyncio.sleep(0)
        assert not reading.done()
        turn.push(WAITING)
        first = await reading
        ending = asyncio.create_task(turn.wait_ended())
        await asyncio.sleep(0)
        turn.push(emitted(1))
        await asyncio.sleep(0)
        assert not ending.done()
        turn.push(ENDED)
        await ending
        return [first, *[update async for update in turn]]

    assert asyncio.run(main()) == [WAITING, emitted(1), ENDED]


def test_an_interrupted_reader_raises_even_before_unread_tokens() -> None:
    async def main() -> None:
        turn = mailbox()
        turn.push(emitted(1))
        turn.interrupt(PermissionError("revoked"))
        for _ in range(2):  # and again: it cannot be overheard
            with pytest.raises(PermissionError):
                await anext(turn)

    asyncio.run(main())


def test_an_interrupt_wakes_and_is_nothing_once_ended() -> None:
    async def main() -> None:
        turn = mailbox()
        reading = asyncio.create_task(anext_of(turn))
        await asyncio.sleep(0)
        turn.interrupt(PermissionError())
        with pytest.raises(PermissionError):
            await reading
        over = mailbox()
        over.push(ENDED)
        over.interrupt(PermissionError())
        assert await anext(over) == ENDED

    asyncio.run(main())


def test_a_lost_turn_ends_by_what_was_seen() -> None:
    turn = mailbox()  # submitted at 10
    turn.lose(Cause.CRASHED, "gone")
    assert turn.ended == Ended(request=1, cause=Cause.CRASHED, queued_ns=10, detail="gone")
    turn = mailbox()
    turn.push(PREFILLING)  # at 20
    turn.lose(Cause.CRASHED, "gone")
    assert turn.ended == Ended(
        request=1, cause=Cause.CRASHED, prefilled=2, queued_ns=10, prefill_ns=10, detail="gone"
    )
    turn = mailbox()
    turn.push(emitted(1))
    turn.push(emitted(2))
    turn.lose(Cause.CRASHED, "gone")
    assert turn.ended is not None
    assert (turn.ended.prefilled, turn.ended.generated) == (3, 2)
    first = turn.ended
    turn.lose(Cause.ABORTED, "again")
    assert turn.ended is first
