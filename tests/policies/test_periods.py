"""Periods: each instant in one month, and nothing ever enters a closed one."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.periods import (
    CLOSING_MS,
    DAY_MS,
    LATE_MS,
    Hurdle,
    State,
    effective_for,
    hurdle,
    may_be_closed,
    month,
    month_at,
    months,
    state_of,
)

INSTANTS = st.integers(0, 253_000_000_000_000)
OCTOBER = month("2026-10")


def ms(*parts: int) -> int:
    return int(datetime(*parts, tzinfo=UTC).timestamp()) * 1000  # type: ignore[arg-type, misc]


def test_a_month_is_a_utc_month() -> None:
    assert (OCTOBER.start_ms, OCTOBER.end_ms) == (ms(2026, 10, 1), ms(2026, 11, 1))
    assert month("2026-12").end_ms == ms(2027, 1, 1)
    assert month("2028-02").end_ms == ms(2028, 3, 1)
    assert month_at(ms(2026, 10, 31, 23, 59, 59) + 999) == OCTOBER
    assert month_at(ms(2026, 11, 1)).name == "2026-11"
    assert [each.name for each in months(ms(2026, 11, 30), ms(2027, 1, 1))] == [
        "2026-11",
        "2026-12",
    ]
    assert list(months(5, 5)) == []


@pytest.mark.parametrize(
    "name", ("2026", "2026-13", "2026-00", "2026-1", "26-10", "1969-12", "9999-01", "\uff12026-10", "-026-10", "")
)  # fmt: skip
def test_what_is_no_month_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="2026-10"):
        month(name)


@given(INSTANTS)
def test_an_instant_lies_in_one_month(at_ms: int) -> None:
    found = month_at(at_ms)
    assert found.start_ms <= at_ms < found.end_ms
    assert month(found.name) == found
    assert month_at(found.end_ms).start_ms == found.end_ms


def test_a_month_closes_48_hours_after_its_end_and_in_order() -> None:
    end = OCTOBER.end_ms
    for now, state, why in (
        (end - 1, State.OPEN, Hurdle.RUNNING),
        (end, State.CLOSING, Hurdle.LATE_USAGE),
        (end + CLOSING_MS - 1, State.CLOSING, Hurdle.LATE_USAGE),
        (end + CLOSING_MS, State.CLOSING, None),
    ):
        assert state_of(OCTOBER, 0, now) is state
        assert hurdle(OCTOBER, 0, now, None) is why
    late = end + CLOSING_MS
    assert hurdle(OCTOBER, 0, late, OCTOBER.start_ms) is None
    assert hurdle(OCTOBER, 0, late, OCTOBER.start_ms - 1) is Hurdle.EARLIER
    assert hurdle(OCTOBER, end, late, None) is Hurdle.CLOSED
    assert state_of(OCTOBER, end, late) is State.CLOSED
    assert state_of(OCTOBER, end - 1, late) is State.CLOSING


@given(INSTANTS, INSTANTS, INSTANTS)
def test_nothing_enters_what_is_closed_and_nothing_else_is_moved(
    closed_until: int, at: int, now: int
) -> None:
    found = effective_for(closed_until, at, now)
    assert found >= closed_until
    assert found == at or at < closed_until
    assert found in {at, now, closed_until}


@given(INSTANTS, st.integers(0, 40 * DAY_MS))
def test_whoever_need_not_ask_is_never_in_a_closed_period(at: int, age: int) -> None:
    """A month may be closed 48 hours after its end: a clock may step back by a day between."""
    if not may_be_closed(at, at + age):
        closed_by_then = month_at(at).closable_ms
        assert at + age < closed_by_then - LATE_MS
