"""Random arrivals, aborts, tiny memory: whatever happens, each request says what it says alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.batch import Batch, StepBounds
from executor.contract import Abort, Cause, Emitted, Ended, Gauges, Sampling, Submit, Workload
from executor.cost import PESSIMIST, StepTimes
from executor.draft import GUESSES_MAX
from executor.settings import Policy, Settings
from tests.executor.fakes import FREE, GREEDY, Clock, FakeRunner, Harness, job

SHAPES = {"vocab_size": 12, "context_tokens": 40}
HABITS = 6.0
CLASSES = (
    Workload(name="critical", reserved=0.2, itl_ms=80),
    Workload(name="batch", weight=None, floor=0.05),
)
SEEDED = Sampling(temperature=0.8, top_p=0.9, seed=7)


def house_of(rng: Random) -> Harness:
    """Memory for one or two sequences, a few at once, chunks of a few tokens; half of them with a
    model that repeats itself, so that guesses hold."""
    block_tokens = rng.choice([1, 3, 4, 8])
    kv_blocks = rng.choice([12, 20, 30, 48]) // block_tokens
    runner = FakeRunner(
        block_tokens=block_tokens, kv_blocks=kv_blocks, habits=rng.choice([0.0, HABITS]), **SHAPES
    )
    limits = Settings(
        seqs_max=rng.choice([1, 4, 8]),
        step_tokens_max=rng.choice([1, 3, 8, 64]),
        chunk_tokens_min=rng.choice([1, 4]),
        step_ms_max=rng.choice([1, 20, 200]),
        waiting_max=rng.choice([2, 20, 20]),
        speculation=rng.random() < 0.8,
        policy=rng.choice(list(Policy)),
        check_invariants=True,
    )
    clock = Clock(tick_ns=rng.choice([1, 1_000_003, 20_000_003, 20_000_003]))
    return Harness(
        runner, settings=limits, clock=clock, times=StepTimes(rng.choice([PESSIMIST, FREE, FREE]))
    )


def within(batch: Batch, limits: Settings) -> None:
    """A device is prepared for so much at its start, and for no more."""
    bounds = StepBounds(limits.seqs_max, limits.step_tokens_max, GUESSES_MAX)
    assert len(batch.rows) <= bounds.rows
    assert batch.token_count <= bounds.tokens
    assert sum(row.logit_rows for row in batch.rows) <= bounds.logit_rows


def jobs_of(rng: Random) -> dict[int, Submit]:
    """Some are choices of one prompt; some name a sibling that is none."""
    made: dict[int, Submit] = {}
    for request in range(1, rng.randint(2, 12)):
        named = rng.choice([None, None, *made])
        prompt = made[named].prompt if named and rng.random() < 0.9 else None
        one = job_of(rng, request, prompt, named)
        if named is not None and rng.random() < 0.7:
            one = msgspec.structs.replace(one, share=made[named].share)
        made[request] = one
    return made


def job_of(rng: Random, request: int, prompt: Sequence[int] | None, sibling: int | None) -> Submit:
    return job(
        request,
        prompt or [rng.randrange(12) for _ in range(rng.randint(1, rng.choice([2, 5, 14])))],
        sibling=sibling,
        max_new_tokens=rng.randint(1, rng.choice([6, 20, 36])),
        min_tokens=rng.choice([0, 3]),
        stop_token_ids=rng.choice([(), (), (5,), (5, 9)]),
        sampling=rng.choice([GREEDY, GREEDY, SEEDED]),
        share=(rng.choice([("a", 1.0), ("a", 1.0), ("b", 0.5)]), (rng.choice("uuuv"), 1.0)),
        workload=rng.choice(["", "batch", "critical"]),
        queue_ms_max=rng.choice([None, None, None, 40, 400]),
    )


@cache
def alone(asked: Submit, kv_tokens: int, habits: float) -> tuple[list[int], Cause]:
    """A solo run in memory of the same size, all in one chunk, without guesses."""
    runner = FakeRunner(block_tokens=kv_tokens, kv_blocks=1, habits=habits, **SHAPES)
    house = Harness(runner, settings=Settings(speculation=False))
    house.submit(asked)
    house.run()
    return house.tokens(asked.request), house.ended(asked.request).cause


def play(seed: int) -> tuple[Gauges, int]:
    """One scenario; returns what the engine counted, and prompt tokens that were read, not computed."""
    rng = Random(seed)
    house = house_of(rng)
    kv_tokens = house.runner.block_tokens * house.runner.kv_blocks
    jobs = jobs_of(rng)
    house.terms(*CLASSES)
    late = list(jobs)
    aborted: set[int] = set()

    def meddle() -> None:
        if late and rng.random() < 0.6:
            house.submit(jobs[late.pop(0)])
        if rng.random() < 0.05:
            told = rng.choice(list(jobs))
            if told not in late:
                house.abort(told)
                aborted.add(told)

    def during(batch: Batch) -> None:
        within(batch, house.engine._settings)
        meddle()

    house.runner.before = during
    for _ in range(3000):
        if not late and not house.inbox and not house.engine.busy:
            break
        meddle()
        told = {a.request for _, a in house.inbox if isinstance(a, Abort)}
        before = {n: len(house.tokens(n)) for n in told}
        house.step()
        for n in told:  # an abort that was there before the step: not a token more
            assert len(house.tokens(n)) == before[n]
    house.assert_empty()
    for n, asked in jobs.items():
        last = house.ended(n)
        tokens, cause = alone(asked, kv_tokens, house.runner.habits)
        said = house.tokens(n)
        assert last.generated == len(said)
        assert said == tokens[: len(said)]
        if last.cause in {Cause.STOP, Cause.LENGTH}:
            assert (said, last.cause) == (tokens, cause)
        elif last.cause is Cause.ABORTED:
            assert n in aborted
        elif last.cause is Cause.REFUSED:
            assert cause is Cause.REFUSED
        else:
            assert last.cause in {Cause.BACKLOG, Cause.OVERLOADED, Cause.QUEUE_DEADLINE}
            assert (last.prefilled, last.generated) == (0, 0)
        assert 0 <= last.prefilled <= len(asked.prompt)
        if said:  # somebody computed each token of its prompt
            assert len(asked.prompt) == max(
                house.ended(each).prefilled for each in jobs if jobs[each].prompt == asked.prompt
            )
        for update in house.heard[0, n]:
            assert update.request == n
    lasts = [house.ended(n) for n in jobs]
    gauges = house.engine.gauges
    assert sum(last.device_ns for last in lasts) == gauges.busy_ns
    assert sum(last.recomputed_ns for last in lasts) == gauges.overhead_ns
    assert gauges.busy_ns + gauges.overhead_ns == gauges.step_ns
    assert sum(last.prefilled for last in lasts) == gauges.prompt_tokens
    assert sum(last.generated for last in lasts) == gauges.generated_tokens
    assert sum(last.preemptions for last in lasts) == gauges.preemptions
    for heard in house.heard.values():
        assert sum(isinstance(update, Ended) for update in heard) == 1
        assert all(u.tokens for u in heard if isinstance(u, Emitted))
    said_by = [n for n in jobs if house.tokens(n)]
    return gauges, sum(len(jobs[n].prompt) - house.ended(n).prefilled for n in said_by)


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(st.integers(0, 2**32))
def test_20_whatever_happens_each_request_says_what_it_says_alone(seed: int) -> None:
    play(seed)


def test_the_scenarios_do_preempt_guess_and_share() -> None:
    played = [play(seed) for seed in range(96, 128)]
    seen = [gauges for gauges, _ in played]
    assert sum(each.preemptions for each in seen) > 5
    assert sum(shared for _, shared in played) > 8
    assert sum(each.accepted_tokens for each in seen) > 5
    assert sum(each.drafted_tokens - each.accepted_tokens for each in seen) > 5


@pytest.mark.slow
def test_three_thousand_scenarios() -> None:
    for seed in range(1000, 4000):
        play(seed)


@pytest.mark.long
def test_a_hundred_thousand_scenarios() -> None:
    for seed in range(10_000, 110_000):
        play(seed)
