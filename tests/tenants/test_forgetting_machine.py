"""People are forgotten in any order with everything else that the book does: no budget of theirs is reset or doubled.

The machine of test_budget_machine, in which a user's budget also changes its window, and what one person has done is
put under a pseudonym at any time.  The broken builds at the end are what it must catch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from sqlalchemy import Connection, delete, insert, select

from tenants import forgetting, schema, windows
from tenants.book import BudgetAccount, Dimensions
from tenants.changes import ChangeKind
from tenants.pseudonyms import PSEUDONYM, Digest, Names, Person
from tests.servers_postgres import needs_postgres
from tests.tenants import test_forgetting as given
from tests.tenants import test_forgetting_bounds as bounds
from tests.tenants.test_budget_machine import Budgets
from tests.tenants.test_forgetting import digest
from tests.tenants.test_ledger_machine import DAY_MS, HELD, OnPostgres, Seen, check

KINDS = ("calendar_day", "rolling_24h", "calendar_week", "total")


class Forgetful(Budgets):
    """What the model adds: whose requests bear the name no more."""

    def __init__(self) -> None:
        super().__init__()
        self.kind = "calendar_day"
        self.forgotten: set[str] = set()

    def budgets(self, dims: Dimensions) -> tuple[BudgetAccount, ...]:
        return tuple(
            replace(each, budget=replace(each.budget, window=self.kind))
            if each.scope == "user"
            else each
            for each in super().budgets(dims)
        )

    @rule(kind=st.sampled_from(KINDS))
    def window_changes(self, kind: str) -> None:
        self.kind = kind

    @precondition(lambda self: self.seen)
    @rule(data=st.data(), later_ms=st.sampled_from((0, DAY_MS)), kind=st.sampled_from(KINDS))
    def forget(self, data: st.DataObject, later_ms: int, kind: str) -> None:
        """Whoever has made one of these requests, perhaps a day later."""
        request_id = data.draw(st.sampled_from(sorted(self.seen)))
        if data.draw(st.booleans()):
            self.turn(self.settling(data, request_id))
        self.now_ms += later_ms
        dims = self.seen[request_id].dims
        user, tenant = dims.user, dims.tenant
        self.kind = kind
        (account,) = (each for each in self.budgets(dims) if each.scope == "user")
        row = {"tenant": tenant, "scope": "user", "issuer": "idp", "name": user,
               "budget": msgspec.json.encode(account.budget).decode()}  # fmt: skip
        names = Names(tenant, digest, b"salt")

        def op(conn: Connection) -> None:
            conn.execute(delete(schema.budget_override))
            conn.execute(insert(schema.budget_override).values(row))
            for _ in range(2):
                forgetting.forget_person(
                    conn, names, Person(tenant, "idp", user),
                    before_ms=self.now_ms + 1, now_ms=self.now_ms,
                )  # fmt: skip
            table = schema.reservation
            found = conn.execute(select(table).where(table.c.issuer == PSEUDONYM)).all()
            assert {each.request_id for each in found} == self.forgotten

        since_ms = windows.span_at(account, self.now_ms // 1000).since_s * 1000
        self.forgotten |= {
            request_id
            for request_id, seen in self.seen.items()
            if (seen.dims.tenant, seen.dims.user) == (tenant, user)
            and seen.state != HELD
            and seen.at_ms < since_ms
        }
        self.topped = [each for each in self.topped if each[1] != account.id or each[2] >= since_ms]
        self.backend.commit(op)

    def _mine(self, account: BudgetAccount) -> list[Seen]:
        gone = {id(self.seen[each]) for each in self.forgotten}
        mine = super()._mine(account)
        return [each for each in mine if account.scope != "user" or id(each) not in gone]


class ForgetfulOnPostgres(Forgetful, OnPostgres):
    """The same on a real PostgreSQL."""


def test_nobody_is_forgotten_at_the_cost_of_a_budget() -> None:
    check(3, 15, machine=Forgetful)


@pytest.mark.slow
def test_nobody_is_forgotten_at_the_cost_of_a_budget_for_long() -> None:
    check(15, 30, machine=Forgetful)


@pytest.mark.slow
@needs_postgres
def test_nobody_is_forgotten_at_the_cost_of_a_budget_on_postgresql() -> None:
    check(5, 25, machine=ForgetfulOnPostgres)


def _renames_what_a_budget_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(forgetting, "counted_since_ms", lambda *_: None)


def _leaves_the_rows_of_other_windows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(forgetting, "_account", lambda *_: None)


def _a_late_record_brings_the_name_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("tenants.ledger.replace", lambda record, dims: record)


def _draws_a_name_each_time(patch: pytest.MonkeyPatch) -> None:
    def drawn(conn: Connection, tenant: str, digest: Digest, salt: bytes) -> Names:
        return Names(tenant, digest, salt)

    patch.setattr("tenants.retention.names_of", drawn)


def _anybody_is_somebody_of_the_tenant(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(forgetting, "is_known", lambda *_, **__: True)


def _only_who_was_let_in_is(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(forgetting, "has_asked", lambda *_, **__: False)


def _every_change_is_about_a_person(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(forgetting, "_OF_BUDGETS", tuple(each.value for each in ChangeKind))


def _takes_what_holds_at_every_issuer(patch: pytest.MonkeyPatch) -> None:
    def dropped(conn: Connection, who: Person) -> int:
        return conn.execute(delete(schema.budget_override).filter_by(name=who.user)).rowcount

    patch.setattr(forgetting, "drop_budgets", dropped)


def _looks_at_how_a_name_begins(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(forgetting, "has_form", lambda column, begins: column.startswith(begins))


@pytest.mark.parametrize(
    ("broken", "test"),
    (
        (
            _renames_what_a_budget_counts,
            lambda: given.test_a_budget_that_stands_is_neither_reset_nor_doubled("calendar_month"),
        ),
        (
            _leaves_the_rows_of_other_windows,
            given.test_a_window_that_another_budget_had_is_counted_anew,
        ),
        (
            _a_late_record_brings_the_name_back,
            given.test_without_a_budget_only_what_is_held_waits,
        ),
        (
            _anybody_is_somebody_of_the_tenant,
            bounds.test_who_did_what_stays_unless_they_are_of_the_tenant,
        ),
        (_only_who_was_let_in_is, bounds.test_who_did_what_stays_unless_they_are_of_the_tenant),
        (
            _every_change_is_about_a_person,
            lambda: bounds.test_only_what_was_done_to_a_person_is_about_one("acme"),
        ),
        (
            _takes_what_holds_at_every_issuer,
            bounds.test_no_limit_of_others_is_taken_away_with_a_person,
        ),
        (_looks_at_how_a_name_begins, bounds.test_a_name_that_begins_like_a_pseudonym_is_none),
        (_draws_a_name_each_time, given.test_one_person_is_forgotten_and_sums_stay),
    ),
    ids=lambda each: each.__name__.strip("_"),
)
def test_one_that_is_broken_is_caught(
    broken: Callable[[pytest.MonkeyPatch], None],
    test: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken(monkeypatch)
    with pytest.raises(AssertionError):
        test()
