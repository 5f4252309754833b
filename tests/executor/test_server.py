"""The io thread with the test in the engine's place: it takes from the mailbox and sends reports."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from executor import server
from executor.contract import Abort, Emitted, Loading, Ready, Report, Submit
from executor.inbox import Gone
from executor.sequence import held_bytes
from executor.server import Io, Item, Mailbox
from executor.wire import encode_command, read_message
from tests.executor.fakes import FakeRunner, card, job

READY = Ready(card=card(FakeRunner()))


@contextmanager
def house() -> Iterator[tuple[Io, Mailbox, Path]]:
    with TemporaryDirectory() as folder:
        path = Path(folder, "s")
        mailbox = Mailbox()
        io = Io(path, mailbox)
        io.start()
        try:
            yield io, mailbox, path
        finally:
            io.stop()
        assert not path.exists()


Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def connected(path: Path, test: Callable[[Peer], Awaitable[None]]) -> None:
    async def main() -> None:
        reader, writer = await asyncio.open_unix_connection(str(path))
        try:
            await asyncio.wait_for(test((reader, writer)), 20)
        finally:
            writer.close()

    asyncio.run(main())


async def taken(mailbox: Mailbox, number: int) -> list[Item]:
    """The next `number` items, awaited off the loop."""
    items: list[Item] = []
    while len(items) < number:
        await asyncio.to_thread(mailbox.wait)
        items += mailbox.take()
    return items


def test_who_connects_hears_first_where_we_stand() -> None:
    with house() as (io, _, path):

        async def test(peer: Peer) -> None:
            assert isinstance(await read_message(peer[0]), Loading)
            io.announce(Loading(stage="weights", fraction=0.5))
            assert await read_message(peer[0]) == Loading(stage="weights", fraction=0.5)
            io.announce(READY)
            assert await read_message(peer[0]) == READY

        connected(path, test)

        async def late(peer: Peer) -> None:
            assert await read_message(peer[0]) == READY

        connected(path, late)


def test_commands_come_by_owner_and_reports_go_to_theirs() -> None:
    with house() as (io, mailbox, path):

        async def test(first: Peer) -> None:
            second = await asyncio.open_unix_connection(str(path))
            for reader, _ in (first, second):
                await read_message(reader)
            first[1].write(encode_command(job(1)))
            ((one, _),) = await taken(mailbox, 1)
            second[1].write(encode_command(job(1)) + encode_command(Abort(request=1)))
            (two, submit), (_, abort) = await taken(mailbox, 2)
            assert one != two
            assert isinstance(submit, Submit)
            assert abort == Abort(request=1)
            said = {n: Report(updates=(Emitted(request=1, tokens=(n,)),)) for n in (one, two, 99)}
            io.send(said)
            assert await read_message(first[0]) == said[one]
            assert await read_message(second[0]) == said[two]
            second[1].close()
            assert await taken(mailbox, 1) == [(two, Gone())]

        connected(path, test)


@pytest.mark.parametrize(
    "data",
    (
        encode_command(job(2)) + encode_command(job(2)),
        encode_command(job(2)) + encode_command(job(1)),
        encode_command(job(2)) + b"\xff\xff\xff\xff",
        encode_command(job(2)) + b"\x00\x00\x00\x01\xc0",
        encode_command(job(2)) + b"\x00\x00",
    ),
    ids=("twice", "back", "overlong", "no command", "cut"),
)
def test_a_broken_peer_loses_its_connection(data: bytes) -> None:
    with house() as (_, mailbox, path):

        async def test(peer: Peer) -> None:
            await read_message(peer[0])
            peer[1].write(data)
            peer[1].write_eof()
            (_, first), (_, last) = await taken(mailbox, 2)
            assert isinstance(first, Submit)
            assert last == Gone()
            assert await read_message(peer[0]) is None

        connected(path, test)


def test_a_gateway_that_does_not_read_is_dropped_and_nobody_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "UNSENT_BYTES_MAX", 100_000)
    with house() as (io, mailbox, path):

        async def test(peer: Peer) -> None:
            await read_message(peer[0])
            peer[1].write(encode_command(job(1)))
            ((owner, _),) = await taken(mailbox, 1)
            peer[0]._transport.pause_reading()  # type: ignore[attr-defined]
            report = Report(updates=(Emitted(request=1, tokens=tuple(range(100_000))),))
            for _ in range(20):
                io.send({owner: report})
            assert await taken(mailbox, 1) == [(owner, Gone())]

        connected(path, test)


@pytest.mark.parametrize(
    ("bound", "value"), (("_INBOX_MAX", 3), ("_INBOX_BYTES_MAX", 3 * held_bytes(job())))
)
def test_a_full_mailbox_pauses_the_reader_until_it_is_taken(
    bound: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, bound, value)
    with house() as (_, mailbox, path):

        async def test(peer: Peer) -> None:
            await read_message(peer[0])
            peer[1].write(b"".join(encode_command(job(n)) for n in range(1, 11)))
            numbers: list[int] = []
            while len(numbers) < 10:
                await asyncio.to_thread(mailbox.wait)
                items = mailbox.take()
                assert len(items) <= 3
                numbers += [item.request for _, item in items if isinstance(item, Submit)]
            assert numbers == list(range(1, 11))

        connected(path, test)


def test_the_mailbox_wakes_who_waits() -> None:
    mailbox = Mailbox()
    got: list[Item] = []

    def engine() -> None:
        mailbox.wait()
        got.extend(mailbox.take())

    thread = threading.Thread(target=engine)
    thread.start()
    mailbox.put((1, Gone()), lambda: None)
    thread.join(10)
    assert got == [(1, Gone())]
    assert mailbox.take() == ()


def test_only_we_may_reach_the_socket() -> None:
    with house() as (_, _, path):
        assert path.stat().st_mode & 0o777 == 0o600
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o750)
        with pytest.raises(ValueError, match="must be 700"):
            Io(Path(folder, "s"), Mailbox()).start()
        with pytest.raises(ValueError, match="shorter"):
            Io(Path(folder, "s" * 120), Mailbox()).start()
