"""How much of a request the budgets above it allow to be reserved, and which window counts it.

Refuses to know: where balances are kept, what time it is, where time zones are read from (a `tzinfo`
is an argument).  Source: MONEY.md §1; DESIGN.md, settled question 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from enum import StrEnum

from policies.facts import Budget, Price
from policies.price import NANO_USD_MAX, affordable_output, worst_case
from policies.verdict import Allow, Deny, Reason

LEAST_OUTPUT_TOKENS = 16
"""Below this an answer of unnamed length is not worth beginning (settled question 8)."""

HOUR_S = 3600
ROLLING_SLOTS = 25
"""The running hour and the 24 before it: whatever the minute, all of the last 24 hours is counted,
so that no 24 hours whatsoever exceed the limit.  The price: up to an hour is counted longer."""


class WindowKind(StrEnum):
    """The closed set of `Budget.window`."""

    CALENDAR_MONTH = "calendar_month"
    CALENDAR_WEEK = "calendar_week"  # from Monday, ISO 8601
    CALENDAR_DAY = "calendar_day"
    ROLLING_24H = "rolling_24h"
    TOTAL = "total"


@dataclass(frozen=True, slots=True)
class Span:
    """Where a reservation is counted: `start_s` ≤ its time < `end_s` (None: for ever).
    `since_s` is where the guard's sum begins; for all but the rolling window it equals `start_s`."""

    id: str
    start_s: int
    end_s: int | None
    since_s: int


def window_at(budget: Budget, at_s: int, zone: tzinfo) -> Span:
    """The window that contains `at_s`.  A calendar day is as long as it is where it is counted: 23,
    24 or 25 hours.  ValueError where `budget.window` is none of `WindowKind`."""
    kind = WindowKind(budget.window)
    if kind is WindowKind.TOTAL:
        return Span("total", 0, None, 0)
    if kind is WindowKind.ROLLING_24H:
        slot = at_s // HOUR_S
        since = (slot - ROLLING_SLOTS + 1) * HOUR_S
        return Span(f"{kind}/{slot}", slot * HOUR_S, (slot + 1) * HOUR_S, since)
    today = datetime.fromtimestamp(at_s, UTC).astimezone(zone).date()
    first, following = _bounds(kind, today)
    start_s = _midnight_s(first, zone)
    return Span(f"{kind}/{budget.zone}/{first}", start_s, _midnight_s(following, zone), start_s)


def _bounds(kind: WindowKind, today: date) -> tuple[date, date]:
    if kind is WindowKind.CALENDAR_DAY:
        return today, today + timedelta(days=1)
    if kind is WindowKind.CALENDAR_WEEK:
        monday = today - timedelta(days=today.weekday())
        return monday, monday + timedelta(days=7)
    first = today.replace(day=1)
    return first, (first + timedelta(days=31)).replace(day=1)


def _midnight_s(day: date, zone: tzinfo) -> int:
    """The first instant of `day`.  Where clocks skip midnight, fold 0 reads it by the old offset,
    which is the instant of the jump; where it occurs twice, fold 0 is the first."""
    return int(datetime(day.year, day.month, day.day, tzinfo=zone).timestamp())


@dataclass(frozen=True, slots=True)
class Account:
    """One budget's state within its window.  `id` tells those of one scope apart."""

    scope: str
    limit_nano_usd: int
    spent_nano_usd: int
    held_nano_usd: int
    hard: bool = True
    shadow: bool = False
    id: str | None = None
    floated_nano_usd: int = 0  # set aside for its till, and so not for anybody else

    @property
    def room_nano_usd(self) -> int:
        """A limit lowered below what is spent leaves no room, never a negative one."""
        taken = self.spent_nano_usd + self.held_nano_usd + self.floated_nano_usd
        return max(0, self.limit_nano_usd - taken)


@dataclass(frozen=True, slots=True)
class Fit:
    """What to reserve.  `output_tokens` a choice; `limited_by` the scope whose budget cut it;
    `over` the soft budgets that this goes beyond; `shadowed` those that would have refused it."""

    output_tokens: int
    amount_nano_usd: int
    limited_by: str | None = None
    over: tuple[str, ...] = ()
    shadowed: tuple[str, ...] = ()


def fit(
    accounts: Sequence[Account], price: Price, prompt_tokens: int, wanted: int, least: int, n: int
) -> Allow[Fit] | Deny:
    """The largest output up to `wanted` that every hard budget covers, if that is `least` or more.

    `least` equals `wanted` where the client named the length: in full or not at all."""
    assert wanted >= 1
    output, limited_by = wanted, None
    for account in accounts:
        if not account.hard:
            continue
        most = affordable_output(price, prompt_tokens, output, n, account.room_nano_usd)
        if most is None or most < min(least, wanted):
            return _spent(account)
        if most < output:
            output, limited_by = most, account.scope
    amount = worst_case(price, prompt_tokens, output, n)
    if amount >= NANO_USD_MAX:
        return Deny(Reason.BUDGET_SPENT, limit_name="budget")
    for account in accounts:  # soft ones too: their totals must stay countable
        if account.spent_nano_usd + account.held_nano_usd + amount >= NANO_USD_MAX:
            return _spent(account)
    over = tuple(
        a.scope for a in accounts if not a.hard and not a.shadow and a.room_nano_usd < amount
    )
    enough = min(least, wanted)
    shadowed = tuple(
        a.scope
        for a in accounts
        if a.shadow
        and (affordable_output(price, prompt_tokens, wanted, n, a.room_nano_usd) or -1) < enough
    )
    return Allow(Fit(output, amount, limited_by, over, shadowed))


def _spent(account: Account) -> Deny:
    return Deny(Reason.BUDGET_SPENT, scope=account.scope, limit_name="budget", account=account.id)
