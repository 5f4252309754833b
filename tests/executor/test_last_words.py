"""What an executor leaves of a gateway that was killed: every count of what ran, once, durable."""

from __future__ import annotations

import asyncio
import signal
import stat
from contextlib import suppress
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest

from executor import last_words
from executor.client import SocketExecutor
from executor.contract import (
    WORDS_SUFFIX,
    Billed,
    Cause,
    Emitted,
    Ended,
    ExecutorLost,
    Message,
    Ready,
    Submit,
    Word,
)
from executor.last_words import KEPT, LastWords
from executor.sequence import Sequence
from tests.executor.fakes import COMMAND, job


def billed(id_: str, tokens: int, prompt: int = 0) -> Submit:
    return msgspec.structs.replace(job(max_new_tokens=tokens), billed=Billed(id_, prompt))


def read(path: Path) -> list[Word]:
    return [msgspec.json.decode(line, type=Word) for line in path.read_bytes().splitlines()]


def word(id_: str = "r1", generated: int = 3) -> Word:
    ended = Ended(request=1, cause=Cause.ABORTED, prefilled=9, generated=generated, detail="so")
    return Word(id=id_, prompt=0, prompt_tokens=9, ended=ended, start="s")


def test_words_are_written_whole_and_for_their_owner_alone(tmp_path: Path) -> None:
    words = [word("r1"), word("r2", generated=0)]
    last_words.write(words, tmp_path)
    (path,) = tmp_path.iterdir()
    assert path.suffix == WORDS_SUFFIX
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read(path) == words
    last_words.write(words, tmp_path)
    assert len([*tmp_path.iterdir()]) == 2  # another executor's are not written over


def test_nothing_said_leaves_nothing(tmp_path: Path) -> None:
    last_words.write([], tmp_path)
    assert [*tmp_path.iterdir()] == []


def test_of_those_that_ended_the_last_are_kept() -> None:
    words, numbers = LastWords(), count(1)
    for number in range(KEPT + 3):
        seq = Sequence((1, next(numbers)), billed(f"r{number}", 4), 0, 0)
        words.ended(seq, seq.ended(Cause.LENGTH))
    unbilled = Sequence((1, next(numbers)), job(), 0, 0)
    words.ended(unbilled, unbilled.ended(Cause.LENGTH))
    living = Sequence((1, next(numbers)), billed("alive", 4), 0, 0)
    said = words.said([living, unbilled], "s")
    assert len(said) == KEPT + 1
    assert (said[0].id, said[-2].id, said[-1].id) == ("r3", f"r{KEPT + 2}", "alive")
    assert {each.start for each in said} == {"s"}
    assert (said[-2].ended.cause, said[-1].ended.cause) == (Cause.LENGTH, Cause.ABORTED)


async def _lost(folder: Path, *, orderly: bool) -> dict[str, int]:
    """Two requests, one of which has ended, when their gateway is no more.  Tokens heard of each."""
    came, heard = asyncio.Event(), {"done": 0, "long": 0}
    path = folder / "s"
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "--socket", str(path), stdin=asyncio.subprocess.PIPE
    )

    def told(message: Message) -> None:
        if isinstance(message, Ready):
            came.set()

    client = SocketExecutor(on_message=told)
    while not path.exists():
        assert process.returncode is None
        await asyncio.sleep(0.01)  # a folder gives no event
    life = asyncio.create_task(client.serve(path))
    await came.wait()
    async with client.turn(billed("done", 5)) as turn:
        async for update in turn:
            heard["done"] += len(update.tokens) if isinstance(update, Emitted) else 0
    with suppress(ExecutorLost):
        async with client.turn(billed("long", 3000)) as turn:
            async for update in turn:
                heard["long"] += len(update.tokens) if isinstance(update, Emitted) else 0
                if heard["long"] >= 20:
                    break
            assert process.stdin is not None
            if orderly:
                process.send_signal(signal.SIGTERM)
            process.stdin.close()
            life.cancel()  # the socket goes with the pipe, in whichever order
            await asyncio.wait({life})
    assert await asyncio.wait_for(process.wait(), 30) == 0
    return heard


@pytest.mark.slow
def test_a_killed_gateway_is_left_what_ran_for_it() -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        heard = asyncio.run(asyncio.wait_for(_lost(folder, orderly=False), 60))
        (path,) = folder.glob(f"*{WORDS_SUFFIX}")
        words = {each.id: each for each in read(path)}
        assert words.keys() == {"done", "long"}
        assert (words["done"].ended.generated, words["done"].ended.cause) == (5, Cause.LENGTH)
        assert heard["long"] <= words["long"].ended.generated < 3000
        assert words["long"].ended.cause is Cause.ABORTED
        assert words["long"].ended.device_ns > 0
        assert len({each.start for each in words.values()} - {""}) == 1
        assert words["long"].ended.prefilled == words["long"].prompt_tokens == len(job().prompt)


@pytest.mark.slow
def test_one_that_ends_in_order_has_booked_everything_itself() -> None:
    with TemporaryDirectory() as name:
        asyncio.run(asyncio.wait_for(_lost(Path(name), orderly=True), 60))
        assert [*Path(name).iterdir()] == []
