"""What is recorded is heard from the first byte on, by whoever comes; and it is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from gateway.errors import ApiError, invalid
from gateway.middleware.wire import ClientGone, Message
from gateway.tape import Tape
from tests.loop_time import pass_time

STREAM = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}  # fmt: skip
WHOLE = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]}  # fmt: skip


def said(data: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


class Ear:
    def __init__(self, deaf: asyncio.Event | None = None) -> None:
        self.messages: list[Message] = []
        self.deaf = deaf

    async def __call__(self, message: Message) -> None:
        if self.deaf is not None and message["type"] == "http.response.body":
            await self.deaf.wait()
        self.messages.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(each.get("body", b"") for each in self.messages)


async def listen(tape: Tape, ear: Ear) -> None:
    with tape.read() as reader:
        await tape.play(reader, ear)


def run(story: Callable[[], Coroutine[Any, Any, None]], longest_s: float = 10) -> None:
    asyncio.run(asyncio.wait_for(story(), longest_s))


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_whoever_comes_late_hears_it_from_the_beginning() -> None:
    async def story() -> None:
        tape, early, late = Tape(bytes_max=100, linger_s=1), Ear(), Ear()
        one = asyncio.create_task(listen(tape, early))
        await tape.send(STREAM)
        await tape.send(said(b"a"))
        await settle()
        assert early.body == b"a", "as it comes"
        two = asyncio.create_task(listen(tape, late))
        await settle()
        assert late.body == b"a"
        await tape.send(said(b"b", more=False))
        await settle()
        assert not any((one.done(), two.done())), "not over before its key is"
        tape.close()
        await asyncio.gather(one, two)
        assert (early.body, late.body) == (b"ab", b"ab")
        assert tape.answer() == (200, ((b"content-type", b"text/event-stream"),), b"ab")

    run(story)


def test_what_is_no_stream_is_held_back_until_it_is_over() -> None:
    async def story() -> None:
        tape, ear = Tape(bytes_max=100, linger_s=1), Ear()
        task = asyncio.create_task(listen(tape, ear))
        await tape.send(WHOLE)
        await tape.send(said(b"all", more=False))
        await settle()
        assert ear.messages == []
        tape.close()
        await task
        assert ear.body == b"all"

    run(story)


@pytest.mark.parametrize("why", (invalid("no"), RuntimeError("oh")))
def test_what_the_work_ends_with_is_heard_by_all(why: Exception) -> None:
    async def story() -> None:
        for head in (None, STREAM):
            tape = Tape(bytes_max=100, linger_s=1)
            tasks = [asyncio.create_task(listen(tape, Ear())) for _ in range(2)]
            if head is not None:
                await tape.send(head)
            tape.close(why)
            found = await asyncio.gather(*tasks, return_exceptions=True)
            assert found == [why, why]

    run(story)


def test_an_answer_without_an_end_is_no_answer() -> None:
    async def story() -> None:
        tape = Tape(bytes_max=100, linger_s=1)
        task = asyncio.create_task(listen(tape, Ear()))
        await tape.send(STREAM)
        tape.close()
        with pytest.raises(ClientGone):
            await task
        assert tape.answer() is None

    run(story)


def test_beyond_its_bound_it_waits_for_its_slowest_reader_and_keeps_nothing() -> None:
    async def story() -> None:
        tape, deaf = Tape(bytes_max=10, linger_s=1), asyncio.Event()
        quick, slow = Ear(), Ear(deaf)
        tasks = [asyncio.create_task(listen(tape, each)) for each in (quick, slow)]
        await tape.send(STREAM)
        await tape.send(said(b"x" * 8))
        await settle()
        sending = asyncio.create_task(_say(tape, [b"y" * 8, b"z" * 8]))
        await settle()
        assert not sending.done()
        assert not tape.admits
        assert quick.body == b"x" * 8 + b"y" * 8 + b"z" * 8
        deaf.set()
        await sending
        await tape.send(said(b"", more=False))
        tape.close()
        await asyncio.gather(*tasks)
        assert quick.body == slow.body == b"x" * 8 + b"y" * 8 + b"z" * 8
        assert tape.answer() is None

    run(story)


async def _say(tape: Tape, parts: list[bytes]) -> None:
    for part in parts:
        await tape.send(said(part))


def test_beyond_its_bound_nobody_reads_and_it_goes_on() -> None:
    async def story() -> None:
        tape = Tape(bytes_max=10, linger_s=1)
        with tape.read():  # who began it, and leaves
            await tape.send(STREAM)
        await _say(tape, [b"x" * 8] * 100)
        assert tape._size <= 10
        await tape.send(said(b"", more=False))
        assert tape.answer() is None

    run(story)


def test_it_is_told_when_all_have_left_for_so_long() -> None:
    async def story() -> None:
        tape = Tape(bytes_max=10, linger_s=60)
        gone = asyncio.create_task(_gone(tape))
        with tape.read(), tape.read():
            await pass_time(100)
            assert not gone.done()
        await pass_time(50)
        with tape.read():
            await pass_time(100)
            assert not gone.done(), "somebody came back in time"
        await pass_time(50)
        assert not gone.done()
        await pass_time(20)
        assert (await gone)["type"] == "http.disconnect"

    run(story, longest_s=600)


async def _gone(tape: Tape) -> Message:
    return await tape.receive()


def test_one_reader_is_ended_and_the_others_are_not() -> None:
    async def story() -> None:
        tape, ear = Tape(bytes_max=100, linger_s=1), Ear()
        await tape.send(STREAM)
        why = ApiError(403, "permission_error", "x", "no")
        with tape.read() as reader:
            task = asyncio.create_task(tape.play(reader, Ear()))
            other = asyncio.create_task(listen(tape, ear))
            await settle()
            tape.interrupt(reader, why)
            with pytest.raises(ApiError):
                await task
        await tape.send(said(b"a", more=False))
        tape.close()
        await other
        assert ear.body == b"a"

    run(story)


def test_whoever_began_it_loses_nothing_however_late_they_listen() -> None:
    async def story() -> None:
        tape, ear = Tape(bytes_max=2, linger_s=1), Ear()
        await tape.send(STREAM)

        async def work() -> None:
            for data in (b"ab", b"cd", b"ef"):
                await tape.send(said(data))
            tape.close()

        working = asyncio.create_task(work())
        await settle()
        with pytest.raises(ClientGone):  # its end was not said
            await listen(tape, ear)
        await working
        assert ear.body == b"abcdef"

    run(story)


def test_who_has_a_seat_loses_nothing_that_is_said_before_they_listen() -> None:
    async def story() -> None:
        tape, ear = Tape(bytes_max=3, linger_s=None), Ear()
        await tape.send(STREAM)
        await tape.send(said(b"ab"))
        with tape.read() as reader:

            async def work() -> None:
                for data in (b"cd", b"ef"):
                    await tape.send(said(data))
                await tape.send(said(b"", more=False))
                tape.close()

            working = asyncio.create_task(work())
            await settle()
            assert not tape.admits
            await tape.play(reader, ear)
        await working
        assert ear.body == b"abcdef"

    run(story)
