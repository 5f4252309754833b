"""Budget windows: what is spent and held in each, opened when first needed, rebuildable at any time.

Refuses to know: what a reservation costs (ledger).  Source: MONEY.md §1, invariants 1, 6 and 15.

A row counts exactly the reservations and top-ups that were made within its window under its account,
whoever asked for the budget and whether anybody still does (`counting`).  So where a reservation is counted follows from itself; a
budget that is set in the middle of a month begins with what the month has cost already, nothing is
inherited from another window, and a row can be dropped at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from sqlalchemy import (
    BigInteger,
    Boolean,
    Connection,
    Integer,
    Text,
    bindparam,
    delete,
    or_,
    select,
)

from policies.budget import HOUR_S, ROLLING_SLOTS, Account, Span, WindowKind, window_at
from policies.facts import Budget
from policies.price import NANO_USD_MAX
from policies.till import Float, recalled
from tenants import outbox, schema
from tenants.counting import Sums, counted, slots
from tenants.outbox import PARTS, Reached
from tenants.places import Place
from tenants.scopes import BudgetAccount
from tenants.sql import Find, insert_new, update_many, within
from tenants.window_row import NO_FLOAT, Row, float_of, sums_of

_W = schema.budget_window

ROLLING = WindowKind.ROLLING_24H.value
DAY_S = 86_400
KEPT_S = 7 * 86_400
"""Rows are dropped a week after their window: no guard counts them, and the reservations remain."""


# Built once: putting a statement together costs more than running it.
_ROWS = (
    select(_W)
    .where(
        within(_W.c.scope, "scopes"),
        within(_W.c.account, "accounts"),
        or_(_W.c.end_s.is_(None), _W.c.end_s > bindparam("since_s")),
    )
    .order_by(_W.c.scope, _W.c.account, _W.c.window_id)
)
_ROWS_LOCKED = Find(_ROWS.with_for_update())
_MOVE = update_many(
    _W,
    {
        "of_scope": Text(),
        "of_account": Text(),
        "of_window_id": Text(),
        "more_held": BigInteger(),
        "more_spent": BigInteger(),
        "more_topped_up": BigInteger(),
        "to_limit": BigInteger(),
        "to_hard": Boolean(),
        "to_notify": Text(),
        "to_noticed": Integer(),
        "to_floated": BigInteger(),
        "to_epoch": BigInteger(),
        "to_issued": BigInteger(),
        "guarded": Boolean(),
    },
    sets="held = held + {more_held}, spent = spent + {more_spent}, "
    "topped_up = topped_up + {more_topped_up}, limit_nano_usd = {to_limit}, hard = {to_hard}, "
    "notify = {to_notify}, noticed = {to_noticed}, "
    "floated = {to_floated}, epoch = {to_epoch}, issued = {to_issued}",
    where="scope = {of_scope} AND account = {of_account} AND window_id = {of_window_id} "
    "AND (NOT {guarded} OR spent + held + {more_spent} + {more_held} + {to_floated} "
    "<= {to_limit} + topped_up + {more_topped_up})",
)


class Windows:
    """The rows that a turn may change, locked and in memory."""

    def __init__(self, now_s: int) -> None:
        self._now_s = now_s
        self._rows: dict[Place, dict[str, Row]] = {}
        self._slots: dict[tuple[str, str], list[Span]] = {}  # by window and zone, now

    def load(
        self,
        conn: Connection,
        places: Iterable[Place],
        budgets: Iterable[BudgetAccount],
        *,
        since_s: int,
    ) -> None:
        """All rows of `places` that end after `since_s`, and every row that `budgets` count by now,
        made where it lacks.  Locked in one order, whoever asks (MONEY.md §1)."""
        asked = sorted(set(places))
        since_s = min(since_s, self._now_s - ROLLING_SLOTS * HOUR_S)
        self._read(conn, asked, since_s)
        lacking = [
            (budget, missing)
            for budget in {(each.scope, each.id, each.budget): each for each in budgets}.values()
            if (missing := self._lacking(budget))
        ]
        if lacking:
            _make(conn, lacking)
            self._read(conn, asked, since_s)

    def account(self, budget: BudgetAccount) -> Account:
        rows = self._rows[Place(budget.scope, budget.id)]
        counted_by = self._counted_by(budget)
        sums = (rows[slot.id].sums for slot in counted_by)
        return _account(budget, sums, rows[counted_by[-1].id].floated)

    def float_of(self, budget: BudgetAccount) -> Float:
        return self._newest(budget).floated

    def set_aside(self, budget: BudgetAccount, floated: Float) -> None:
        """For its till.  Never in a row of several that together are a window."""
        self._newest(budget).floated = floated

    def admit(self, budget: BudgetAccount) -> None:
        """Under this budget something was let through: its limit is what the row is guarded by."""
        counted_by = self._counted_by(budget)
        rows = self._rows[Place(budget.scope, budget.id)]
        row = rows[counted_by[-1].id]
        for other in rows.values():  # of a budget that was, with another window
            if other.notify and other is not row and other.holds(self._now_s):
                other.notify = ""
        row.notify = _notify(budget)
        row.limit, row.hard = _limit(budget), budget.budget.hard
        row.guarded = len(counted_by) == 1 and row.hard

    def refuse(self, budget: BudgetAccount) -> None:
        """Under this budget something did not fit."""
        row = self._newest(budget)
        row.refused, row.notify, row.limit = True, _notify(budget), _limit(budget)

    def move(
        self,
        places: Iterable[Place],
        at_s: int,
        *,
        held: int = 0,
        spent: int = 0,
        topped_up: int = 0,
    ) -> None:
        """Add to every row in which what was made at `at_s` is counted, whatever the time is now."""
        for place in places:
            for row in self._rows.get(place, {}).values():
                if row.holds(at_s):
                    row.sums = row.sums.more(spent, held, topped_up)

    def write(self, conn: Connection) -> None:
        """What has changed.  The guard stands here beside the policy's: one decides, the other refuses
        to be wrong."""
        outbox.post(conn, [*self._reached()], self._now_s * 1000)
        for rows in self._rows.values():
            for row in rows.values():
                if row.floated.nano_usd and row.over:
                    row.floated = recalled(row.floated, self._now_s * 1_000_000)
        changed = [row for rows in self._rows.values() for row in rows.values() if row.changed]
        if not changed:
            return
        moves = [
            {
                "of_scope": row.place.scope,
                "of_account": row.place.account,
                "of_window_id": row.window_id,
                "more_spent": row.sums.spent - row.read.spent,
                "more_held": row.sums.held - row.read.held,
                "more_topped_up": row.sums.topped_up - row.read.topped_up,
                "to_limit": row.limit,
                "to_hard": row.hard,
                "to_notify": row.notify,
                "to_noticed": row.noticed,
                "to_floated": row.floated.nano_usd,
                "to_epoch": row.floated.epoch,
                "to_issued": row.floated.issued,
                "guarded": row.guarded,
            }
            for row in changed
        ]
        written = _MOVE.run(conn, moves)
        assert written == len(moves), "the budget guard and the policy disagree"

    def _reached(self) -> Iterator[Reached]:
        """The thresholds that budgets of this moment have come to and nobody has been told of.  Where a
        window slides there is no end after which to tell again: once a day then."""
        for rows in self._rows.values():
            for row in rows.values():
                if not row.notify or not row.holds(self._now_s):
                    continue
                window_id, counted = row.window_id, [row.sums]
                if row.window_id.startswith(f"{ROLLING}/"):
                    window_id = f"{ROLLING}/{self._now_s // DAY_S * DAY_S}"
                    since_s = row.start_s - (ROLLING_SLOTS - 1) * HOUR_S
                    counted = [
                        each.sums
                        for each in rows.values()
                        if each.window_id.startswith(f"{ROLLING}/")
                        and since_s <= each.start_s <= row.start_s
                    ]
                yield from _come_to(row, window_id, counted)

    def _read(self, conn: Connection, places: Sequence[Place], since_s: int) -> None:
        self._rows = {place: {} for place in places}
        if not places:
            return
        asked = {
            "scopes": sorted({place.scope for place in places}),
            "accounts": sorted({place.account for place in places}),
            "since_s": since_s,
        }
        for found in _ROWS_LOCKED.rows(conn, asked):
            row = Row(found)
            if row.place in self._rows:  # scopes and accounts were asked for each by itself
                self._rows[row.place][row.window_id] = row

    def _lacking(self, budget: BudgetAccount) -> list[Span]:
        there = self._rows[Place(budget.scope, budget.id)]
        return [slot for slot in self._counted_by(budget) if slot.id not in there]

    def _newest(self, budget: BudgetAccount) -> Row:
        """The row in which a reservation made now is counted."""
        return self._rows[Place(budget.scope, budget.id)][self._counted_by(budget)[-1].id]

    def _counted_by(self, budget: BudgetAccount) -> list[Span]:
        """The rows that together are its window now."""
        kind = budget.budget.window, budget.budget.zone
        if (counted_by := self._slots.get(kind)) is None:
            counted_by = self._slots[kind] = slots(span_at(budget, self._now_s))
        return counted_by


@dataclass(frozen=True, slots=True)
class Opened:
    """An account's state, what it was topped up by, and the row in which a reservation made now is
    counted."""

    account: Account
    topped_up_nano_usd: int
    budget: BudgetAccount
    span: Span


def zone_of(budget: Budget) -> ZoneInfo:
    """KeyError or ValueError where there is no such zone."""
    return ZoneInfo(budget.zone)


def span_at(budget: BudgetAccount, now_s: int) -> Span:
    return window_at(budget.budget, now_s, zone_of(budget.budget))


def peek(conn: Connection, budget: BudgetAccount, now_s: int) -> Opened:
    """The state of `budget` now.  Makes and locks nothing."""
    span = span_at(budget, now_s)
    of = slots(span)
    asked = {"scopes": [budget.scope], "accounts": [budget.id], "since_s": span.since_s}
    found = {row["window_id"]: row for row in conn.execute(_ROWS, asked).mappings()}
    rows = {window_id: sums_of(row) for window_id, row in found.items()}
    lacking = [slot for slot in of if slot.id not in rows]
    if lacking:
        rows.update(counted(conn, budget, lacking))
    sums = [rows[slot.id] for slot in of]
    floated = float_of(found[of[-1].id]) if of[-1].id in found else NO_FLOAT
    return Opened(
        _account(budget, sums, floated), sum(each.topped_up for each in sums), budget, span
    )


def drop_old(conn: Connection, now_s: int) -> None:
    conn.execute(delete(_W).where(_W.c.end_s < now_s - KEPT_S, _W.c.held == 0))


def _account(budget: BudgetAccount, rows: Iterable[Sums], floated: Float) -> Account:
    spent, held, topped_up = (sum(column) for column in zip(*rows, strict=True))
    limit = min(_limit(budget) + topped_up, NANO_USD_MAX)
    of = budget.budget
    return Account(
        budget.scope, limit, spent, held, of.hard, of.shadow, budget.id, floated.nano_usd
    )


def _come_to(row: Row, window_id: str, of: Sequence[Sums]) -> Iterator[Reached]:
    spent, held, topped_up = (sum(column) for column in zip(*of, strict=True))
    limit = min(row.limit + topped_up, NANO_USD_MAX)
    for part in map(int, row.notify.split(",")):
        refused = row.refused and part == PARTS
        if part > row.noticed and (refused or spent * PARTS >= part * limit > 0):
            row.noticed = part
            yield Reached(
                scope=row.place.scope,
                account=row.place.account,
                window_id=window_id,
                threshold=part,
                limit_nano_usd=limit,
                spent_nano_usd=spent,
                held_nano_usd=held,
                refused=refused,
                resets_at_s=row.end_s,
            )


def _notify(budget: BudgetAccount) -> str:
    """The thresholds as a row keeps them, rising."""
    return ",".join(str(part) for each in budget.budget.notify_at if (part := round(each * PARTS)))


def _limit(budget: BudgetAccount) -> int:
    return min(budget.budget.limit_nano_usd, NANO_USD_MAX)


def _make(conn: Connection, lacking: Sequence[tuple[BudgetAccount, Sequence[Span]]]) -> None:
    """Begin rows with what has happened in them; what another has begun meanwhile stands."""
    rows = []
    for budget, of in lacking:
        found = counted(conn, budget, of)
        rows += [
            {
                "scope": budget.scope,
                "account": budget.id,
                "window_id": slot.id,
                "start_s": slot.start_s,
                "end_s": slot.end_s,
                "limit_nano_usd": _limit(budget),
                "hard": budget.budget.hard,
                **found[slot.id]._asdict(),
                "notify": _notify(budget),
                "noticed": 0,
                "floated": 0,
                "epoch": 0,
                "issued": 0,
            }
            for slot in of
        ]
    rows.sort(key=lambda row: (row["scope"], row["account"], row["window_id"]))
    insert_new(conn, _W, rows)
