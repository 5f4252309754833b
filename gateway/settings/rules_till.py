"""Where a budget may have a till, and what that needs.  Pure.  Source: MONEY.md §1."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.settings.faults import Fault
from gateway.settings.shape import Budget, BudgetMode, File, Window
from policies.till import NANO_USD_BELOW

_WITHOUT = "Leave till out: the budget is then decided by the database alone, as exactly."


def till(budget: Budget, path: str) -> Iterator[Fault]:
    """Of one budget."""
    if not budget.till:
        return
    at = f"{path}.till"
    if budget.kind is not BudgetMode.HARD:
        wrong = f'is true, and the budget is "{budget.kind.value}"'
        yield Fault(at, wrong, 'a budget that refuses: mode = "hard"', _WITHOUT)
    if budget.window is Window.ROLLING_24H:
        wrong = "is true, and what a rolling window has left changes by itself"
        yield Fault(at, wrong, "a calendar window, or total", _WITHOUT)
    if budget.usd.nano >= NANO_USD_BELOW:
        most = NANO_USD_BELOW // 10**9
        yield Fault(
            at,
            "is true, and Redis cannot count so much",
            f"less than {most:,} US dollars",
            _WITHOUT,
        )


def shared(file: File) -> Iterator[Fault]:
    """What they are kept in, and what believes them."""
    paths = [f"plans.{name}.budget" for name, plan in file.plans.items() if _has(plan.budget)]
    paths += [
        f"tenants.{name}.projects.{project}.budget"
        for name, tenant in file.tenants.items()
        for project, of in tenant.projects.items()
        if _has(of.budget)
    ]
    paths += [
        f"tenants.{name}.tags.{tag}.budget"
        for name, tenant in file.tenants.items()
        for tag, of in tenant.tags.items()
        if _has(of.budget)
    ]
    for path in paths:
        if not file.state.redis_url:
            wrong, expected = "is true, and there is no redis_url to keep it in", "a redis_url"
        elif file.state.database_url.startswith("sqlite:"):
            wrong = "is true, and a database in a file serves one gateway, which needs none"
            expected = "a database_url of PostgreSQL"
        else:
            return
        yield Fault(f"{path}.till", wrong, expected, _WITHOUT)


def _has(budget: Budget | None) -> bool:
    return budget is not None and budget.till
