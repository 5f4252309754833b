"""Budget windows: what is spent and held in each, opened when first needed, rebuildable at any time.

Refuses to know: what a reservation costs (ledger).  Source: MONEY.md §1, invariants 1, 6 and 15.

A row counts exactly the reservations that were made within its window under its account.  It is a
running total and nothing else: a budget that is set in the middle of a month begins with what the
month has cost already, a budget whose window is changed likewise, and nothing is inherited from
another window.  A row that is not in use counts nothing, so none outlives its use: opening another
window drops it, and so does a restart, which may have taken the budget away.
`reservation_window` remembers where each reservation is counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    bindparam,
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
from policies.facts import Budget
from policies.price import NANO_USD_MAX
from tenants import schema
from tenants.scopes import BudgetAccount

_W, _R, _RW = schema.budget_window, schema.reservation, schema.reservation_window
_K = schema.api_key
_ACCOUNT = {
    "user": _R.c.user_account,
    "project": _R.c.project_account,
    "tenant": _R.c.tenant,
}

ROLLING_KEPT_S = 7 * 86_400
"""Hour slots are dropped after a week: no guard counts them, and the reservations remain."""


_NO_GUARD = 2**63 - 1

# Built once: putting a statement together costs more than running it.
_ROWS = select(_W.c.window_id, _W.c.spent, _W.c.held).where(
    _W.c.scope == bindparam("scope"),
    _W.c.account == bindparam("account"),
    _W.c.window_id.in_(bindparam("ids", expanding=True)),
)
_ENTER = (
    update(_W)
    .where(
        _W.c.scope == bindparam("of_scope"),
        _W.c.account == bindparam("of_account"),
        _W.c.window_id == bindparam("of_window_id"),
        _W.c.spent + _W.c.held + bindparam("of_amount") <= bindparam("guard"),
    )
    .values(
        held=_W.c.held + bindparam("of_amount"),
        limit_nano_usd=bindparam("of_limit"),
        hard=bindparam("of_hard"),
    )
)
_COUNT_HERE = insert(_RW)
_MOVE = (
    update(_W)
    .where(
        exists().where(
            _RW.c.request_id == bindparam("of_request"),
            _RW.c.scope == _W.c.scope,
            _RW.c.account == _W.c.account,
            _RW.c.window_id == _W.c.window_id,
        )
    )
    .values(held=_W.c.held + bindparam("more_held"), spent=_W.c.spent + bindparam("more_spent"))
)


@dataclass(frozen=True, slots=True)
class Opened:
    """An account's state, and the row in which a reservation made now is counted."""

    account: Account
    budget: BudgetAccount
    span: Span


def zone_of(budget: Budget) -> ZoneInfo:
    """KeyError or ValueError where there is no such zone."""
    return ZoneInfo(budget.zone)


def span_at(budget: BudgetAccount, now_s: int) -> Span:
    return window_at(budget.budget, now_s, zone_of(budget.budget))


def open_window(conn: Connection, budget: BudgetAccount, now_s: int) -> Opened:
    """The state of `budget` now; makes the rows that it lacks."""
    return _state(conn, budget, now_s, make=True)


def peek(conn: Connection, budget: BudgetAccount, now_s: int) -> Opened:
    """The same without making anything."""
    return _state(conn, budget, now_s, make=False)


def enter(conn: Connection, request_id: str, opened: Sequence[Opened], amount: int) -> None:
    """Hold `amount` in every window, or raise: the guard stands in SQL beside the policy's."""
    for each in opened:
        budget, span = each.budget, each.span
        here = {"scope": budget.scope, "account": budget.id, "window_id": span.id}
        limit = _limit(budget)
        one_row = budget.budget.hard and span.since_s == span.start_s
        values = {
            "of_limit": limit,
            "of_hard": budget.budget.hard,
            "of_amount": amount,
            "guard": limit if one_row else _NO_GUARD,
        }
        held = conn.execute(_ENTER, {f"of_{name}": part for name, part in here.items()} | values)
        assert held.rowcount == 1, "the budget guard and the policy disagree"
        conn.execute(_COUNT_HERE, {"request_id": request_id, **here})


def move(conn: Connection, request_id: str, *, held: int, spent: int) -> None:
    """Add to every row in which the reservation is counted, whatever the time is now."""
    conn.execute(_MOVE, {"of_request": request_id, "more_held": held, "more_spent": spent})


def forget(conn: Connection) -> None:
    """Every total is taken anew from the reservations when it is next needed."""
    conn.execute(delete(_W))


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


def _slots(span: Span) -> list[Span]:
    """The rows that together are the window: one, or an hour each."""
    if span.since_s == span.start_s:
        return [span]
    kind = span.id.partition("/")[0]
    return [
        Span(f"{kind}/{start // HOUR_S}", start, start + HOUR_S, start)
        for start in range(span.since_s, span.start_s + 1, HOUR_S)
    ]


def _state(conn: Connection, budget: BudgetAccount, now_s: int, *, make: bool) -> Opened:
    """Sum the rows of the window; those that are not there are counted from the reservations."""
    span = span_at(budget, now_s)
    slots = _slots(span)
    asked = {"scope": budget.scope, "account": budget.id, "ids": [slot.id for slot in slots]}
    rows = {row[0]: (row[1], row[2]) for row in conn.execute(_ROWS, asked)}
    lacking = [slot for slot in slots if slot.id not in rows]
    if lacking:
        counted = _counted(conn, budget, lacking)
        rows.update(counted)
        if make:
            _leave_others(conn, asked, now_s)
            _make(conn, budget, lacking, counted)
    spent, held = (sum(column) for column in zip(*rows.values(), strict=True))
    return Opened(_account(budget, spent, held), budget, span)


def _leave_others(conn: Connection, asked: Mapping[str, Any], now_s: int) -> None:
    """What this account counted by until now: returning to it counts what happens meanwhile too."""
    conn.execute(
        delete(_W).where(
            _W.c.scope == asked["scope"],
            _W.c.account == asked["account"],
            _W.c.start_s <= now_s,
            or_(_W.c.end_s.is_(None), _W.c.end_s > now_s),
            _W.c.window_id.not_in(asked["ids"]),
        )
    )


def _lineage(key_id: str) -> Select[tuple[str]]:
    """A key and those that it replaced: a rotated key goes on with what was spent."""
    one = select(literal(key_id).label("id")).cte(recursive=True)
    before = select(_K.c.id).join(one, _K.c.replaced_by == one.c.id)
    return select(one.union(before).c.id)


def _mine(budget: BudgetAccount, span: Span) -> ColumnElement[bool]:
    """The reservations that belong under this account and in this window."""
    by: ColumnElement[bool]
    if budget.scope == "key":
        by = _R.c.key_id.in_(_lineage(budget.id))
    else:
        by = _ACCOUNT[budget.scope] == budget.id
    mine = and_(by, _R.c.at_ms >= span.start_s * 1000)
    return mine if span.end_s is None else and_(mine, _R.c.at_ms < span.end_s * 1000)


def _counted(
    conn: Connection, budget: BudgetAccount, slots: Sequence[Span]
) -> dict[str, tuple[int, int]]:
    """Spent and held of each slot, by its id, in one query however many they are."""
    hour = _R.c.at_ms // (HOUR_S * 1000) if len(slots) > 1 else literal(0)
    held = case((_R.c.state == "HELD", _R.c.amount), else_=0)
    whole = Span("", slots[0].start_s, slots[-1].end_s, slots[0].start_s)
    found = {
        row[0]: (int(row[1]), int(row[2]))
        for row in conn.execute(
            select(hour, func.sum(_R.c.charge), func.sum(held))
            .where(_mine(budget, whole))
            .group_by(hour)
        )
    }
    return {
        slot.id: found.get(slot.start_s // HOUR_S if len(slots) > 1 else 0, (0, 0))
        for slot in slots
    }


def _make(
    conn: Connection,
    budget: BudgetAccount,
    slots: Sequence[Span],
    counted: Mapping[str, tuple[int, int]],
) -> None:
    """Begin rows with what has happened in them, and remember what is still open there."""
    conn.execute(
        insert(_W),
        [
            {
                "scope": budget.scope,
                "account": budget.id,
                "window_id": slot.id,
                "start_s": slot.start_s,
                "end_s": slot.end_s,
                "limit_nano_usd": _limit(budget),
                "hard": budget.budget.hard,
                "spent": counted[slot.id][0],
                "held": counted[slot.id][1],
            }
            for slot in slots
        ],
    )
    unsettled = or_(_R.c.state == "HELD", _R.c.state == "EXPIRED")
    for slot in slots:
        if counted[slot.id] == (0, 0):
            continue
        known = exists().where(  # of an earlier row of the same window
            _RW.c.request_id == _R.c.request_id,
            _RW.c.scope == budget.scope,
            _RW.c.account == budget.id,
            _RW.c.window_id == slot.id,
        )
        conn.execute(
            insert(_RW).from_select(
                ["request_id", "scope", "account", "window_id"],
                select(
                    _R.c.request_id, literal(budget.scope), literal(budget.id), literal(slot.id)
                ).where(_mine(budget, slot), unsettled, ~known),
            )
        )
