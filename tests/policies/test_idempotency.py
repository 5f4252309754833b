"""What a key says to whoever comes by it, and what becomes of it: both tables, whole."""

from __future__ import annotations

from itertools import product

import pytest

from policies.idempotency import (
    DETERMINISTIC,
    Billed,
    Ending,
    Standing,
    State,
    Verdict,
    Work,
    ending,
    judge,
)

LIVE = Standing(State.RUNNING, same_body=True, lapsed=False, expired=False, kept=False, billed=Billed.OPEN)  # fmt: skip


def standing(state: State, lapsed: bool, expired: bool, kept: bool, billed: Billed) -> Standing:
    return Standing(state, same_body=True, lapsed=lapsed, expired=expired, kept=kept, billed=billed)


def test_a_key_that_nobody_has_used_is_the_first_ones_where_there_is_room() -> None:
    assert judge(None) is Verdict.RUN
    assert judge(None, room=False) is Verdict.FULL


RUNNING, DONE = State.RUNNING, State.DONE
NOTHING, OPEN, SOMETHING, UNTOLD = Billed
TABLE = (
    # state, lapsed, expired, kept, billed → by the same request
    (RUNNING, False, False, False, None, Verdict.RUNNING),
    (RUNNING, False, True, False, None, Verdict.RUNNING),
    (RUNNING, True, False, False, NOTHING, Verdict.RUN),
    (RUNNING, True, False, False, OPEN, Verdict.RUNNING),
    (RUNNING, True, True, False, OPEN, Verdict.RUNNING),
    (RUNNING, True, False, False, SOMETHING, Verdict.UNKNOWN),
    (RUNNING, True, False, False, UNTOLD, Verdict.UNKNOWN),
    (RUNNING, True, True, False, SOMETHING, Verdict.RUN),
    (RUNNING, True, True, False, UNTOLD, Verdict.RUN),
    (DONE, None, False, True, None, Verdict.REPLAY),
    (DONE, None, False, False, None, Verdict.GONE),
    (DONE, None, True, None, None, Verdict.RUN),
)


@pytest.mark.parametrize("row", TABLE)
def test_what_a_key_says(
    row: tuple[State, bool | None, bool, bool | None, Billed | None, Verdict],
) -> None:
    state, lapsed, expired, kept, billed, verdict = row
    either = (False, True)
    for wide in product(
        either if lapsed is None else (lapsed,),
        either if kept is None else (kept,),
        Billed if billed is None else (billed,),
    ):
        found = standing(state, wide[0], expired, wide[1], wide[2])
        assert judge(found) is verdict


def test_another_request_by_a_key_that_stands_for_something_is_refused_and_never_answered() -> None:
    either = (False, True)
    for state, lapsed, expired, kept, billed in product(State, either, either, either, Billed):
        mine = standing(state, lapsed, expired, kept, billed)
        other = Standing(state, False, lapsed, expired, kept, billed)
        free = judge(mine) is Verdict.RUN
        assert judge(other) is (Verdict.RUN if free else Verdict.REUSED)
        assert judge(other, room=False) is judge(other), "what stands takes no more room"


def test_what_may_have_been_billed_is_never_run_again_within_its_day() -> None:
    either = (False, True)
    for state, lapsed, kept, billed in product(State, either, either, Billed):
        if judge(standing(state, lapsed, False, kept, billed)) is Verdict.RUN:
            assert (state, lapsed, billed) == (RUNNING, True, NOTHING)


STATUSES = (200, 201, 400, 401, 403, 404, 408, 409, 413, 422, 429, 499, 500, 503)


@pytest.mark.parametrize("status", STATUSES)
def test_what_becomes_of_a_key(status: int) -> None:
    good = status < 300
    for whole, spent, fits in product((False, True), (False, True), (False, True)):
        kept = whole and (good or (spent and status in DETERMINISTIC))
        expected = Ending.CLOSE if spent else Ending.FREE
        if kept:
            expected = Ending.KEEP if fits else Ending.CLOSE
        assert ending(Work(status, whole, spent, fits)) is expected
        assert ending(Work(status, whole, None, fits)) is Ending.LEAVE


def test_a_refusal_that_was_not_paid_for_is_never_told_twice() -> None:
    for status in STATUSES[2:]:
        assert ending(Work(status, whole=True, spent=False, fits=True)) is Ending.FREE
