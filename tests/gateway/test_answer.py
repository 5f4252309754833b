"""Choices read as one, interrupted, and cancelled at every single await of the line.

The sweep drives the work of one request by hand and cancels it at its k-th suspension, for every k
there is: while it waits, and just as it is woken.  Whatever k is, afterwards nothing is left anywhere,
what is billed is what was generated, and the request has exactly one record.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import AsyncIterator, Coroutine, Generator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from executor.contract import (
    Cause,
    DeviceTime,
    Emitted,
    Ended,
    Executor,
    Gauges,
    Listed,
    ModelCard,
    Overview,
    Purged,
    Quota,
    Revoked,
    Submit,
    Turn,
    Workload,
)
from executor.echo import EchoExecutor
from executor.echo_card import IM_END
from gateway.answer import Answer
from gateway.api import generate
from gateway.errors import ApiError
from gateway.live import authorization_revoked
from gateway.unbroken import unbroken
from tests.gateway.inhouse import CHAT, MODEL, Inhouse, inhouse

STEPS_MAX = 400


def submit(text: str, **fields: Any) -> Submit:
    return Submit(
        request=0,
        prompt=tuple(text.encode()),
        max_new_tokens=fields.pop("max_new_tokens", 16),
        stop_token_ids=fields.pop("stop_token_ids", (IM_END,)),
        **fields,
    )


async def steps(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@dataclass
class Distant:
    """The echo as behind a socket: an abort is confirmed some turns of the event loop later, and the
    choice speaks on until then."""

    echo: EchoExecutor
    away: int = 3

    @property
    def card(self) -> ModelCard | None:
        return self.echo.card

    @property
    def gauges(self) -> Gauges:
        return self.echo.gauges

    def set_terms(self, workloads: tuple[Workload, ...]) -> None:
        self.echo.set_terms(workloads)

    def set_quotas(self, quotas: tuple[Quota, ...]) -> None:
        self.echo.set_quotas(quotas)

    async def revoke(self, tags: tuple[bytes, ...], snapshot: int) -> Revoked:
        return await self.echo.revoke(tags, snapshot)

    async def purge(
        self, owner: str | None = None, tags: tuple[bytes, ...] = (), *, spare: bool = False
    ) -> Purged:
        return await self.echo.purge(owner, tags, spare=spare)

    async def list_kept(self, owner: str | None = None, *, by_label: bool = False) -> Listed:
        return await self.echo.list_kept(owner, by_label=by_label)

    async def look(self, tenant: str | None = None) -> Overview:
        return await self.echo.look(tenant)

    async def measure(self) -> Gauges:
        return await self.echo.measure()

    def take_past(self) -> tuple[DeviceTime, ...]:
        return self.echo.take_past()

    @asynccontextmanager
    async def turn(self, job: Submit) -> AsyncIterator[Turn]:
        await steps(self.away)
        async with self.echo.turn(job) as turn:
            try:
                yield turn
            finally:
                await steps(self.away)


async def told(answer: Answer) -> dict[int, bytes]:
    texts: dict[int, bytes] = {}
    while (heard := await answer.next()) is not None:
        index, update = heard
        if isinstance(update, Emitted):
            texts[index] = texts.get(index, b"") + bytes(t for t in update.tokens if t < 256)
    return texts


def test_each_choice_says_its_own() -> None:
    async def run() -> None:
        echo = EchoExecutor()
        async with Answer(echo, [submit("abc"), submit("de"), submit("f")]) as answer:
            assert await told(answer) == {0: b"abc", 1: b"de", 2: b"f"}
        assert {index: each.generated for index, each in answer.ended.items()} == {0: 4, 1: 3, 2: 2}
        assert {each.cause for each in answer.ended.values()} == {Cause.STOP}
        assert echo.open_turns == 0

    asyncio.run(run())


@pytest.mark.parametrize("distant", (False, True))
def test_one_choice_is_stopped_while_the_others_go_on(*, distant: bool) -> None:
    async def run() -> None:
        echo = EchoExecutor()
        executor: Executor = Distant(echo) if distant else echo
        long = {"max_new_tokens": 200, "stop_token_ids": ()}
        async with Answer(executor, [submit("aa", **long), submit("bb", **long)]) as answer:
            while (heard := await answer.next()) is not None:
                index, update = heard
                if index == 0 and isinstance(update, Emitted):
                    await answer.stop(0)
                    assert answer.ended[0].cause is Cause.ABORTED
                    break
            after = [heard async for heard in rest(answer)]
            assert {index for index, _ in after} == {1}
            assert isinstance(after[-1][1], Ended)
        assert answer.ended[1].cause is Cause.LENGTH
        assert answer.ended[1].generated == 200
        assert answer.ended[0].generated < 200
        assert echo.open_turns == 0

    asyncio.run(run())


async def rest(answer: Answer) -> AsyncIterator[tuple[int, Any]]:
    while (heard := await answer.next()) is not None:
        yield heard


@pytest.mark.parametrize("choices", (1, 3))
def test_an_interrupt_ends_all_choices(choices: int) -> None:
    async def run() -> None:
        forever = asyncio.Event()

        async def gate(job: Submit, token: int) -> None:
            if token == 2:
                await forever.wait()

        echo = EchoExecutor(gate=gate)
        async with Answer(echo, [submit("abcdef")] * choices) as answer:
            reader = asyncio.create_task(told(answer))
            await steps(20)
            answer.interrupt(authorization_revoked())
            with pytest.raises(ApiError) as raised:
                await reader
            assert raised.value.code == "authorization_revoked"
        assert [each.generated for each in answer.ended.values()] == [2] * choices
        assert echo.open_turns == 0

    asyncio.run(run())


def test_leaving_while_interrupted_still_frees_every_turn() -> None:
    """Two ends at once: authority withdrawn, and the caller gone while that unwinds."""

    async def run() -> None:
        forever = asyncio.Event()

        async def gate(job: Submit, token: int) -> None:
            if token == 2:
                await forever.wait()

        echo = EchoExecutor(gate=gate)
        answer = Answer(Distant(echo), [submit("abcdef")] * 3)

        async def work() -> None:
            async with answer:
                await told(answer)

        task = asyncio.create_task(work())
        await steps(40)
        answer.interrupt(authorization_revoked())
        await steps(3)
        task.cancel()
        with pytest.raises((asyncio.CancelledError, ApiError)):
            await task
        assert sorted(answer.ended) == [0, 1, 2]
        assert echo.open_turns == 0

    asyncio.run(run())


def test_a_cancelled_read_loses_nothing() -> None:
    async def run() -> None:
        async with Answer(EchoExecutor(), [submit("abc"), submit("xyz")]) as answer:
            texts: dict[int, bytes] = {}
            over, patience, cancelled = False, 0, 0
            while not over:
                reading = asyncio.ensure_future(answer.next())
                patience = (patience + 1) % 5
                await steps(patience)
                cancelled += reading.cancel()
                try:
                    heard = await reading
                except asyncio.CancelledError:
                    continue
                over = heard is None
                if heard is not None and isinstance(heard[1], Emitted):
                    said = bytes(t for t in heard[1].tokens if t < 256)
                    texts[heard[0]] = texts.get(heard[0], b"") + said
            assert texts == {0: b"abc", 1: b"xyz"}
            assert cancelled > 3

    asyncio.run(run())


@pytest.mark.parametrize(
    ("cause", "status", "code"),
    (
        (Cause.QUEUE_DEADLINE, 408, "queue_deadline"),
        (Cause.OVERLOADED, 503, "overloaded"),
        (Cause.REFUSED, 400, "context_length_exceeded"),
        (Cause.CRASHED, 503, "executor_lost"),
        (Cause.ABORTED, 503, "executor_lost"),
    ),
)
def test_every_abnormal_end_is_explained(cause: Cause, status: int, code: str) -> None:
    from gateway.answer import NORMAL, fault

    why = fault(Ended(request=1, cause=cause))
    assert (why.status, why.code) == (status, code)
    assert why.status == 400 or why.retryable
    assert NORMAL | {cause for cause in Cause if cause not in NORMAL} == set(Cause)


# The sweep


@dataclass
class Blow:
    """Cancels the task that runs it, once, at its `at`-th suspension."""

    at: int
    waking: bool
    seen: int = 0
    struck: bool = False

    @types.coroutine
    def through(self, work: Coroutine[Any, Any, None]) -> Generator[Any, None, None]:
        fault: BaseException | None = None
        while True:
            try:
                waits_for = work.send(None) if fault is None else work.throw(fault)
            except StopIteration:
                return
            fault = None
            if self.seen == self.at:
                self._strike(waits_for)
            self.seen += 1
            try:
                yield waits_for
            except BaseException as why:  # noqa: BLE001 — handed on, into the work
                fault = why

    def _strike(self, waits_for: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.struck = True
        if self.waking and waits_for is not None:
            # Before the task's own wake-up: it is cancelled although what it waited for is there.
            waits_for.add_done_callback(lambda _: task.cancel())
        else:
            task.cancel()


SHAPES: dict[str, tuple[str, dict[str, object]]] = {
    "whole": (CHAT, {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 6}),
    "stream": (
        CHAT,
        {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 6, "stream": True},
    ),
    "choices": ("/v1/completions", {"prompt": ["ab", "c"], "n": 2, "max_tokens": 4}),
    "stopped": (
        "/v1/completions",
        {"prompt": "abcdef", "n": 2, "max_tokens": 40, "ignore_eos": True, "stop": ["ef"]},
    ),
}


def blows() -> Iterator[Blow]:
    for at in range(STEPS_MAX):
        yield Blow(at, waking=False)
        yield Blow(at, waking=True)


@pytest.mark.parametrize(
    "shape",
    ("whole", *(pytest.param(each, marks=pytest.mark.slow) for each in SHAPES if each != "whole")),
)
def test_cancelled_at_any_await_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    path, body = SHAPES[shape]

    async def story(home: Inhouse) -> None:
        struck = 0
        for blow in blows():

            async def inline(
                receive: object, work: Coroutine[Any, Any, None], blow: Blow = blow
            ) -> None:
                await blow.through(work)

            monkeypatch.setattr(generate, "until_disconnect", inline)
            before = home.echo.gauges.generated_tokens
            records, tasks = len(home.logged), len(asyncio.all_tasks())
            exchange = home.caller().start("POST", path, {"model": MODEL, **body})
            async with asyncio.timeout(20):
                await asyncio.wait({exchange.task})
            where = (shape, blow)
            assert exchange.task.cancelled() or exchange.task.exception() is None, where
            await home.house.book.sweep()  # a write: everything submitted before it is through
            await home.at_rest()
            await steps(2)
            assert len(asyncio.all_tasks()) == tasks, where
            made = home.logged[records:]
            assert len(made) <= 1, where
            await judge(home, made, home.echo.gauges.generated_tokens - before, where)
            struck += blow.struck
            if not blow.struck:
                assert exchange.status == 200, where
                break
        assert struck > 20
        assert not blow.struck, "the sweep never came to the end"

    async def run() -> None:
        echo = EchoExecutor()
        async with inhouse(tmp_path, echo=echo) as home:
            deployment = home.house.deployments[MODEL]
            deployment.executor = Distant(echo)
            await story(home)
            ids = [entry["request_id"] for entry in home.logged]
            kept = [each for each in home.audited() if each["kind"].startswith("request.")]
            assert sorted(each["request_id"] for each in kept) == sorted(map(str, ids))

    asyncio.run(run())


async def judge(
    home: Inhouse, made: list[dict[str, object]], generated: int, where: object
) -> None:
    """One request's own record, the ledger's and the audit log's agree with the executor."""
    if not made:
        assert generated == 0, where  # it had not come to the line
        return
    (entry,) = made
    request_id = entry["request_id"]
    assert isinstance(request_id, str)
    records = [each for each in home.audited() if each.get("request_id") == request_id]
    assert len(records) == 1, (where, records)
    record = records[0]
    found = await home.house.book.explain(request_id)
    if found is None or found.record is None:
        assert generated == 0, where
        assert (record["output_tokens"], record["nano_usd"]) == (0, 0), where
        assert record["outcome"] == "cancelled", where
        return
    assert found.record.generated_tokens == generated, where
    assert found.record.output_tokens <= generated, where
    if "stopped" not in where[0]:  # type: ignore[index]
        assert found.record.output_tokens == generated, where
    assert record["output_tokens"] == found.record.output_tokens, where
    assert record["outcome"] == found.record.outcome, where
    charged = 0 if found.charge is None else found.charge.total_nano_usd
    assert record["nano_usd"] == charged, where
    assert (found.state == "SETTLED") == (generated > 0 or found.record.prompt_tokens > 0), where


def test_what_is_unbroken_finishes_first() -> None:
    async def run() -> None:
        done: list[str] = []

        async def effect() -> str:
            await steps(5)
            done.append("effect")
            return "said"

        assert await unbroken(effect()) == "said"
        task = asyncio.create_task(unbroken(effect()))
        for _ in range(3):  # however often
            await steps(1)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done == ["effect", "effect"]

        async def fails() -> None:
            await steps(5)
            raise OSError

        with pytest.raises(OSError):
            await unbroken(fails())

    asyncio.run(run())


def test_the_choices_of_a_prompt_name_the_first_of_them() -> None:
    asked: list[tuple[int, int | None]] = []

    class Listening(Distant):
        @asynccontextmanager
        async def turn(self, job: Submit) -> AsyncIterator[Turn]:
            async with super().turn(job) as turn:
                asked.append((turn.request, job.sibling))
                yield turn

    async def scene() -> None:
        submits = [submit("abc")] * 3 + [submit("abc")] * 3
        async with Answer(Listening(EchoExecutor()), submits, n=3) as answer:
            await told(answer)

    asyncio.run(scene())
    first, second = asked[0][0], asked[3][0]
    assert [sibling for _, sibling in asked] == [None, first, first, None, second, second]
