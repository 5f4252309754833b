"""What people move by hand, in any order with everything else that the book does.

The machine of test_ledger_machine with top-ups, credits and refunds, each asked twice, with budgets that
turn soft or into shadows and back, and with rows of windows dropped at any time, since they can be counted anew.  Budgets broken on purpose are caught by the
tests of `test_budget_mutants`, and by what this machine asserts.
Source: MONEY.md §1 (invariants 1, 5–7, 9, 15); DESIGN.md, settled question 19.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from sqlalchemy import Connection, case, delete, func, select

from tenants import adjustments, schema, windows
from tenants.adjustments import AdjustAsk, AdjustmentRefused, Kind, adjust
from tenants.book import BudgetAccount, Dimensions
from tests.servers_postgres import needs_postgres
from tests.tenants.house import DIMS
from tests.tenants.test_ledger_machine import DAY_MS, HELD, Book, OnPostgres, check

MODES = ("hard", "hard", "soft", "shadow")


class Budgets(Book):
    """What the model adds: who was given what, and when."""

    most = 40_000

    def __init__(self) -> None:
        super().__init__()
        self.topped: list[tuple[str, str, int, int]] = []
        self.refunded: dict[str, int] = {}
        self.credited = 0
        self.modes = dict.fromkeys(("user", "project", "tenant"), "hard")

    def budgets(self, dims: Dimensions) -> tuple[BudgetAccount, ...]:
        return tuple(map(self.as_set, super().budgets(dims)))

    def as_set(self, account: BudgetAccount) -> BudgetAccount:
        mode = self.modes[account.scope]
        budget = replace(
            account.budget, hard=mode == "hard", shadow=mode == "shadow", notify_at=(0.5, 1.0)
        )
        return replace(account, budget=budget)

    @rule(scope=st.sampled_from(("user", "project", "tenant")), mode=st.sampled_from(MODES))
    def mode_changes(self, scope: str, mode: str) -> None:
        self.modes[scope] = mode

    def given(self, kind: Kind, amount: int, **more: Any) -> bool:
        """Twice under one id: it is done once, or refused twice."""
        asked = AdjustAsk(
            id=f"a{self.count}",
            kind=kind,
            nano_usd=amount,
            **{"tenant": "acme", "actor": "op", "reason": "r"} | more,
        )
        self.count += 1

        def op(conn: Connection) -> adjustments.Adjusted:
            return adjust(conn, asked, now_ms=self.now_ms)

        try:
            first = self.backend.commit(op)
        except AdjustmentRefused:
            with pytest.raises(AdjustmentRefused):
                self.backend.commit(op)
            return False
        again = self.backend.commit(op)
        assert (first.repeat, again.repeat, first.made) == (False, True, again.made)
        return True

    @rule(data=st.data(), amount=st.integers(1, 30_000))
    def top_up(self, data: st.DataObject, amount: int) -> None:
        budget = data.draw(st.sampled_from(self.budgets(DIMS)))
        assert self.given(Kind.TOP_UP, amount, budget=budget)
        self.topped.append((budget.scope, budget.id, self.now_ms, amount))

    @rule(amount=st.integers(1, 30_000))
    def credit(self, amount: int) -> None:
        assert self.given(Kind.CREDIT, amount)
        self.credited += amount

    @precondition(lambda self: self.seen)
    @rule(data=st.data(), amount=st.integers(1, 60_000), later_ms=st.sampled_from((0, DAY_MS)))
    def refund(self, data: st.DataObject, amount: int, later_ms: int) -> None:
        """Some of it, perhaps a day later; then more than is left; then the rest."""
        request_id = data.draw(st.sampled_from(sorted(self.seen)))
        seen = self.seen[request_id]
        if data.draw(st.booleans()):
            self.turn(self.settling(data, request_id))
        self.now_ms += later_ms
        for part in (amount, None, 0):
            left = 0 if seen.state == HELD else seen.charge - self.back(request_id)
            wanted = left + 1 if part is None else part or left or 1
            who = {"tenant": seen.dims.tenant, "request_id": request_id}
            done = self.given(Kind.REFUND, wanted, **who)
            assert done is (wanted <= left)
            if done:
                self.refunded[request_id] = self.back(request_id) + wanted
            self.balances_are_what_happened()

    @rule()
    def rows_are_dropped(self) -> None:
        self.backend.commit(lambda conn: conn.execute(delete(schema.budget_window)) and None)

    def back(self, request_id: str) -> int:
        """What of an estimate was refunded beyond what it came to has gone back again."""
        return min(self.refunded.get(request_id, 0), self.seen[request_id].charge)

    def room_added(self, account: BudgetAccount) -> int:
        span = windows.span_at(account, self.now_ms // 1000)
        begin, end = span.since_s * 1000, span.end_s and span.end_s * 1000
        return sum(
            amount
            for scope, id_, at_ms, amount in self.topped
            if (scope, id_) == (account.scope, account.id)
            and begin <= at_ms
            and (end is None or at_ms < end)
        )

    def _truth(self, account: BudgetAccount) -> tuple[int, int]:
        spent, held = super()._truth(account)
        mine = {id(seen) for seen in self._mine(account)}
        back = sum(self.back(each) for each, seen in self.seen.items() if id(seen) in mine)
        return spent - back, held

    def _rooms(self, accounts: Iterable[BudgetAccount]) -> dict[str, int]:
        """What refuses; others only report."""
        return {"": 2**60} | {
            account.id: max(
                0,
                self.limits[account.scope] + self.room_added(account) - sum(self._truth(account)),
            )
            for account in accounts
            if account.budget.hard
        }

    def _check_account(self, conn: Connection, account: BudgetAccount) -> None:
        opened = windows.peek(conn, account, self.now_ms // 1000)
        state, added = opened.account, self.room_added(account)
        assert (state.spent_nano_usd, state.held_nano_usd) == self._truth(account)
        assert opened.topped_up_nano_usd == added
        assert state.limit_nano_usd == self.limits[account.scope] + added

    def _check_ledger(self, conn: Connection) -> None:
        table = schema.ledger_entry
        signed = case((table.c.credit == "spend", table.c.amount), else_=0) - case(
            (table.c.debit == "spend", table.c.amount), else_=0
        )
        total = conn.execute(select(func.coalesce(func.sum(signed), 0))).scalar_one()
        charged = sum(seen.charge - self.back(each) for each, seen in self.seen.items())
        assert total == charged - self.credited


class BudgetsOnPostgres(Budgets, OnPostgres):
    """The same on a real PostgreSQL."""


def test_budgets_hold_briefly() -> None:
    check(1, 10, machine=Budgets)


@pytest.mark.slow
def test_budgets_hold() -> None:
    check(20, 25, machine=Budgets)


@pytest.mark.slow
@needs_postgres
def test_budgets_hold_on_postgresql() -> None:
    check(8, 20, machine=BudgetsOnPostgres)
