"""The book's machine with tags: several accounts of one scope above a request, and clients who say what they like.

What test_budget_machine does, with requests filed under up to three tags of any origin, budgets on those
that bind, and the clients' words forgotten at any time.  Source: MONEY.md §1 (invariants 1, 6, 12); DESIGN.md,
settled question 9.
"""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule
from sqlalchemy import Connection

from policies.facts import Budget
from policies.tags import Origin, Tag, merged
from tenants import reports, tags
from tenants.adjustments import Kind
from tenants.book import BudgetAccount
from tenants.scopes import TAG, tag_account
from tests.servers_postgres import needs_postgres
from tests.tenants.test_budget_machine import MODES, Budgets
from tests.tenants.test_ledger_machine import OnPostgres, Seen, check

NAMES = (("team", "search"), ("team", "ads"), ("env", "prod"))
TAGS = tuple(Tag(*each, origin) for each in NAMES for origin in Origin)
WINDOWS = {"search": "calendar_day", "ads": "rolling_24h", "prod": "total"}


class Tags(Budgets):
    """Tags of one value from different origins are one account, but the client's are none."""

    def __init__(self) -> None:
        super().__init__()
        self.limits[TAG] = self.highest[TAG] = self.most
        self.modes[TAG] = "hard"

    def tags(self, data: st.DataObject) -> tuple[Tag, ...]:
        return merged(data.draw(st.lists(st.sampled_from(TAGS), max_size=3)))

    def tag_budgets(
        self, tenant: str, tags: tuple[Tag, ...] | None = None
    ) -> tuple[BudgetAccount, ...]:
        named = NAMES if tags is None else [(tag.name, tag.value) for tag in tags if tag.binding]
        return tuple(
            self.as_set(
                BudgetAccount(
                    TAG, tag_account(tenant, *each), Budget(self.limits[TAG], WINDOWS[each[1]])
                )
            )
            for each in named
        )

    def is_under(self, seen: Seen, account: BudgetAccount) -> bool:
        if account.scope != TAG:
            return super().is_under(seen, account)
        return account.id in {
            tag_account(seen.dims.tenant, tag.name, tag.value)
            for tag in seen.tags
            if tag.origin is not Origin.CLIENT
        }

    @rule(mode=st.sampled_from(MODES), tenths=st.integers(1, 10))
    def a_tag_is_budgeted_otherwise(self, mode: str, tenths: int) -> None:
        self.modes[TAG], self.limits[TAG] = mode, self.most * tenths // 10

    @rule(data=st.data(), amount=st.integers(1, 30_000))
    def a_tag_is_topped_up(self, data: st.DataObject, amount: int) -> None:
        budget = data.draw(st.sampled_from(self.tag_budgets("acme")))
        assert self.given(Kind.TOP_UP, amount, budget=budget)
        self.topped.append((budget.scope, budget.id, self.now_ms, amount))

    @rule(tenant=st.sampled_from(("acme", "globex")))
    def clients_words_are_forgotten(self, tenant: str) -> None:
        theirs = [
            seen
            for seen in self.seen.values()
            if seen.dims.tenant == tenant and not all(tag.binding for tag in seen.tags)
        ]
        done = self.backend.commit(lambda conn: tags.forget_client_tags(conn, tenant=tenant))
        assert done == len(theirs)
        for seen in theirs:
            seen.tags = tuple(tag for tag in seen.tags if tag.binding)

    def _check_reports(self, conn: Connection) -> None:
        super()._check_reports(conn)
        for request_id, seen in self.seen.items():
            found = reports.explain(conn, request_id)
            assert found is not None
            assert found.tags == seen.tags


class TagsOnPostgres(Tags, OnPostgres):
    """The same on a real PostgreSQL."""


def test_tags_hold_briefly() -> None:
    check(1, 10, machine=Tags)


@pytest.mark.slow
def test_tags_hold() -> None:
    check(20, 25, machine=Tags)


@pytest.mark.slow
@needs_postgres
def test_tags_hold_on_postgresql() -> None:
    check(8, 20, machine=TagsOnPostgres)
