"""Guesses change when something is said, never what."""

from __future__ import annotations

from typing import Any

import pytest

from executor.batch import Batch
from executor.contract import Cause, Emitted, Gauges, Sampling, Submit
from executor.cost import StepTimes
from executor.sequence import Sequence
from executor.settings import Policy, Settings
from tests.executor.fakes import FREE, GREEDY, Clock, FakeRunner, Harness, job

pytestmark = pytest.mark.slow  # the whole run's: the fast subset stays below half a minute

HABITS = 6.0
SAMPLINGS = {
    "greedy": GREEDY,
    "drawn": Sampling(temperature=0.4, top_p=0.9, seed=3),
    "penalties": Sampling(
        temperature=0.0, presence_penalty=0.3, frequency_penalty=0.2, repetition_penalty=1.1
    ),
    "drawn with penalties": Sampling(temperature=0.3, frequency_penalty=0.05, seed=11),
    "logprobs": Sampling(temperature=0.0, top_logprobs=2),
    "bias": Sampling(temperature=0.2, logit_bias=((3, 4.0), (5, -100.0)), seed=5),
}


def house_of(
    speculation: bool, habits: float = HABITS, policy: Policy = Policy.FAIR, **shape: int
) -> Harness:
    given = {"block_tokens": 16, "kv_blocks": 24, "vocab_size": 12, "context_tokens": 80, **shape}
    return Harness(
        FakeRunner(habits=habits, **given),
        settings=Settings(check_invariants=True, speculation=speculation, policy=policy),
        clock=Clock(tick_ns=20_000_003),
        times=StepTimes(FREE),
    )


def said(house: Harness, request: int) -> tuple[list[int], list[Any], Cause, int, int]:
    heard = [u for u in house.heard[0, request] if isinstance(u, Emitted)]
    last = house.ended(request)
    logprobs = [each for update in heard for each in update.logprobs]
    return house.tokens(request), logprobs, last.cause, last.prefilled, last.generated


def both(*jobs: Submit, **shape: Any) -> Gauges:
    """Run with and without, compare, and return the counts of the run with guesses."""
    houses = [house_of(on, **shape) for on in (True, False)]
    for house in houses:
        for each in jobs:
            house.submit(each)
        house.run()
        house.assert_empty()
    for each in jobs:
        assert said(houses[0], each.request) == said(houses[1], each.request)
    with_guesses, without = (house.engine.gauges for house in houses)
    assert without.drafted_tokens == 0
    assert with_guesses.generated_tokens == without.generated_tokens
    assert with_guesses.busy_ns + with_guesses.overhead_ns == with_guesses.step_ns
    extra = [
        len(u.tokens) - 1
        for heard in houses[0].heard.values()
        for u in heard
        if isinstance(u, Emitted)
    ]
    assert sum(extra) == with_guesses.accepted_tokens
    lasts = [houses[0].ended(each.request) for each in jobs]
    assert sum(last.device_ns for last in lasts) == with_guesses.busy_ns
    assert sum(last.recomputed_ns for last in lasts) == with_guesses.overhead_ns
    return with_guesses


@pytest.mark.parametrize("name", SAMPLINGS)
def test_the_answer_is_the_same(name: str) -> None:
    sampling, counted = SAMPLINGS[name], []
    for stop, min_tokens in (((), 0), ((2,), 0), ((7, 9), 30)):
        fields = {"sampling": sampling, "stop_token_ids": stop, "min_tokens": min_tokens}
        jobs = [
            job(n, [n, 1, 2, 3], max_new_tokens=21 + 13 * n, **fields)  # the last fills the context
            for n in (1, 2, 5)
        ]
        counted.append(both(*jobs))
    assert sum(each.accepted_tokens for each in counted) > 10


@pytest.mark.parametrize("count", range(20, 30))
def test_max_new_tokens_cuts_within_what_held(count: int) -> None:
    gauges = both(job(1, [1, 2, 3] * 3, max_new_tokens=count))
    assert gauges.accepted_tokens > 0


def test_stop_tokens_are_banned_until_min_tokens_counting_guesses_that_hold() -> None:
    seq = Sequence((0, 1), job(1, min_tokens=5, stop_token_ids=(9,)), 1, 0)
    seq.tokens += [4, 4, 4]
    assert seq.ask(said=[4]).banned == (9,)
    assert seq.ask(said=[4, 4]).banned == ()
    assert seq.ask(said=[4, 4]).tokens == [1, 2, 3, 4, 4, 4, 4, 4]


def test_several_tokens_are_said_in_one_step_and_with_one_word() -> None:
    house = house_of(True)
    house.submit(job(1, [1, 2, 3] * 3, max_new_tokens=60))
    house.run()
    sizes = [len(u.tokens) for u in house.heard[0, 1] if isinstance(u, Emitted)]
    assert max(sizes) > 3
    assert sum(sizes) == 60
    assert house.engine.gauges.steps < 40


def test_preempted_sequences_guess_and_say_the_same() -> None:
    jobs = [job(n, [n, 2, 3], max_new_tokens=60) for n in range(1, 5)]
    gauges = both(*jobs, kv_blocks=9, policy=Policy.FCFS)  # ours lets in none that cannot grow
    assert gauges.preemptions > 0
    assert gauges.accepted_tokens > 0


def test_no_block_is_taken_for_a_guess() -> None:
    gauges = both(job(1, [1, 2, 3] * 3, max_new_tokens=60), block_tokens=1, kv_blocks=100)
    assert gauges.drafted_tokens == 0


def test_wrong_guesses_are_overhead_and_the_request_does_not_pay() -> None:
    house = house_of(True)

    def work(batch: Batch) -> None:
        house.clock.now_ns += 100_000 * batch.token_count

    house.runner.before = work
    sampling = Sampling(temperature=0.6, seed=4)
    house.submit(job(1, [1, 2, 3] * 3, max_new_tokens=60, sampling=sampling))
    house.run()
    gauges, last = house.engine.gauges, house.ended(1)
    assert gauges.preemptions == 0
    assert gauges.drafted_tokens > gauges.accepted_tokens
    assert 0 < last.recomputed_ns == gauges.overhead_ns
    assert last.device_ns == gauges.busy_ns
