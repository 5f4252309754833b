"""What an engine counts in each step, by bounds: the gaps between a request's words, the tokens of a step."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from executor.contract import GAPS_NS, STEP_TOKENS, Emitted, Gauges, Spread
from executor.tally import Tally
from tests.executor.fakes import OPTIMIST, FakeRunner, Harness, job


@given(st.lists(st.integers(0, 40)), st.lists(st.integers(0, 40), min_size=1, unique=True))
def test_each_value_is_in_one_place(values: list[int], bounds: list[int]) -> None:
    bounds.sort()
    tally = Tally(bounds)
    for value in values:
        tally.add(value)
    found = tally.spread()
    assert found.total == sum(values)
    upto = [sum(found.counts[: at + 1]) for at in range(len(bounds))]
    assert upto == [sum(value <= bound for value in values) for bound in bounds]
    assert sum(found.counts) == len(values)


def test_the_gaps_of_an_answer_are_the_time_it_was_written_in() -> None:
    house = Harness()
    house.submit(job(1, (1, 2, 3), max_new_tokens=9))
    house.run()
    gauges, last = house.engine.gauges, house.ended(1)
    assert sum(gauges.gaps.counts) == 8
    assert gauges.gaps.total == last.decode_ns
    assert sum(gauges.step_tokens.counts) == gauges.steps
    assert gauges.step_tokens.total == 3 + 9


def counted(house: Harness, requests: int) -> tuple[Gauges, int]:
    """And how often anything was said."""
    house.run()
    gauges = house.engine.gauges
    heard = [house.heard[0, request] for request in range(1, requests + 1)]
    words = sum(isinstance(update, Emitted) for said in heard for update in said)
    assert sum(gauges.gaps.counts) == words - requests
    assert gauges.step_tokens.total == gauges.prompt_tokens + gauges.generated_tokens
    assert sum(gauges.step_tokens.counts) == gauges.steps
    return gauges, words


def test_who_is_put_out_is_silent_for_so_long_and_what_is_read_again_is_no_new_token() -> None:
    house = Harness(FakeRunner(kv_blocks=6, block_tokens=4), settings=OPTIMIST)
    for request in (1, 2):
        house.submit(job(request, (request, 2, 3, 4), max_new_tokens=14))
    gauges, words = counted(house, 2)
    assert gauges.preemptions > 0
    assert (words, gauges.step_tokens.total) == (28, 28 + 8)


def test_what_guesses_let_somebody_say_at_once_is_one_word() -> None:
    house = Harness(FakeRunner(habits=8.0))
    house.submit(job(1, [1, 2, 3] * 3, max_new_tokens=50))
    gauges, words = counted(house, 1)
    assert gauges.accepted_tokens > 0
    assert words < gauges.generated_tokens == 50


def test_bounds_ascend_and_nothing_is_counted_at_first() -> None:
    for bounds in (GAPS_NS, STEP_TOKENS):
        assert list(bounds) == sorted(set(bounds))
    assert Spread() == Spread((), 0)
