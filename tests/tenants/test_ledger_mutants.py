"""Books that were broken on purpose, each of which `test_ledger_machine` must catch, since a harness that catches
nothing proves nothing.  Source: MONEY.md §1 (the model check: "mutation-test the harness itself")."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from policies import budget as budget_policy
from policies import price as pricing
from policies.facts import Meters
from policies.price import charge
from policies.verdict import Allow
from tenants import ledger, postings, windows
from tenants.asks import SettleAsk
from tests.tenants.house import DIMS, NOON_MS, ask
from tests.tenants.test_ledger_machine import EXPIRED, HELD, ODD, VOIDED, Book, check

Page = ledger._Page


def _sweep_releases_for_free(patch: pytest.MonkeyPatch) -> None:
    def lapse(self: Any, asked: Any) -> str | None:
        row = self._rows[asked.request_id]
        if (
            row["state"] != HELD
            or (asked.until_ms or row["lease_until_ms"]) < row["lease_until_ms"]
        ):
            return None
        self._leave(row, EXPIRED, 0, held=-row["amount"], spent=0)
        return EXPIRED

    patch.setattr(Page, "_lapse", lapse)


def _no_settle_state_guard(patch: pytest.MonkeyPatch) -> None:
    settle = Page._settle

    def always_held(self: Any, request_id: str, *more: Any) -> Any:
        if request_id in self._rows:
            self._rows[request_id]["state"] = HELD
        return settle(self, request_id, *more)

    patch.setattr(Page, "_settle", always_held)


def _late_settle_is_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Page, "_correct", lambda *_: None)


def _settles_into_the_window_of_now(patch: pytest.MonkeyPatch) -> None:
    move = windows.Windows.move

    def newest(self: Any, places: Any, at_s: int, *, held: int, spent: int) -> None:
        latest = max((r.start_s for rows in self._rows.values() for r in rows.values()), default=0)
        move(self, places, max(latest, at_s), held=held, spent=spent)

    patch.setattr(windows.Windows, "move", newest)


def _holds_on_the_first_ancestor_only(patch: pytest.MonkeyPatch) -> None:
    move = Page._move

    def narrow(self: Any, row: Any, *, held: int, spent: int = 0) -> None:
        alone = row | {"project_account": None, "tenant": None}
        move(self, alone, held=held, spent=spent)

    patch.setattr(Page, "_move", narrow)


def _guard_forgets_what_is_held(patch: pytest.MonkeyPatch) -> None:
    free = property(lambda self: max(0, self.limit_nano_usd - self.spent_nano_usd))
    patch.setattr(budget_policy.Account, "room_nano_usd", free)
    patch.setattr(windows.Windows, "admit", lambda *_: None)


def _a_group_is_decided_by_what_was_read(patch: pytest.MonkeyPatch) -> None:
    """Each sees the room that was there before all of them."""
    account = windows.Windows.account

    def stale(self: Any, budget: Any) -> Any:
        rows = self._rows[(budget.scope, budget.id)]
        read = [rows[slot.id].read for slot in self._counted_by(budget)]
        spent, held, _ = (sum(column) for column in zip(*read, strict=True))
        return replace(account(self, budget), spent_nano_usd=spent, held_nano_usd=held)

    patch.setattr(windows.Windows, "account", stale)
    patch.setattr(windows.Windows, "admit", lambda *_: None)


def _the_policy_lets_everything_through(patch: pytest.MonkeyPatch) -> None:
    """Then the guard in SQL must stop it."""
    fit = budget_policy.fit
    patch.setattr(
        ledger,
        "fit",
        lambda accounts, *more: fit([replace(each, hard=False) for each in accounts], *more),
    )


def _void_keeps_the_hold(patch: pytest.MonkeyPatch) -> None:
    leave = Page._leave

    def stingy(self: Any, row: Any, state: str, charge: int, *, held: int, spent: int) -> None:
        leave(self, row, state, charge, held=0 if state == VOIDED else held, spent=spent)

    patch.setattr(Page, "_leave", stingy)


def _reserves_too_little(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pricing, "worst_case_input", lambda price, prompt: prompt * price.input // 10**6)


def _recovery_forgets_the_dispatched(patch: pytest.MonkeyPatch) -> None:
    lapse = Page._lapse

    def forgetful(self: Any, asked: Any) -> str | None:
        return None if self._rows[asked.request_id]["dispatched"] else lapse(self, asked)

    patch.setattr(Page, "_lapse", forgetful)


def _estimates_are_not_reversed(patch: pytest.MonkeyPatch) -> None:
    lines = postings.Postings.lines

    def keep(self: Any, row: Any, entry: str, of: Any) -> None:
        if entry != postings.REVERSAL:
            lines(self, row, entry, of)

    patch.setattr(postings.Postings, "lines", keep)


MUTANTS: tuple[Callable[[pytest.MonkeyPatch], None], ...] = (
    _sweep_releases_for_free,
    _no_settle_state_guard,
    _late_settle_is_dropped,
    _settles_into_the_window_of_now,
    _holds_on_the_first_ancestor_only,
    _guard_forgets_what_is_held,
    _a_group_is_decided_by_what_was_read,
    _the_policy_lets_everything_through,
    _void_keeps_the_hold,
    _recovery_forgets_the_dispatched,
    _estimates_are_not_reversed,
)


def all_from_the_cache() -> None:
    """The dearest way to use what was reserved, where reading costs more than computing."""
    machine = Book()
    asked = ask("r1", *machine.budgets(DIMS), prompt=100, out=50, price=ODD)
    used = SettleAsk("r1", Meters(cached_input=100, output=50))
    try:
        held, settled = machine.backend.commit(
            lambda conn: ledger.turn(conn, [asked, used], owner="p1", now_ms=NOON_MS)
        )
        assert isinstance(held, Allow)
        assert not settled.alarm
        assert settled.charge == charge(ODD, used.meters)
    finally:
        machine.backend.close()
        shutil.rmtree(machine.folder)


def test_what_is_reserved_covers_the_dearest_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too seldom drawn to be left to the machine."""
    all_from_the_cache()
    _reserves_too_little(monkeypatch)
    with pytest.raises(AssertionError):
        all_from_the_cache()


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__.strip("_"))
def test_a_broken_book_is_caught(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, IntegrityError, ExceptionGroup)):
        check(60, 25, shrink=False)
