"""What the rows say of an account and a span of time: spent, held and topped up, counted anew.

Refuses to know: running totals (windows).  Source: MONEY.md §1, invariants 6 and 15.

A reservation counts under every account above it, at the time at which it was made, with what it was
charged less what was refunded of it; a top-up under the one account it was made for, at its own time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, and_, case, func, literal, select

from policies.budget import HOUR_S, Span
from tenants import schema, tags
from tenants.scopes import TAG, BudgetAccount

_R, _A, _K = schema.reservation, schema.adjustment, schema.api_key
_ACCOUNT = {
    "user": _R.c.user_account,
    "project": _R.c.project_account,
    "tenant": _R.c.tenant,
}
TOP_UP = "top_up"
"""The kind of an adjustment that raises a limit."""


class Sums(NamedTuple):
    """In nano-USD."""

    spent: int = 0
    held: int = 0
    topped_up: int = 0

    def more(self, spent: int = 0, held: int = 0, topped_up: int = 0) -> Sums:
        return Sums(self.spent + spent, self.held + held, self.topped_up + topped_up)


def slots(span: Span) -> list[Span]:
    """The rows that together are the window: one, or an hour each."""
    if span.since_s == span.start_s:
        return [span]
    kind = span.id.partition("/")[0]
    return [
        Span(f"{kind}/{start // HOUR_S}", start, start + HOUR_S, start)
        for start in range(span.since_s, span.start_s + 1, HOUR_S)
    ]


def counted(conn: Connection, budget: BudgetAccount, of: Sequence[Span]) -> dict[str, Sums]:
    """Each slot, by its id, in two queries however many they are."""
    several = len(of) > 1
    whole = Span("", of[0].start_s, of[-1].end_s, of[0].start_s)

    def hour(at_ms: ColumnElement[int]) -> ColumnElement[int]:
        return (at_ms // (HOUR_S * 1000) if several else literal(0)).label("hour")

    held = case((_R.c.state == "HELD", _R.c.amount), else_=0)
    found = {
        row[0]: Sums(int(row[1]), int(row[2]))
        for row in conn.execute(
            select(hour(_R.c.at_ms), func.sum(_R.c.charge - _R.c.refunded), func.sum(held))
            .where(_mine(budget, whole), *_within(_R.c.at_ms, whole))
            .group_by("hour")
        )
    }
    for row in conn.execute(
        select(hour(_A.c.at_ms), func.sum(_A.c.amount))
        .where(_topping(budget), *_within(_A.c.at_ms, whole))
        .group_by("hour")
    ):
        found[row[0]] = found.get(row[0], Sums()).more(topped_up=int(row[1]))
    return {slot.id: found.get(slot.start_s // HOUR_S if several else 0, Sums()) for slot in of}


def _lineage(key_id: str) -> Select[tuple[str]]:
    """A key and those that it replaced: a rotated key goes on with what was spent."""
    one = select(literal(key_id).label("id")).cte(recursive=True)
    before = select(_K.c.id).join(one, _K.c.replaced_by == one.c.id)
    return select(one.union(before).c.id)


def _mine(budget: BudgetAccount, span: Span) -> ColumnElement[bool]:
    """The reservations of `span` that belong under this account."""
    if budget.scope == TAG:
        return tags.under(budget.id, span)
    if budget.scope == "key":
        return _R.c.key_id.in_(_lineage(budget.id))
    return _ACCOUNT[budget.scope] == budget.id


def _topping(budget: BudgetAccount) -> ColumnElement[bool]:
    """The top-ups of this account."""
    of = (
        _A.c.account.in_(_lineage(budget.id))
        if budget.scope == "key"
        else _A.c.account == budget.id
    )
    return and_(_A.c.kind == TOP_UP, _A.c.scope == budget.scope, of)


def _within(at_ms: ColumnElement[int], span: Span) -> list[ColumnElement[bool]]:
    bounds = [at_ms >= span.start_s * 1000]
    return bounds if span.end_s is None else [*bounds, at_ms < span.end_s * 1000]
