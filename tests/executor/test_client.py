"""The client against a scripted executor on a real socket, in one event loop."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest

from executor.client import Backoff, ExecutorProcess, SocketExecutor, StateKind
from executor.contract import (
    Abort,
    Cause,
    Command,
    Emitted,
    Ended,
    ExecutorLost,
    Gauges,
    Lane,
    Look,
    Message,
    Overview,
    Prefilling,
    Purge,
    Purged,
    Quota,
    Quotas,
    Ready,
    Report,
    Revoke,
    Revoked,
    Submit,
    Terms,
    Update,
    Workload,
)
from executor.wire import encode_message, read_command
from tests.executor.fakes import FakeRunner, card, job

READY = Ready(card=card(FakeRunner()))


class Script:
    """The executor's end of one connection, in the hands of a test."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def say(self, *messages: Message) -> None:
        self.writer.writelines(encode_message(message) for message in messages)

    def report(self, *updates: Update, **gauges: int) -> None:
        self.say(Report(updates=updates, gauges=msgspec.structs.replace(Gauges(), **gauges)))

    async def hear(self) -> Command:
        command = await read_command(self.reader)
        assert command is not None
        return command

    async def submitted(self) -> Submit:
        command = await self.hear()
        assert isinstance(command, Submit)
        return command

    def hang_up(self) -> None:
        self.writer.transport.abort()


def scripted(
    test: Callable[[SocketExecutor, Script], Awaitable[None]],
    *,
    abort_wait_s: float = 10.0,
    look_wait_s: float = 10.0,
) -> None:
    async def main() -> None:
        with TemporaryDirectory() as folder:
            path = Path(folder, "s")
            met: asyncio.Future[Script] = asyncio.get_running_loop().create_future()
            ready = asyncio.Event()

            async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                met.set_result(Script(reader, writer))
                await writer.wait_closed()

            def heard(message: Message) -> None:
                if isinstance(message, Ready):
                    ready.set()

            server = await asyncio.start_unix_server(meet, str(path))
            client = SocketExecutor(
                on_message=heard, abort_wait_s=abort_wait_s, look_wait_s=look_wait_s
            )
            life = asyncio.create_task(client.serve(path))
            script = await met
            script.say(READY)
            await ready.wait()
            await asyncio.wait_for(test(client, script), 20)
            script.hang_up()
            await life
            assert client.open_turns == 0
            server.close()

    asyncio.run(main())


def test_a_turn_hears_its_updates_and_the_gauges_are_kept() -> None:
    async def test(client: SocketExecutor, script: Script) -> None:
        assert client.card == READY.card
        async with client.turn(job(77)) as turn:
            number = (await script.submitted()).request
            assert number == 1  # minted, whatever the job said
            script.report(Emitted(request=number, tokens=(5,)), running=1)
            assert await anext(turn) == Emitted(request=number, tokens=(5,))
            assert client.gauges == Gauges(running=1)
            script.report(Ended(request=number, cause=Cause.STOP, generated=1))
            assert [u async for u in turn] == [turn.ended]
        assert client.open_turns == 0
        async with client.turn(job(77)):
            assert (await script.submitted()).request == 2  # nothing was sent for the ended one
            script.report(Ended(request=2, cause=Cause.STOP))

    scripted(test)


def test_leaving_early_aborts_and_waits_for_the_last_word() -> None:
    async def test(client: SocketExecutor, script: Script) -> None:
        async def leave() -> Ended | None:
            async with client.turn(job()) as turn:
                pass
            return turn.ended

        leaving = asyncio.create_task(leave())
        await script.submitted()
        assert await script.hear() == Abort(request=1)
        assert not leaving.done()
        last = Ended(request=1, cause=Cause.ABORTED, generated=3)
        script.report(Emitted(request=1, tokens=(1, 2, 3)), last)
        assert await leaving == last

    scripted(test)


def test_an_abort_that_is_not_confirmed_ends_by_what_was_seen() -> None:
    async def test(client: SocketExecutor, script: Script) -> None:
        async with client.turn(job()) as turn:
            await script.submitted()
            script.report(Emitted(request=1, tokens=(1, 2)))
            await anext(turn)
        assert turn.ended is not None
        assert (turn.ended.cause, turn.ended.generated) == (Cause.ABORTED, 2)
        assert client.open_turns == 0
        script.report(Ended(request=1, cause=Cause.STOP, generated=9))  # late: nobody is there
        async with client.turn(job()) as other:
            assert await script.hear() == Abort(request=1)
            number = (await script.submitted()).request
            script.report(Ended(request=number, cause=Cause.LENGTH))
            assert [u.request async for u in other] == [number]

    scripted(test, abort_wait_s=0.01)


def test_cancelled_twice_it_still_leaves_the_table() -> None:
    async def test(client: SocketExecutor, script: Script) -> None:
        kept = []

        async def read() -> None:
            async with client.turn(job()) as turn:
                kept.append(turn)
                await anext(turn)

        reading = asyncio.create_task(read())
        await script.submitted()
        reading.cancel()
        assert await script.hear() == Abort(request=1)
        assert client.open_turns == 1  # it waits for the last word
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert client.open_turns == 0
        assert kept[0].ended is not None
        assert kept[0].ended.cause is Cause.ABORTED

    scripted(test)


def test_cancelled_once_it_waits_for_what_is_billed() -> None:
    async def test(client: SocketExecutor, script: Script) -> None:
        kept = []

        async def read() -> None:
            async with client.turn(job()) as turn:
                kept.append(turn)
                await anext(turn)

        reading = asyncio.create_task(read())
        await script.submitted()
        reading.cancel()
        await script.hear()
        last = Ended(request=1, cause=Cause.ABORTED, prefilled=3, generated=1)
        script.report(last)
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert kept[0].ended == last

    scripted(test)


def test_an_executor_lost_between_submit_and_first_update_is_a_crash() -> None:
    async def test(client: SocketExecutor, script: Script) -> None:
        async with client.turn(job()) as turn:
            script.hang_up()
            (last,) = [update async for update in turn]
        assert isinstance(last, Ended)
        assert (last.cause, last.prefilled, last.generated) == (Cause.CRASHED, 0, 0)
        assert client.card is None
        with pytest.raises(ExecutorLost):
            async with client.turn(job()):
                pass

    scripted(test)


def test_an_executor_lost_later_counts_what_was_seen() -> None:
    async def test(client: SocketExecutor, script: Script) -> None:
        async with client.turn(job()) as turn:
            await script.submitted()
            script.report(Prefilling(request=1, done_tokens=2, total_tokens=3))
            await anext(turn)
            script.hang_up()
            (last,) = [update async for update in turn]
        assert isinstance(last, Ended)
        assert (last.cause, last.prefilled, last.generated) == (Cause.CRASHED, 2, 0)

    scripted(test)


def test_bytes_that_are_no_message_end_the_connection() -> None:
    async def test(client: SocketExecutor, script: Script) -> None:
        async with client.turn(job()) as turn:
            await script.submitted()
            body = msgspec.msgpack.encode({"type": "submit"})
            script.writer.write(len(body).to_bytes(4, "big") + body)
            (last,) = [update async for update in turn]
        assert isinstance(last, Ended)
        assert last.cause is Cause.CRASHED

    scripted(test)


def test_an_interrupted_reader_leaves_and_aborts() -> None:
    async def test(client: SocketExecutor, script: Script) -> None:
        async def read() -> None:
            async with client.turn(job()) as turn:
                turn.interrupt(PermissionError("revoked"))
                await anext(turn)

        reading = asyncio.create_task(read())
        await script.submitted()
        assert await script.hear() == Abort(request=1)
        script.report(Ended(request=1, cause=Cause.ABORTED))
        with pytest.raises(PermissionError):
            await reading

    scripted(test)


def test_a_job_that_is_too_long_for_the_wire_sends_nothing() -> None:
    async def test(client: SocketExecutor, script: Script) -> None:
        with pytest.raises(ExecutorLost, match="over the bound"):
            async with client.turn(job(1, (2**31,) * (2**22))):
                pass
        async with client.turn(job()):
            assert (await script.submitted()).request == 1
            script.report(Ended(request=1, cause=Cause.STOP))

    scripted(test)


def test_waits_double_up_to_their_bounds() -> None:
    backoff = Backoff()
    crashed = [backoff.wait_s(n, broken=False) for n in range(7)]
    assert crashed == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert backoff.wait_s(100, broken=False) == 5.0
    assert backoff.wait_s(100, broken=True) == 30.0


def test_a_folder_open_to_others_is_refused() -> None:
    async def main(folder: Path) -> None:
        with pytest.raises(ValueError, match="0700"):
            await ExecutorProcess([sys.executable, "-c", ""], folder).start()

    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        asyncio.run(main(Path(name)))


def test_a_command_that_cannot_start_or_ends_at_once_is_told_and_tried_again() -> None:
    async def main(command: list[str], why: str) -> None:
        with TemporaryDirectory() as folder:
            twice = asyncio.Event()
            reasons: list[str] = []
            backoff = Backoff(first_s=0.0)
            executor = ExecutorProcess(command, Path(folder), backoff=backoff)

            def told(state: object) -> None:
                reasons.append(executor.state.reason)
                twice.set()

            executor._on_event = told
            async with executor:
                await asyncio.wait_for(twice.wait(), 10)
                kinds = [executor.state.kind]
                assert why in executor.state.reason
                with pytest.raises(ExecutorLost, match="not ready"):
                    await executor.wait_ready(0.0)
                with pytest.raises(ExecutorLost):
                    async with executor.turn(job()):
                        pass
            kinds.append(executor.state.kind)
            assert kinds == [StateKind.RESTARTING, StateKind.CLOSED]

    asyncio.run(main(["/nonexistent/executor"], "could not be started"))
    asyncio.run(main(["false"], "status 1"))


TERMS = (Workload(name="interactive", ttft_ms=2000), Workload(name="batch", weight=None))
LANE = Lane(
    workload="batch", tenant="t", running=1, waiting=2, blocks=3, used=0.5, due=1.0, oldest_ms=9
)
SEEN = Overview(lanes=(LANE,))


def test_terms_are_told_at_once_and_again() -> None:
    async def test(client: SocketExecutor, script: Script) -> None:
        client.set_terms(TERMS)
        assert await script.hear() == Terms(workloads=TERMS)
        script.say(READY)  # as a new executor would: nothing is known to it
        assert await script.hear() == Terms(workloads=TERMS)

    scripted(test)


def test_terms_that_were_set_before_it_was_there_come_before_the_first_job() -> None:
    async def main() -> None:
        with TemporaryDirectory() as folder:
            path = Path(folder, "s")
            ready = asyncio.Event()
            client = SocketExecutor(on_message=lambda _: ready.set())
            client.set_terms(TERMS)
            heard: list[Command | None] = []

            async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                writer.write(encode_message(READY))
                heard.extend([await read_command(reader), await read_command(reader)])
                writer.close()

            async with await asyncio.start_unix_server(meet, str(path)):
                life = asyncio.create_task(client.serve(path))
                await asyncio.wait_for(ready.wait(), 20)
                async with client.turn(job()) as turn:
                    await turn.wait_ended()
                await life
            assert heard[0] == Terms(workloads=TERMS)
            assert isinstance(heard[1], Submit)

    asyncio.run(main())


def test_who_looks_together_is_shown_the_same_once() -> None:
    async def test(client: SocketExecutor, script: Script) -> None:
        async def look(tenant: str | None = None) -> Overview:
            return await client.look(tenant)

        one, two, gone = (asyncio.create_task(look()) for _ in range(3))
        assert await script.hear() == Look()
        gone.cancel()  # and disturbs no other
        script.report()  # a report of something else
        own = asyncio.create_task(look("acme"))
        assert await script.hear() == Look(tenant="acme")
        script.say(Report(overviews=(SEEN,)))
        assert await one == await two == SEEN
        again = asyncio.create_task(look())
        assert await script.hear() == Look()
        nothing, mine = Overview(), Overview(tenant="acme", lanes=(LANE,))
        script.say(Report(overviews=(nothing, mine)))
        assert (await again, await own) == (nothing, mine)

    scripted(test)


def test_who_looks_at_an_executor_that_goes_or_is_silent_is_told() -> None:
    async def test(client: SocketExecutor, script: Script) -> None:
        with pytest.raises(ExecutorLost, match="did not say"):
            await client.look()
        looking = asyncio.create_task(client.look())
        assert await script.hear() == Look()
        script.hang_up()
        with pytest.raises(ExecutorLost):
            await looking
        with pytest.raises(ExecutorLost, match="no executor"):
            await client.look()

    scripted(test, look_wait_s=0.01)


def test_orders_to_a_silent_executor_leave_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are asked again and again, as long as it is silent."""

    async def test(client: SocketExecutor, script: Script) -> None:
        for number in range(1, 4):
            with pytest.raises(ExecutorLost, match="did not say"):
                await client.revoke((b"x",), 3)
            assert await script.hear() == Revoke(number=number, tags=(b"x",), snapshot=3)
        await asyncio.sleep(0)
        assert client._connection is not None
        assert client._connection._orders == {}
        late = Revoked(number=1, entries=0, ended=0, zeroed=True)
        script.say(Report(revoked=(late,)))
        monkeypatch.setattr("executor.connection._UNSENT_BYTES_MAX", -1)
        with pytest.raises(ExecutorLost, match="does not read"):
            await client.revoke((b"x",), 3)

    scripted(test, look_wait_s=0.01)


def test_orders_are_answered_by_number_and_quotas_told_to_whoever_comes() -> None:
    quotas = (Quota(owner="a", part=0.5),)

    async def test(client: SocketExecutor, script: Script) -> None:
        client.set_quotas(quotas)
        assert await script.hear() == Quotas(quotas=quotas)
        first = asyncio.create_task(client.revoke((b"x",), 3))
        assert await script.hear() == Revoke(number=1, tags=(b"x",), snapshot=3)
        second = asyncio.create_task(client.purge("a", (b"y",)))
        assert await script.hear() == Purge(number=2, owner="a", tags=(b"y",))
        purged = Purged(number=2, entries=4, ended=0, zeroed=True)
        revoked = Revoked(number=1, entries=2, ended=1, zeroed=True)
        stray = Revoked(number=9, entries=0, ended=0, zeroed=True)
        script.say(Report(purged=(purged,), revoked=(stray,)))
        assert await second == purged
        script.say(Report(revoked=(revoked,)))
        assert await first == revoked
        lost = asyncio.create_task(client.revoke((b"z",), 4))
        await script.hear()
        script.hang_up()
        with pytest.raises(ExecutorLost):
            await lost
        with pytest.raises(ExecutorLost, match="no executor"):
            await client.purge()

    scripted(test)
