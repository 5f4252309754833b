"""Budgets that were broken on purpose, and the test that each is caught by."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Connection, false, or_, select
from sqlalchemy.exc import IntegrityError

from policies import budget as budget_policy
from policies.tags import Tag
from policies.verdict import Deny, Reason
from tenants import adjustments, counting, ledger, outbox, postings, schema, tags, windows
from tenants.adjustments import AdjustAsk, Kind
from tenants.scopes import tag_of
from tests.tenants import test_adjustments as given
from tests.tenants import test_book as booked
from tests.tenants import test_outbox as told
from tests.tenants import test_tags as filed

Break = Callable[[pytest.MonkeyPatch], None]


def _refunds_beyond_the_charge(patch: pytest.MonkeyPatch) -> None:
    """Then the guard in SQL must stop it."""
    find = ledger.find_locked

    def forgetful(conn: Connection, request_id: str) -> Any:
        row = find(conn, request_id)
        return row and {**row, "refunded": 0}

    patch.setattr(ledger, "find_locked", forgetful)


def _refunds_into_the_window_of_now(patch: pytest.MonkeyPatch) -> None:
    move = windows.Windows.move

    def newest(self: Any, places: Any, at_s: int, **more: int) -> None:
        by_hand = more.get("spent", 0) < 0 and "held" not in more
        move(self, places, self._now_s if by_hand else at_s, **more)

    patch.setattr(windows.Windows, "move", newest)


def _what_is_counted_anew_forgets_refunds(patch: pytest.MonkeyPatch) -> None:
    refund = adjustments._refund

    def unmarked(conn: Connection, ask: AdjustAsk, now_ms: int) -> None:
        refund(conn, ask, now_ms)
        table = schema.reservation
        conn.execute(table.update().where(table.c.request_id == ask.request_id).values(refunded=0))

    patch.setitem(adjustments._DO, Kind.REFUND, unmarked)


def _a_refunded_estimate_is_corrected_twice(patch: pytest.MonkeyPatch) -> None:
    transfer = postings.Postings.transfer

    def silent(self: Any, row: Any, kind: str, *more: Any, **options: Any) -> None:
        if kind != "refund_returned":
            transfer(self, row, kind, *more, **options)

    patch.setattr(postings.Postings, "transfer", silent)


def _a_top_up_is_inherited_by_the_next_window(patch: pytest.MonkeyPatch) -> None:
    within = counting._within

    def since_ever(at_ms: Any, span: Any) -> Any:
        bounds = within(at_ms, span)
        return bounds[1:] if at_ms.table is schema.adjustment else bounds

    patch.setattr(counting, "_within", since_ever)


def _a_top_up_is_lost_with_its_row(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(counting, "TOP_UP", "none")


def _a_credit_is_room(patch: pytest.MonkeyPatch) -> None:
    credit = adjustments._credit

    def generous(conn: Connection, ask: AdjustAsk, now_ms: int) -> None:
        credit(conn, ask, now_ms)
        table = schema.budget_window
        conn.execute(table.update().values(topped_up=table.c.topped_up + ask.nano_usd))

    patch.setitem(adjustments._DO, Kind.CREDIT, generous)


def _asked_again_it_is_given_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(adjustments, "find", lambda *_: None)


def _a_threshold_is_told_at_every_settlement(patch: pytest.MonkeyPatch) -> None:
    row, minted = outbox._row, iter(range(10**6))
    patch.setattr(outbox, "_row", lambda *of: row(*of) | {"id": f"evt_{next(minted)}"})


def _a_threshold_is_told_in_a_later_transaction(patch: pytest.MonkeyPatch) -> None:
    post = outbox.post
    waiting: list[Any] = []

    def later(conn: Connection, reached: Any, now_ms: int) -> None:
        for each in waiting:
            post(conn, *each)
        waiting[:] = [(reached, now_ms)]

    patch.setattr(outbox, "post", later)


def _a_shadow_refuses(patch: pytest.MonkeyPatch) -> None:
    fit = budget_policy.fit

    def strict(*asked: Any) -> Any:
        verdict = fit(*asked)
        if not isinstance(verdict, Deny) and verdict.value.shadowed:
            return Deny(Reason.BUDGET_SPENT, scope=verdict.value.shadowed[0])
        return verdict

    patch.setattr(ledger, "fit", strict)


def _a_clients_word_binds(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Tag, "binding", property(lambda _: True))


def _a_hold_is_counted_under_its_first_tag_alone(patch: pytest.MonkeyPatch) -> None:
    move = ledger._Page._move

    def narrow(self: Any, row: Any, **more: int) -> None:
        move(self, row | {"tags": tags.spelt(tags.read(row["tags"])[:1])}, **more)

    patch.setattr(ledger._Page, "_move", narrow)


def _what_is_counted_anew_forgets_tags(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tags, "under", lambda *_: false())


def _tags_are_not_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tags, "keep", lambda *_: None)


def _every_tenant_has_the_same_tags(patch: pytest.MonkeyPatch) -> None:
    under = tags.under
    table = schema.reservation_tag

    def everybodys(account: str, span: Any) -> Any:
        name, value = tag_of(account)[1:]
        mine = select(table.c.request_id).where(table.c.name == name, table.c.value == value)
        return or_(under(account, span), schema.reservation.c.request_id.in_(mine))

    patch.setattr(tags, "under", everybodys)


def _a_refusal_is_told_to_every_tag(patch: pytest.MonkeyPatch) -> None:
    hold = ledger._Page._hold

    def loud(self: Any, ask: Any) -> Any:
        verdict = hold(self, ask)
        if isinstance(verdict, Deny):
            for budget in ask.budgets:
                if budget.scope == verdict.scope:
                    self._windows.refuse(budget)
        return verdict

    patch.setattr(ledger._Page, "_hold", loud)


def _what_clients_said_stays_beside_the_reservation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tags, "_LEAVE", SimpleNamespace(run=lambda *_: 0))


CAUGHT: tuple[tuple[Break, Callable[[], None]], ...] = (
    (_refunds_beyond_the_charge, given.test_no_more_is_refunded_than_was_charged),
    (
        _refunds_into_the_window_of_now,
        given.test_a_refund_goes_back_to_the_window_of_its_request_and_edits_nothing,
    ),
    (
        _what_is_counted_anew_forgets_refunds,
        given.test_a_refund_goes_back_to_the_window_of_its_request_and_edits_nothing,
    ),
    (
        _a_refunded_estimate_is_corrected_twice,
        lambda: given.test_an_estimate_refunded_and_then_corrected_is_never_below_nothing(20),
    ),
    (
        _a_top_up_is_inherited_by_the_next_window,
        given.test_a_top_up_is_room_in_this_window_and_in_no_other,
    ),
    (_a_top_up_is_lost_with_its_row, given.test_a_top_up_is_room_in_this_window_and_in_no_other),
    (_a_credit_is_room, given.test_a_credit_lowers_what_is_owed_and_gives_no_room),
    (
        _asked_again_it_is_given_again,
        given.test_the_same_asked_again_is_done_once_and_an_id_is_for_one_thing,
    ),
    (_a_threshold_is_told_at_every_settlement, told.test_a_rolling_window_is_told_of_once_a_day),
    (_a_threshold_is_told_in_a_later_transaction, told.test_what_is_undone_is_not_told),
    (
        _a_clients_word_binds,
        filed.test_what_a_key_or_a_token_says_binds_and_what_a_client_says_does_not,
    ),
    (
        _a_hold_is_counted_under_its_first_tag_alone,
        filed.test_under_several_tags_it_lands_on_all_or_on_none_and_says_on_which_it_did_not,
    ),
    (
        _what_is_counted_anew_forgets_tags,
        filed.test_what_a_key_or_a_token_says_binds_and_what_a_client_says_does_not,
    ),
    (_tags_are_not_kept, filed.test_a_budget_that_is_set_later_counts_what_was_filed_before),
    (
        _every_tenant_has_the_same_tags,
        filed.test_a_budget_that_is_set_later_counts_what_was_filed_before,
    ),
    (
        _a_refusal_is_told_to_every_tag,
        filed.test_who_did_not_fit_under_one_tag_is_told_of_that_tag_alone,
    ),
    (
        _what_clients_said_stays_beside_the_reservation,
        filed.test_clients_words_are_forgotten_and_nothing_is_counted_otherwise,
    ),
    (_a_shadow_refuses, booked.test_a_shadow_lets_through_and_says_what_it_would_have_refused),
)


@pytest.mark.parametrize(
    ("broken", "test"), CAUGHT, ids=lambda each: getattr(each, "__name__", "").strip("_")
)
def test_a_broken_budget_is_caught(
    broken: Break, test: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    with pytest.raises((AssertionError, IntegrityError, pytest.fail.Exception)):
        test()
