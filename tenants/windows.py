"""Budget windows: what is spent and held in each, opened when first needed, rebuildable at any time.

Refuses to know: what a reservation costs (ledger).  Source: MONEY.md §1, invariants 1, 6 and 15.

A row counts exactly the reservations that were made within its window under its account.  It is a
running total and nothing else: a budget that is set in the middle of a month begins with what the
month has cost already, a budget whose window is changed likewise, and nothing is inherited from
another window.  `reservation_window` remembers where each reservation is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    case,
    delete,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)

from policies.budget import HOUR_S, Account, Span, window_at
from policies.price import NANO_USD_MAX
from tenants import schema
from tenants.scopes import BudgetAccount

_W, _R, _RW = schema.budget_window, schema.reservation, schema.reservation_window

ROLLING_KEPT_S = 7 * 86_400
"""Hour slots are dropped after a week: no guard counts them, and the reservations remain."""


@dataclass(frozen=True, slots=True)
class Opened:
    """An account's state, and the row in which a reservation made now is counted."""

    account: Account
    budget: BudgetAccount
    span: Span


def span_at(budget: BudgetAccount, now_s: int) -> Span:
    return window_at(budget.budget, now_s, ZoneInfo(budget.budget.zone))


def open_window(conn: Connection, budget: BudgetAccount, now_s: int) -> Opened:
    """The state of `budget` now; makes the rows that it lacks."""
    span = span_at(budget, now_s)
    for slot in _lacking(conn, budget, span):
        _fill(conn, budget, slot)
    spent, held = _rows_sum(conn, budget, span)
    return Opened(_account(budget, spent, held), budget, span)


def peek(conn: Connection, budget: BudgetAccount, now_s: int) -> Opened:
    """The same without making anything."""
    span = span_at(budget, now_s)
    spent, held = _rows_sum(conn, budget, span)
    for slot in _lacking(conn, budget, span):
        more_spent, more_held = _counted(conn, budget, slot)
        spent, held = spent + more_spent, held + more_held
    return Opened(_account(budget, spent, held), budget, span)


def enter(conn: Connection, request_id: str, opened: Sequence[Opened], amount: int) -> None:
    """Hold `amount` in every window, or raise: the guard stands in SQL beside the policy's."""
    for each in opened:
        budget, span = each.budget, each.span
        limit = _limit(budget)
        conditions = [_is_row(budget, span)]
        if budget.budget.hard and span.since_s == span.start_s:
            conditions.append(_W.c.spent + _W.c.held + amount <= limit)
        held = conn.execute(
            update(_W)
            .where(*conditions)
            .values(held=_W.c.held + amount, limit_nano_usd=limit, hard=budget.budget.hard)
        )
        assert held.rowcount == 1, "the budget guard and the policy disagree"
        conn.execute(
            insert(_RW).values(
                request_id=request_id, scope=budget.scope, account=budget.id, window_id=span.id
            )
        )


def move(conn: Connection, request_id: str, *, held: int, spent: int) -> None:
    """Add to every row in which the reservation is counted, whatever the time is now."""
    here = exists().where(
        _RW.c.request_id == request_id,
        _RW.c.scope == _W.c.scope,
        _RW.c.account == _W.c.account,
        _RW.c.window_id == _W.c.window_id,
    )
    conn.execute(update(_W).where(here).values(held=_W.c.held + held, spent=_W.c.spent + spent))


def drop_old(conn: Connection, now_s: int) -> None:
    conn.execute(
        delete(_W).where(
            _W.c.window_id.startswith("rolling_24h/"),
            _W.c.start_s < now_s - ROLLING_KEPT_S,
            _W.c.held == 0,
        )
    )


def _account(budget: BudgetAccount, spent: int, held: int) -> Account:
    return Account(budget.scope, _limit(budget), spent, held, budget.budget.hard)


def _limit(budget: BudgetAccount) -> int:
    return min(budget.budget.limit_nano_usd, NANO_USD_MAX)


def _is_row(budget: BudgetAccount, span: Span) -> ColumnElement[bool]:
    return and_(_W.c.scope == budget.scope, _W.c.account == budget.id, _W.c.window_id == span.id)


def _slots(span: Span) -> list[Span]:
    """The rows that together are the window: one, or an hour each."""
    if span.since_s == span.start_s:
        return [span]
    kind = span.id.partition("/")[0]
    return [
        Span(f"{kind}/{start // HOUR_S}", start, start + HOUR_S, start)
        for start in range(span.since_s, span.start_s + 1, HOUR_S)
    ]


def _lacking(conn: Connection, budget: BudgetAccount, span: Span) -> list[Span]:
    slots = _slots(span)
    known = set(
        conn.execute(
            select(_W.c.window_id).where(
                _W.c.scope == budget.scope,
                _W.c.account == budget.id,
                _W.c.window_id.in_([slot.id for slot in slots]),
            )
        ).scalars()
    )
    return [slot for slot in slots if slot.id not in known]


def _rows_sum(conn: Connection, budget: BudgetAccount, span: Span) -> tuple[int, int]:
    row = conn.execute(
        select(func.coalesce(func.sum(_W.c.spent), 0), func.coalesce(func.sum(_W.c.held), 0))
        .where(_W.c.scope == budget.scope, _W.c.account == budget.id)
        .where(_W.c.window_id.in_([slot.id for slot in _slots(span)]))
    ).one()
    return int(row[0]), int(row[1])


def _mine(budget: BudgetAccount, span: Span) -> ColumnElement[bool]:
    """The reservations that belong under this account and in this window."""
    column = {
        "key": _R.c.key_id,
        "user": _R.c.user_account,
        "project": _R.c.project_account,
        "tenant": _R.c.tenant,
    }[budget.scope]
    mine = and_(column == budget.id, _R.c.at_ms >= span.start_s * 1000)
    return mine if span.end_s is None else and_(mine, _R.c.at_ms < span.end_s * 1000)


def _counted(conn: Connection, budget: BudgetAccount, span: Span) -> tuple[int, int]:
    held = case((_R.c.state == "HELD", _R.c.amount), else_=0)
    row = conn.execute(
        select(func.coalesce(func.sum(_R.c.charge), 0), func.coalesce(func.sum(held), 0)).where(
            _mine(budget, span)
        )
    ).one()
    return int(row[0]), int(row[1])


def _fill(conn: Connection, budget: BudgetAccount, span: Span) -> None:
    """Begin a row with what has happened in its window, and count what is still open there."""
    spent, held = _counted(conn, budget, span)
    conn.execute(
        insert(_W).values(
            scope=budget.scope,
            account=budget.id,
            window_id=span.id,
            start_s=span.start_s,
            end_s=span.end_s,
            limit_nano_usd=_limit(budget),
            hard=budget.budget.hard,
            spent=spent,
            held=held,
        )
    )
    unsettled = or_(_R.c.state == "HELD", _R.c.state == "EXPIRED")
    conn.execute(
        insert(_RW).from_select(
            ["request_id", "scope", "account", "window_id"],
            select(
                _R.c.request_id, literal(budget.scope), literal(budget.id), literal(span.id)
            ).where(_mine(budget, span), unsettled),
        )
    )
