"""Whole executor processes around the fake runner: death, rebirth, many at once."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest

from executor.client import Backoff, ExecutorProcess, SocketExecutor, State, StateKind
from executor.contract import (
    Cause,
    Emitted,
    Ended,
    ExecutorLost,
    Gauges,
    Message,
    Overview,
    Quota,
    Ready,
    Workload,
)
from tests.executor.fakes import COMMAND, job
from tests.executor.labelled import labelled, scope, tag

pytestmark = pytest.mark.slow


def supervised(
    test: Callable[[ExecutorProcess], Awaitable[None]],
    *flags: str,
    backoff: Backoff | None = None,
    on_event: Callable[[State], None] | None = None,
) -> None:
    async def main() -> None:
        with TemporaryDirectory() as folder:
            executor = ExecutorProcess(
                [*COMMAND, *flags], Path(folder), backoff=backoff, on_event=on_event
            )
            async with executor:
                await asyncio.wait_for(test(executor), 60)
            assert executor.pid is None
            left.append(sorted(names(folder)))

    left: list[list[str]] = []
    asyncio.run(main())
    assert left == [[]]


def names(folder: str) -> list[str]:
    return [entry.name for entry in Path(folder).iterdir()]


async def one(executor: ExecutorProcess, count: int = 8) -> list[int]:
    tokens: list[int] = []
    async with executor.turn(job(max_new_tokens=count)) as turn:
        async for update in turn:
            if isinstance(update, Emitted):
                tokens += update.tokens
    assert turn.ended is not None
    assert turn.ended.cause is Cause.LENGTH
    assert turn.ended.generated == len(tokens) == count
    return tokens


async def settled(executor: ExecutorProcess) -> Gauges:
    """The gauges that come with the last word of the last request."""
    await one(executor, 1)
    return executor.gauges


def test_a_killed_executor_ends_its_turns_and_comes_back() -> None:
    async def test(executor: ExecutorProcess) -> None:
        await executor.wait_ready(30)
        first = await one(executor)
        async with executor.turn(job(max_new_tokens=3000)) as turn:
            await anext(turn)
            assert executor.pid is not None
            os.kill(executor.pid, signal.SIGKILL)
            said = [update async for update in turn]
        last = said[-1]
        assert isinstance(last, Ended)
        assert last.cause is Cause.CRASHED
        assert last.prefilled == 3
        with pytest.raises(ExecutorLost):
            async with executor.turn(job()):
                pass
        await executor.wait_ready(10)
        assert await one(executor) == first
        assert executor.restarts == 1

    supervised(test)


def test_whoever_looks_is_shown_what_this_process_has() -> None:
    async def test(executor: ExecutorProcess) -> None:
        executor.set_terms((Workload(name="batch", weight=None, floor=0.1),))
        await executor.wait_ready(30)
        assert await executor.look() == Overview()  # nothing runs, and it answers all the same
        share = (("t1", 1.0), ("u1", 1.0))
        async with executor.turn(job(max_new_tokens=3000, share=share, workload="batch")) as turn:
            await anext(turn)
            (lane,) = (await executor.look("t1")).lanes
            assert (lane.workload, lane.tenant, lane.running, lane.waiting) == ("batch", "t1", 1, 0)
            assert (lane.due, lane.oldest_ms) == (1.0, 0)
            assert executor.pid is not None
            os.kill(executor.pid, signal.SIGKILL)
            assert [update async for update in turn]
        await executor.wait_ready(10)
        assert await executor.look() == Overview()
        await one(executor)

    supervised(test)


def test_an_executor_that_dies_in_a_step_is_a_crash_each_time() -> None:
    async def test(executor: ExecutorProcess) -> None:
        for lives in (1, 2):
            await executor.wait_ready(30)
            async with executor.turn(job()) as turn:
                (last,) = [update async for update in turn]
            assert isinstance(last, Ended)
            assert (last.cause, last.generated) == (Cause.CRASHED, 0)
            assert executor.restarts == lives - 1

    supervised(test, "--dies")


def test_a_persistent_failure_makes_a_new_process() -> None:
    died = asyncio.Event()

    def told(state: State) -> None:
        if state.kind is StateKind.RESTARTING:
            died.set()

    async def test(executor: ExecutorProcess) -> None:
        await executor.wait_ready(30)
        for _ in range(3):
            async with executor.turn(job()) as turn:
                last = [update async for update in turn][-1]
            assert isinstance(last, Ended)
            assert last.detail == "the model failed in this step"
        await asyncio.wait_for(died.wait(), 10)
        await executor.wait_ready(30)
        assert executor.restarts == 1

    supervised(test, "--fails", on_event=told)


def test_a_broken_executor_says_why_and_is_tried_again_rarely() -> None:
    async def test(executor: ExecutorProcess) -> None:
        for _ in range(2):
            with pytest.raises(ExecutorLost, match="name a GGUF file"):
                await executor.wait_ready(30)
        assert executor.state.kind is StateKind.BROKEN
        assert executor.restarts == 0
        with pytest.raises(ExecutorLost):
            async with executor.turn(job()):
                pass

    supervised(test, "--broken", backoff=Backoff(first_s=30.0))


def test_progress_is_told_while_loading() -> None:
    states: list[State] = []

    async def test(executor: ExecutorProcess) -> None:
        await executor.wait_ready(30)

    supervised(test, on_event=states.append)
    assert states[-2:] == [State(StateKind.READY), states[-1]]
    assert states[-1].kind is StateKind.CLOSED


def test_many_turns_with_aborts_leave_nothing() -> None:
    async def test(executor: ExecutorProcess) -> None:
        await executor.wait_ready(30)
        rng = Random(1)
        billed = 0

        async def ask(n: int, leaves_after: int | None, how: str) -> None:
            nonlocal billed
            heard = 0
            prompt = [rng.randrange(32) for _ in range(rng.randint(1, 60))]
            async with executor.turn(job(n, prompt, max_new_tokens=40)) as turn:
                if how == "at once" and leaves_after is not None:
                    pass
                else:
                    async for update in turn:
                        if isinstance(update, Emitted):
                            heard += len(update.tokens)
                        if leaves_after is not None and heard >= leaves_after:
                            break
            assert turn.ended is not None
            assert turn.ended.generated >= heard
            billed += turn.ended.generated

        tasks = []
        for n in range(64):
            leaves = rng.randint(1, 39) if rng.random() < 0.3 else None
            tasks.append(asyncio.create_task(ask(n, leaves, rng.choice(["at once", "later"]))))
        await asyncio.gather(*tasks)
        assert executor.open_turns == 0
        gauges = await settled(executor)
        assert (gauges.running, gauges.waiting) == (0, 0)
        assert gauges.blocks_free == gauges.blocks_total
        assert gauges.generated_tokens == billed + 1
        assert gauges.busy_ns + gauges.overhead_ns == gauges.step_ns

    supervised(test)


def test_cancelled_tasks_leave_nothing() -> None:
    async def test(executor: ExecutorProcess) -> None:
        await executor.wait_ready(30)
        started = asyncio.Event()

        async def ask() -> None:
            async with executor.turn(job(max_new_tokens=3000)) as turn:
                async for update in turn:
                    if isinstance(update, Emitted):
                        started.set()

        tasks = [asyncio.create_task(ask()) for _ in range(8)]
        await started.wait()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)
        gauges = await settled(executor)
        assert (gauges.running, gauges.waiting) == (0, 0)
        assert gauges.blocks_free == gauges.blocks_total

    supervised(test)


def test_it_ends_when_its_parent_is_gone() -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "s")
        process = subprocess.Popen([*COMMAND, "--socket", str(path)], stdin=subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(30) == 0


def test_it_ends_on_sigterm_and_removes_its_socket() -> None:
    async def ready(path: Path) -> None:
        came = asyncio.Event()

        def heard(message: Message) -> None:
            if isinstance(message, Ready):
                came.set()

        client = SocketExecutor(on_message=heard)
        life = asyncio.create_task(client.serve(path))
        await asyncio.wait_for(came.wait(), 30)
        life.cancel()
        await asyncio.wait({life})

    with TemporaryDirectory() as folder:
        path = Path(folder, "s")
        process = subprocess.Popen([*COMMAND, "--socket", str(path)], stdin=subprocess.PIPE)
        try:
            while not path.exists():
                assert process.poll() is None
                time.sleep(0.01)  # a folder gives no event
            asyncio.run(ready(path))
            process.terminate()
            assert process.wait(10) == 0
            assert not path.exists()
        finally:
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()


def test_what_is_kept_goes_with_the_process_and_what_is_ordered_is_done() -> None:
    async def asked(executor: ExecutorProcess) -> Ended:
        prompt = tuple(range(32)) * 2
        async with executor.turn(labelled(1, prompt, scope("doc", 64))) as turn:
            async for _ in turn:
                pass
        assert turn.ended is not None
        return turn.ended

    async def test(executor: ExecutorProcess) -> None:
        card = await executor.wait_ready(30)
        assert card.pool_blocks == card.kv_blocks // 4
        executor.set_quotas((Quota(owner="a", part=1.0),))
        assert [(await asked(executor)).cached for _ in range(2)] == [0, 48]
        gone = await executor.revoke((tag("doc"),), 2)
        assert (gone.entries, gone.zeroed) == (4, True)
        assert (await asked(executor)).cause is Cause.REVOKED
        assert executor.pid is not None
        os.kill(executor.pid, signal.SIGKILL)
        while executor.restarts == 0:
            await asyncio.sleep(0.01)
        await executor.wait_ready(30)
        assert [(await asked(executor)).cached for _ in range(2)] == [0, 48]  # quotas told again
        assert (await executor.purge("a")).entries == 4
        assert executor.gauges.kept_blocks == 0

    supervised(test)
