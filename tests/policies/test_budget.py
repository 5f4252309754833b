"""What a budget lets through, and which window counts it, also where clocks are changed."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.budget import HOUR_S, LEAST_OUTPUT_TOKENS, Account, Fit, fit, window_at
from policies.facts import Budget, Price
from policies.price import NANO_USD_MAX, worst_case
from policies.verdict import Allow, Deny, Reason

PRICE = Price("m@0", "m", 0, 200_000_000, 50_000_000, 200_000_000, 600_000_000)
ZONES = (
    "UTC",
    "Europe/Berlin",
    "Asia/Kathmandu",
    "America/Havana",
    "America/Santiago",
    "Africa/Cairo",
    "Pacific/Apia",
    "Australia/Lord_Howe",
)


def at(text: str, zone: str = "UTC") -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp())


def account(
    limit: int, spent: int = 0, held: int = 0, *, hard: bool = True, scope: str = "user"
) -> Account:
    return Account(scope, limit, spent, held, hard)


def test_without_budgets_all_that_is_wanted_is_reserved() -> None:
    assert fit([], PRICE, 100, 50, 50, 2) == Allow(Fit(50, 20_000 + 60_000))


def test_a_named_length_is_reserved_in_full_or_not_at_all() -> None:
    need = worst_case(PRICE, 100, 50)
    assert fit([account(need)], PRICE, 100, 50, 50, 1) == Allow(Fit(50, need))
    assert fit([account(need - 1)], PRICE, 100, 50, 50, 1) == Deny(
        Reason.BUDGET_SPENT, scope="user", limit_name="budget"
    )
    assert isinstance(fit([account(need, 1)], PRICE, 100, 50, 50, 1), Deny)
    assert isinstance(fit([account(need, 0, 1)], PRICE, 100, 50, 50, 1), Deny)


def test_without_one_the_smallest_budget_cuts_and_is_named() -> None:
    accounts = [
        account(worst_case(PRICE, 100, 40)),
        account(worst_case(PRICE, 100, 20), scope="tenant"),
        account(worst_case(PRICE, 100, 30), scope="later"),
    ]
    verdict = fit(accounts, PRICE, 100, 50, LEAST_OUTPUT_TOKENS, 1)
    assert verdict == Allow(Fit(20, worst_case(PRICE, 100, 20), "tenant"))


def test_below_sixteen_tokens_nothing_is_begun() -> None:
    least = LEAST_OUTPUT_TOKENS
    exactly = account(worst_case(PRICE, 100, 16, 2))
    short = account(worst_case(PRICE, 100, 16, 2) - 1)
    assert fit([exactly], PRICE, 100, 50, least, 2) == Allow(
        Fit(16, worst_case(PRICE, 100, 16, 2), "user")
    )
    assert isinstance(fit([short], PRICE, 100, 50, least, 2), Deny)
    assert fit([account(worst_case(PRICE, 100, 5))], PRICE, 100, 5, least, 1) == Allow(
        Fit(5, worst_case(PRICE, 100, 5))
    )


def test_a_prompt_that_is_not_covered_is_refused() -> None:
    assert isinstance(fit([account(19_999)], PRICE, 100, 50, 0, 1), Deny)


def test_a_lowered_limit_leaves_no_room_and_no_negative() -> None:
    assert account(10, spent=50).room_nano_usd == 0
    free = Price("free", "m", 0, 0, 0, 0, 0)
    assert fit([account(10, spent=50)], free, 100, 50, 50, 1) == Allow(Fit(50, 0))


def test_soft_budgets_let_through_and_are_named() -> None:
    accounts = [account(1, hard=False, scope="project"), account(10**12, hard=False)]
    assert fit(accounts, PRICE, 100, 50, 50, 1) == Allow(Fit(50, 50_000, None, ("project",)))


def test_amounts_beyond_the_column_are_refused() -> None:
    dear = Price("dear", "m", 0, 0, 0, 0, NANO_USD_MAX - 1)
    assert isinstance(fit([], dear, 1, 10**6 + 1, 1, 1), Deny)
    assert fit([], dear, 1, 10**6, 1, 1).__class__ is Allow


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(0, 10**6), max_size=4),
    st.integers(0, 200),
    st.integers(1, 1000),
    st.booleans(),
    st.integers(1, 4),
)
def test_whatever_is_allowed_fits_everywhere(
    limits: list[int], prompt: int, wanted: int, explicit: bool, n: int
) -> None:
    accounts = [account(limit) for limit in limits]
    verdict = fit(accounts, PRICE, prompt, wanted, wanted if explicit else 16, n)
    if isinstance(verdict, Allow):
        got = verdict.value
        assert got.amount_nano_usd == worst_case(PRICE, prompt, got.output_tokens, n)
        assert all(got.amount_nano_usd <= limit for limit in limits)
        assert got.output_tokens == wanted or not explicit
        assert got.output_tokens >= min(16, wanted)
    else:
        least = wanted if explicit else min(16, wanted)
        assert min(limits) < worst_case(PRICE, prompt, least, n)


@pytest.mark.parametrize(
    ("window", "zone", "now", "begin", "end"),
    (
        ("calendar_month", "UTC", "2026-02-28T23:59:59", "2026-02-01", "2026-03-01"),
        ("calendar_month", "UTC", "2026-12-31T12:00:00", "2026-12-01", "2027-01-01"),
        ("calendar_month", "Asia/Kathmandu", "2026-01-01T00:10:00", "2026-01-01", "2026-02-01"),
        ("calendar_week", "UTC", "2026-11-29T12:00:00", "2026-11-23", "2026-11-30"),
        ("calendar_week", "UTC", "2026-11-30T00:00:00", "2026-11-30", "2026-12-07"),
        ("calendar_day", "Europe/Berlin", "2026-03-29T12:00:00", "2026-03-29", "2026-03-30"),
        ("calendar_day", "Europe/Berlin", "2026-10-25T02:30:00", "2026-10-25", "2026-10-26"),
    ),
)
def test_calendar_windows(window: str, zone: str, now: str, begin: str, end: str) -> None:
    span = window_at(Budget(1, window, zone), at(now, zone), ZoneInfo(zone))
    assert (span.start_s, span.end_s) == (at(begin, zone), at(end, zone))
    assert span.since_s == span.start_s
    assert span.id == f"{window}/{zone}/{begin}"


@pytest.mark.parametrize("spent", (NANO_USD_MAX - 1, 2 * NANO_USD_MAX))
def test_no_running_total_passes_what_can_be_counted(spent: int) -> None:
    """Not even of a soft budget: beyond it a sum is no integer of the database any more."""
    price = Price("p", "m", 0, 10**9, 0, 0, 10**9)
    verdict = fit([Account("tenant", 1, spent, 0, hard=False)], price, 5, 10, 10, 1)
    assert isinstance(verdict, Deny)
    assert verdict.scope == "tenant"


def test_a_day_is_as_long_as_it_is() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    budget = Budget(1, "calendar_day", "Europe/Berlin")
    hours = []
    for day in ("2026-03-28", "2026-03-29", "2026-10-25"):
        span = window_at(budget, at(f"{day}T12:00:00", "Europe/Berlin"), berlin)
        assert span.end_s is not None
        hours.append((span.end_s - span.start_s) // HOUR_S)
    assert hours == [24, 23, 25]


def test_the_rolling_window_counts_at_least_24_hours() -> None:
    now_s = at("2026-11-29T12:59:59")
    span = window_at(Budget(1, "rolling_24h"), now_s, UTC)
    assert (span.start_s, span.end_s) == (at("2026-11-29T12:00:00"), at("2026-11-29T13:00:00"))
    assert span.since_s == at("2026-11-28T12:00:00") <= now_s - 24 * HOUR_S
    assert span.id == f"rolling_24h/{span.start_s // HOUR_S}"


def test_total_never_ends_and_an_unknown_window_is_refused() -> None:
    assert window_at(Budget(1, "total"), 10**9, UTC).end_s is None
    with pytest.raises(ValueError, match="fortnight"):
        window_at(Budget(1, "fortnight"), 0, UTC)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.sampled_from(ZONES),
    st.sampled_from(("calendar_month", "calendar_week", "calendar_day", "rolling_24h")),
    st.integers(at("2009-01-01"), at("2030-01-01")),
)
def test_windows_tile_all_of_time(zone: str, window: str, now_s: int) -> None:
    budget, tz = Budget(1, window, zone), ZoneInfo(zone)
    span = window_at(budget, now_s, tz)
    assert span.end_s is not None
    assert span.start_s <= now_s < span.end_s
    assert window_at(budget, span.start_s, tz) == span
    assert window_at(budget, span.end_s - 1, tz) == span
    assert window_at(budget, span.end_s, tz).start_s == span.end_s
