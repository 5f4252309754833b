"""When a server is given up and tried again, and one process's part of a limit."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.facts import Limits
from policies.outage import (
    FAILURES_MOST,
    FIRST_PAUSE_MS,
    LONGEST_PAUSE_MS,
    SAYS_SO,
    Breaker,
    Trouble,
    due,
    failed,
    share,
    worked,
)


def test_a_few_failures_in_a_row_open_it_and_an_answer_between_starts_anew() -> None:
    breaker = Breaker()
    for _ in range(FAILURES_MOST - 1):
        breaker = failed(breaker, Trouble.SLOW, 0)
    assert breaker.trouble is None
    breaker = worked(breaker, tried=False)
    for _ in range(FAILURES_MOST - 1):
        breaker = failed(breaker, Trouble.SLOW, 0)
    assert breaker.trouble is None
    breaker = failed(breaker, Trouble.UNREACHABLE, 7)
    assert breaker.trouble is Trouble.UNREACHABLE
    assert not due(breaker, 7 + FIRST_PAUSE_MS - 1)
    assert due(breaker, 7 + FIRST_PAUSE_MS)


@pytest.mark.parametrize("trouble", sorted(SAYS_SO))
def test_what_says_itself_that_it_cannot_is_asked_once(trouble: Trouble) -> None:
    assert failed(Breaker(), trouble, 0).trouble is trouble


def test_it_is_tried_ever_more_seldom_and_one_try_that_works_closes_it() -> None:
    breaker, now_ms, pauses = failed(Breaker(), Trouble.LOADING, 0), 0, []
    for _ in range(6):
        assert not due(breaker, now_ms)
        pauses.append(breaker.pause_ms)
        now_ms = breaker.again_ms
        assert due(breaker, now_ms)
        breaker = failed(breaker, Trouble.SLOW, now_ms)
        assert breaker.trouble is Trouble.SLOW  # the newest word
    assert pauses == [500, 1_000, 2_000, 4_000, LONGEST_PAUSE_MS, LONGEST_PAUSE_MS]
    assert worked(breaker, tried=True) == Breaker()


def test_what_was_under_way_when_it_opened_neither_closes_it_nor_lengthens_the_pause() -> None:
    breaker = failed(Breaker(), Trouble.LOADING, 0)
    assert worked(breaker, tried=False) == breaker
    assert failed(breaker, Trouble.SLOW, FIRST_PAUSE_MS - 1) == breaker
    assert not due(Breaker(), 10**9)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(1, 10**6), st.integers(1, 300))
def test_parts_together_are_no_more_than_the_whole_but_for_one_each(
    limit: int, processes: int
) -> None:
    part = share(Limits(rpm=limit, input_tpm=limit, output_tpm=limit, concurrent=limit), processes)
    assert {part.rpm, part.input_tpm, part.output_tpm, part.concurrent} == {part.rpm}
    assert part.rpm is not None
    assert part.rpm >= 1
    assert part.rpm * processes <= max(limit, processes)


def test_what_is_not_limited_has_no_part_and_nothing_stays_nothing() -> None:
    limits = Limits(rpm=0, max_output_tokens=7)
    assert share(limits, 4) == limits
