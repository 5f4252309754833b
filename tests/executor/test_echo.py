from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from jinja2 import Template
from tokenizers import Tokenizer

from executor.contract import (
    Cause,
    Emitted,
    Ended,
    Executor,
    ExecutorLost,
    Grammar,
    GrammarKind,
    Overview,
    Prefilling,
    Sampling,
    Submit,
    Waiting,
    Workload,
)
from executor.echo import EchoExecutor
from executor.echo_card import IM_END, IM_START, VOCAB_SIZE
from tests.executor.fakes import job
from tests.executor.labelled import labelled, scope, tag

TEXT = "Grüße, 世界 🌍\n\tto all!"


def tokenizer() -> Tokenizer:
    card = EchoExecutor().card
    assert card is not None
    return Tokenizer.from_str(card.tokenizer_json.decode())


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(test(), 20)

    asyncio.run(main())


async def answer(executor: EchoExecutor, asked: Submit) -> tuple[list[int], Ended]:
    tokens: list[int] = []
    async with executor.turn(asked) as turn:
        async for update in turn:
            if isinstance(update, Emitted):
                tokens += update.tokens
    assert turn.ended is not None
    return tokens, turn.ended


def assert_empty(executor: EchoExecutor) -> None:
    gauges = executor.gauges
    assert (gauges.running, gauges.waiting) == (0, 0)
    assert gauges.blocks_free == gauges.blocks_total
    assert executor.open_turns == 0


def test_it_is_an_executor() -> None:
    executor: Executor = EchoExecutor()
    assert executor.card is not None


def test_its_tokenizer_is_bytes() -> None:
    tokens = tokenizer()
    ids = tokens.encode(TEXT, add_special_tokens=False).ids
    assert ids == list(TEXT.encode())
    assert tokens.decode(ids) == TEXT
    assert tokens.decode(list(range(0x20, 0x7F))) == bytes(range(0x20, 0x7F)).decode()
    assert tokens.get_vocab_size() == VOCAB_SIZE
    assert tokens.encode("<|im_start|>x<|im_end|>").ids == [IM_START, ord("x"), IM_END]
    assert tokens.decode([IM_START, ord("x"), IM_END]) == "x"


def test_its_template_is_chatml() -> None:
    card = EchoExecutor().card
    assert card is not None
    assert card.chat_template is not None
    made = Template(card.chat_template, autoescape=False).render(
        messages=[{"role": "user", "content": "hi"}], add_generation_prompt=True
    )
    assert made == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_it_says_the_prompt_back_and_stops() -> None:
    async def test() -> None:
        executor = EchoExecutor()
        prompt = [IM_START, *b"hello", IM_END]
        tokens, last = await answer(
            executor, job(9, prompt, max_new_tokens=50, stop_token_ids=(IM_END,))
        )
        assert tokens == [*b"hello", IM_END]
        assert (last.cause, last.prefilled, last.generated) == (Cause.STOP, 7, 6)
        assert_empty(executor)
        assert (executor.gauges.prompt_tokens, executor.gauges.generated_tokens) == (7, 6)

    run(test)


def test_with_a_script_it_says_that_and_is_trusted_to_keep_a_grammar() -> None:
    async def test() -> None:
        asks = {3: Grammar(kind=GrammarKind.JSON_OBJECT), 6: None}
        for room, grammar in asks.items():
            executor = EchoExecutor(says=lambda asked: b"{}" if asked.grammar else b"other")
            asked = job(1, b"hello", max_new_tokens=room, stop_token_ids=(IM_END,), grammar=grammar)
            tokens, last = await answer(executor, asked)
            assert tokens == [*(b"{}" if grammar else b"other"), IM_END]
            assert last.cause is Cause.STOP
        silent = EchoExecutor(says=lambda _: b"")
        tokens, _ = await answer(silent, job(1, b"hi", max_new_tokens=9, stop_token_ids=(IM_END,)))
        assert tokens == [*b"hi", IM_END]

    run(test)


def test_it_goes_round_without_a_stop_or_before_min_tokens() -> None:
    async def test() -> None:
        executor = EchoExecutor()
        tokens, last = await answer(executor, job(1, b"ab", max_new_tokens=5))
        assert (bytes(tokens), last.cause) == (b"ababa", Cause.LENGTH)
        asked = job(1, b"ab", max_new_tokens=9, stop_token_ids=(IM_END,), min_tokens=4)
        tokens, last = await answer(executor, asked)
        assert (tokens, last.cause) == ([*b"abab", IM_END], Cause.STOP)

    run(test)


def test_a_full_context_ends_in_length_and_a_longer_prompt_is_refused() -> None:
    async def test() -> None:
        executor = EchoExecutor(context_tokens=8)
        tokens, last = await answer(executor, job(1, b"abcdef", max_new_tokens=50))
        assert (bytes(tokens), last.cause) == (b"ab", Cause.LENGTH)
        _, last = await answer(executor, job(1, b"abcdefgh"))
        assert last.cause is Cause.REFUSED
        _, last = await answer(executor, job(1, b""))
        assert last.cause is Cause.REFUSED
        assert_empty(executor)

    run(test)


def test_who_waits_is_told_its_place_in_the_tenant() -> None:
    async def test() -> None:
        release = asyncio.Event()

        async def gate(_: Submit, k: int) -> None:
            await release.wait()

        executor = EchoExecutor(seqs_max=1, gate=gate)
        a, b = (("a", 1.0),), (("b", 1.0),)
        async with (
            executor.turn(job(share=a)) as one,
            executor.turn(job(share=a)) as two,
            executor.turn(job(share=b)) as other,
            executor.turn(job(share=a)) as three,
        ):
            assert isinstance(await anext(one), Prefilling)
            assert await anext(two) == Waiting(request=2, position=0)
            assert await anext(other) == Waiting(request=3, position=0)
            assert await anext(three) == Waiting(request=4, position=1)
            assert (executor.gauges.running, executor.gauges.waiting) == (1, 3)
            release.set()
            for turn in (one, two, other, three):
                assert [u async for u in turn][-1] == turn.ended
        assert_empty(executor)

    run(test)


def test_leaving_aborts_also_while_queued_and_lets_the_next_in() -> None:
    async def test() -> None:
        async def never(_: Submit, k: int) -> None:
            if k == 2:
                await asyncio.Event().wait()

        executor = EchoExecutor(seqs_max=1, gate=never)
        async with executor.turn(job()) as one:
            async with executor.turn(job()) as two:
                pass
            assert two.ended is not None
            assert (two.ended.cause, two.ended.prefilled) == (Cause.ABORTED, 0)
            async for update in one:
                if isinstance(update, Emitted):
                    break
            async with executor.turn(job()) as three:
                assert isinstance(await anext(three), Waiting)
                async with asyncio.timeout(5):
                    reading = asyncio.create_task(next_of(three))
                    await asyncio.sleep(0)
                    executor._drop(executor._running[0])
                    await reading
        assert one.ended is not None
        assert one.ended.cause is Cause.ABORTED
        assert one.ended.generated >= 1
        assert_empty(executor)

    async def next_of(turn: object) -> object:
        return await anext(turn)  # type: ignore[call-overload]

    run(test)


def test_a_queue_deadline() -> None:
    async def test() -> None:
        async def never(_: Submit, k: int) -> None:
            await asyncio.Event().wait()

        executor = EchoExecutor(seqs_max=1, gate=never)
        async with executor.turn(job()):
            _, last = await answer(executor, job(queue_ms_max=1))
            assert (last.cause, last.prefilled) == (Cause.QUEUE_DEADLINE, 0)
        assert_empty(executor)

    run(test)


def test_scripted_crashes() -> None:
    async def test() -> None:
        executor = EchoExecutor(crash_at=2)
        tokens, last = await answer(executor, job(1, b"abc"))
        assert (bytes(tokens), last.cause, last.generated) == (b"ab", Cause.CRASHED, 2)

        async def broken(_: Submit, k: int) -> None:
            raise RuntimeError

        _, last = await answer(EchoExecutor(gate=broken), job())
        assert last.cause is Cause.CRASHED
        assert_empty(executor)

    run(test)


def test_the_death_of_the_executor_and_its_return() -> None:
    async def test() -> None:
        async def never(_: Submit, k: int) -> None:
            if k == 1:
                await asyncio.Event().wait()

        executor = EchoExecutor(seqs_max=1, gate=never)
        async with executor.turn(job()) as one, executor.turn(job()) as two:
            async for update in one:
                if isinstance(update, Emitted):
                    break
            executor.fail()
            assert executor.card is None
            for turn, seen in ((one, 1), (two, 0)):
                last = [u async for u in turn][-1]
                assert isinstance(last, Ended)
                assert (last.cause, last.generated) == (Cause.CRASHED, seen)
            with pytest.raises(ExecutorLost):
                async with executor.turn(job()):
                    pass
        assert_empty(executor)
        executor.recover()
        tokens, _ = await answer(executor, job(1, b"a", max_new_tokens=1))
        assert tokens == [ord("a")]

    run(test)


def test_logprobs_where_asked_for() -> None:
    async def test() -> None:
        executor = EchoExecutor()
        asked = job(1, b"ab", max_new_tokens=2, sampling=Sampling(top_logprobs=2))
        async with executor.turn(asked) as turn:
            said = [u async for u in turn if isinstance(u, Emitted)]
        logprobs = [entry for update in said for entry in update.logprobs]
        assert [entry.chosen.token for entry in logprobs] == [*b"ab"]
        assert all(len(entry.top) == 2 for entry in logprobs)
        assert all(entry.top[0] == entry.chosen for entry in logprobs)

    run(test)


def test_it_shows_who_speaks_and_who_waits() -> None:
    async def test() -> None:
        held = asyncio.Event()

        async def gate(_: Submit, __: int) -> None:
            await held.wait()

        now = [0]
        executor = EchoExecutor(gate=gate, seqs_max=1, clock_ns=lambda: now[0])
        executor.set_terms((Workload(name="batch", weight=None),))
        assert [each.name for each in executor.terms] == ["batch"]
        one, three = (("acme", 1.0), ("u", 1.0)), (("globex", 3.0), ("u", 1.0))
        async with (
            executor.turn(job(1, b"ab", share=one, workload="interactive")),
            executor.turn(job(2, b"ab", share=three, workload="batch")),
            executor.turn(job(3, b"ab", share=three, workload="batch")),
        ):
            now[0] = 2_000_000
            first, second = (await executor.look()).lanes
            assert (first.workload, first.tenant, first.waiting) == ("batch", "globex", 2)
            assert (first.running, first.used, first.due, first.oldest_ms) == (0, 0.0, 0.75, 2)
            assert (second.workload, second.tenant, second.running) == ("interactive", "acme", 1)
            assert (second.used, second.due, second.oldest_ms, second.blocks) == (1.0, 0.25, 0, 1)
            assert (await executor.look("globex")).lanes == (first,)
            held.set()
        assert await executor.look() == Overview()
        executor.fail()
        with pytest.raises(ExecutorLost):
            await executor.look()

    run(test)


def test_who_is_turned_away_leaves_nothing_behind() -> None:
    async def test() -> None:
        word = Ended(request=0, cause=Cause.BACKLOG, retry_ms=1200)
        executor = EchoExecutor(refuses=lambda asked: word if asked.workload == "x" else None)
        tokens, last = await answer(executor, job(1, b"ab", workload="x"))
        assert (tokens, last.cause, last.retry_ms) == ([], Cause.BACKLOG, 1200)
        assert_empty(executor)
        _, last = await answer(executor, job(1, b"ab", max_new_tokens=1))
        assert last.cause is Cause.LENGTH

    run(test)


def test_it_keeps_nothing_and_revokes_and_purges_as_one_that_has_nothing() -> None:
    async def test() -> None:
        spoken = asyncio.Event()

        async def gate(_: Submit, __: int) -> None:
            spoken.set()
            await asyncio.Event().wait()

        executor = EchoExecutor(gate=gate)
        warm = labelled(1, range(8), scope("doc", 8, pinned=True), warm=True)
        tokens, last = await answer(executor, warm)
        assert (tokens, last.cause, last.cached) == ([], Cause.STOP, 0)
        async with executor.turn(labelled(2, range(8), scope("doc", 8))) as turn:
            await spoken.wait()
            answered = await executor.revoke((tag("doc"),), 2)
            assert (answered.entries, answered.ended, answered.zeroed) == (0, 1, True)
            assert turn.ended is not None
            assert turn.ended.cause is Cause.REVOKED
        assert (await executor.purge()).zeroed
        assert_empty(executor)

    run(test)
