"""The bucket's promises: exact refill, exact Retry-After, and the bound over any window."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.rate import PARTS, Bucket, Rate, Window, full, give, headroom, refill, take
from policies.verdict import Allow, Deny, Reason

QUICK = settings(max_examples=80, deadline=None, derandomize=True)

rates = st.builds(Rate, st.integers(1, 10**6), st.integers(1, 10**6))
steps = st.lists(
    st.tuples(st.integers(-5_000, 20_000), st.integers(0, 10**6), st.integers(0, 10**6)),
    min_size=1,
    max_size=30,
)


def test_a_full_bucket_gives_its_burst_and_no_more() -> None:
    rate = Rate.of(60)
    first = take(full(rate, 0), rate, 60, 0)
    assert first == Allow(Bucket(0, 0))
    refused = take(Bucket(0, 0), rate, 1, 0)
    assert refused == Deny(Reason.RATE_REQUESTS, retry_after_ms=1000, limit=60, asked=1)


def test_the_reason_is_the_callers() -> None:
    rate = Rate.of(60)
    refused = take(Bucket(0, 0), rate, 1, 0, Reason.RATE_OUTPUT_TOKENS)
    assert isinstance(refused, Deny)
    assert refused.reason is Reason.RATE_OUTPUT_TOKENS


def test_a_rate_that_divides_nothing_evenly_refills_exactly() -> None:
    """7 a minute: after one minute in 60,000 looks, seven tokens and not a part more or less."""
    rate, bucket = Rate.of(7), Bucket(0, 0)
    for now_ms in range(0, 60_001, 7):
        bucket = refill(bucket, rate, now_ms)
    assert refill(bucket, rate, 60_000).parts == 7 * PARTS


def test_a_clock_stepping_back_refills_nothing() -> None:
    rate = Rate.of(60)
    assert refill(Bucket(5, 1_000), rate, 0) == Bucket(5, 1_000)
    refused = take(Bucket(0, 10_000), rate, 1, 4_000)
    assert isinstance(refused, Deny)
    assert refused.retry_after_ms == 6_000 + 1_000


def test_a_lowered_burst_cuts_at_once_and_giving_back_stops_at_the_burst() -> None:
    assert refill(full(Rate.of(100), 0), Rate.of(10), 0) == full(Rate.of(10), 0)
    assert give(full(Rate.of(10), 0), Rate.of(10), 7, 0) == full(Rate.of(10), 0)
    assert give(Bucket(0, 0), Rate.of(10), 7, 0) == Bucket(7 * PARTS, 0)


def test_headroom_shows_whole_tokens_and_when_it_is_full_again() -> None:
    rate = Rate.of(60)
    assert headroom(full(rate, 0), rate, 0) == Window(60, 60, 0)
    assert headroom(full(rate, 9_000), rate, 0) == Window(60, 60, 0)
    assert headroom(Bucket(PARTS + 1, 0), rate, 0) == Window(60, 1, 59_000)
    assert headroom(Bucket(59 * PARTS, 5_000), rate, 0) == Window(60, 59, 6_000)


@QUICK
@given(rates, st.integers(0, 10**10), st.integers(0, 10**6), st.integers(-1000, 1000))
def test_retry_after_is_right_to_the_millisecond(
    rate: Rate, parts: int, cost: int, now_ms: int
) -> None:
    bucket = Bucket(min(parts, rate.burst * PARTS), 0)
    cost = min(cost, rate.burst)
    verdict = take(bucket, rate, cost, now_ms)
    if isinstance(verdict, Deny):
        wait_ms = verdict.retry_after_ms
        assert wait_ms is not None
        assert wait_ms > 0
        assert isinstance(take(bucket, rate, cost, now_ms + wait_ms), Allow)
        assert isinstance(take(bucket, rate, cost, now_ms + wait_ms - 1), Deny)


@QUICK
@given(rates, steps)
def test_21_tokens_in_any_window_stay_within_burst_and_rate(
    rate: Rate, history: list[tuple[int, int, int]]
) -> None:
    """SCHEDULER.md §1, with refunds counted against what was taken, under a clock that may step
    back: a window is then as long as the furthest the clock has got."""
    bucket, now_ms, furthest_ms = full(rate, 0), 0, 0
    taken: list[tuple[int, int]] = []
    for step_ms, cost, back in history:
        now_ms += step_ms
        furthest_ms = max(furthest_ms, now_ms)
        verdict = take(bucket, rate, min(cost, rate.burst), now_ms)
        if isinstance(verdict, Allow):
            bucket = verdict.value
            used = min(cost, rate.burst)
            returned = min(back, used)
            bucket = give(bucket, rate, returned, now_ms)
            taken.append((furthest_ms, used - returned))
        assert 0 <= bucket.parts <= rate.burst * PARTS
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            window_ms = taken[last][0] - taken[first][0]
            used = sum(tokens for _, tokens in taken[first : last + 1])
            assert used * PARTS <= rate.burst * PARTS + rate.per_minute * window_ms
