"""What one budget has left, in words of its own.  Refuses to know: how it is counted (windows)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from policies.facts import Budget
from tenants.windows import Opened


@dataclass(frozen=True, slots=True)
class Balance:
    """One budget now.  The limit is with what it was topped up by in this window.  `resets_at_s`: when its
    window ends; None for `total`; for a rolling window the next full hour, when its oldest hour falls out.
    `till`: it has one; what is floated is set aside there, and remains."""

    scope: str
    id: str
    window: str
    hard: bool
    mode: str
    till: bool
    limit_nano_usd: int
    topped_up_nano_usd: int
    spent_nano_usd: int
    held_nano_usd: int
    floated_nano_usd: int
    remaining_nano_usd: int
    resets_at_s: int | None


def mode_of(budget: Budget) -> str:
    return "hard" if budget.hard else "shadow" if budget.shadow else "soft"


def balance_of(opened: Opened, *, tills: bool) -> Balance:
    account, budget = opened.account, opened.budget
    return Balance(
        scope=budget.scope,
        id=budget.id,
        window=budget.budget.window,
        hard=account.hard,
        mode=mode_of(budget.budget),
        till=tills and budget.budget.till,
        limit_nano_usd=account.limit_nano_usd,
        topped_up_nano_usd=opened.topped_up_nano_usd,
        spent_nano_usd=account.spent_nano_usd,
        held_nano_usd=account.held_nano_usd,
        floated_nano_usd=account.floated_nano_usd,
        remaining_nano_usd=replace(account, floated_nano_usd=0).room_nano_usd,
        resets_at_s=opened.span.end_s,
    )
