"""What a person moves by hand, each with a reason: top-ups, credits and refunds.

    top-up   more room in one budget, in the window of now only; moves no debt
    credit   less debt of a tenant, in no window: a budget is what may be spent, not what is owed
    refund   less of what one request was charged, where that is counted: in the ledger and in the
             windows of its reservation

Each is an entry of the ledger and a row that says who and why; nothing is edited.  What a request was
charged stays; what of it was refunded stands beside it.  In a rolling window a top-up counts like
spending: for as long as the hour in which it was made.
Asked again under the same id, it is done once.

Refuses to know: who may, and how ids are made (gateway).  Source: DESIGN.md, settled question 19;
MONEY.md §1 ("everything after is a correcting entry").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from policies.price import NANO_USD_MAX, in_usd
from tenants import directory_rows as rows
from tenants import ledger, periods, schema
from tenants.changes import ChangeKind
from tenants.counting import TOP_UP
from tenants.places import Place, places_of, successors
from tenants.postings import AVAILABLE, GRANTED, SPEND, Postings
from tenants.scopes import BudgetAccount
from tenants.windows import Windows

_A, _R = schema.adjustment, schema.reservation
LISTED_MOST = 1000


class Kind(StrEnum):
    """The closed set of `adjustment.kind`, and of the ledger's entries of the same name."""

    TOP_UP = TOP_UP
    CREDIT = "credit"
    REFUND = "refund"


CHANGES = {
    Kind.TOP_UP: ChangeKind.BUDGET_TOPPED_UP,
    Kind.CREDIT: ChangeKind.CREDITED,
    Kind.REFUND: ChangeKind.REFUNDED,
}


class AdjustmentRefused(Exception):
    """It cannot be done as asked; says why.  Nothing has happened."""


class NothingToRefund(AdjustmentRefused):
    """The tenant has no such request."""


class IdTaken(AdjustmentRefused):
    """The id was used for something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdjustAsk:
    """`budget` of a top-up alone, `request_id` of a refund alone."""

    id: str
    kind: Kind
    tenant: str
    nano_usd: int
    actor: str
    reason: str
    budget: BudgetAccount | None = None
    request_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjustment:
    """One that was made."""

    id: str
    kind: Kind
    tenant: str
    scope: str | None
    account: str | None
    request_id: str | None
    nano_usd: int
    actor: str
    reason: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Adjusted:
    """`repeat`: it was made before, and this is what was made then."""

    made: Adjustment
    repeat: bool = False


def adjust(conn: Connection, ask: AdjustAsk, *, now_ms: int) -> Adjusted:
    """Raises AdjustmentRefused."""
    assert 0 < ask.nano_usd < NANO_USD_MAX
    if (made := find(conn, ask.id)) is not None:
        if not _same(made, ask):
            raise IdTaken(f"{ask.id} was used for another adjustment; each needs an id of its own")
        return Adjusted(made, repeat=True)
    _bound(conn, ask)
    new = Adjustment(
        id=ask.id,
        kind=ask.kind,
        tenant=ask.tenant,
        scope=ask.budget.scope if ask.budget else None,
        account=ask.budget.id if ask.budget else None,
        request_id=ask.request_id,
        nano_usd=ask.nano_usd,
        actor=ask.actor,
        reason=ask.reason,
        at_ms=now_ms,
    )
    _DO[ask.kind](conn, ask, now_ms)
    conn.execute(insert(_A).values(_row(new)))
    rows.note(
        conn,
        at_s=now_ms // 1000,
        tenant=ask.tenant,
        kind=CHANGES[ask.kind].value,
        subject=ask.request_id or (f"{new.scope}:{new.account}" if new.scope else ask.tenant),
        detail=f"{ask.id}: {ask.nano_usd} nano-USD",
        actor=ask.actor,
        reason=ask.reason,
    )
    return Adjusted(new)


def find(conn: Connection, adjustment_id: str) -> Adjustment | None:
    row = conn.execute(select(_A).where(_A.c.id == adjustment_id)).mappings().one_or_none()
    return None if row is None else _made(row)


def listed(
    conn: Connection, *, tenant: str | None, request_id: str | None = None
) -> tuple[Adjustment, ...]:
    """The newest first, `LISTED_MOST` of them."""
    query = select(_A).order_by(_A.c.at_ms.desc(), _A.c.id).limit(LISTED_MOST)
    if tenant is not None:
        query = query.where(_A.c.tenant == tenant)
    if request_id is not None:
        query = query.where(_A.c.request_id == request_id)
    return tuple(map(_made, conn.execute(query).mappings()))


def _top_up(conn: Connection, ask: AdjustAsk, now_ms: int) -> None:
    budget, now_s = ask.budget, now_ms // 1000
    assert budget is not None
    if budget.scope == "key":  # a successor goes on with it
        chain = successors(conn, [budget.id])[budget.id]
        places = [Place("key", key) for key in chain]
    else:
        places = [Place(budget.scope, budget.id)]
    book = Windows(now_s)
    book.load(conn, places, [budget], since_s=now_s)
    book.move(places, now_s, topped_up=ask.nano_usd)
    book.write(conn)
    row = {"request_id": "", "tenant": ask.tenant, "at_ms": now_ms}
    _post(conn, ask, row, GRANTED, AVAILABLE, now_ms)


def _credit(conn: Connection, ask: AdjustAsk, now_ms: int) -> None:
    row = {"request_id": "", "tenant": ask.tenant, "at_ms": now_ms}
    _post(conn, ask, row, SPEND, AVAILABLE, now_ms)


def _refund(conn: Connection, ask: AdjustAsk, now_ms: int) -> None:
    assert ask.request_id is not None
    found = ledger.find_locked(conn, ask.request_id)
    if found is None or found["tenant"] != ask.tenant:
        raise NothingToRefund(f"the tenant has no request {ask.request_id}")
    if found["state"] == ledger.HELD:
        raise AdjustmentRefused(f"{ask.request_id} is still running; refund it when it has ended")
    most = found["charge"] - found["refunded"]
    if ask.nano_usd > most:
        raise AdjustmentRefused(
            f"{ask.request_id} was charged {in_usd(found['charge'])} USD, of which "
            f"{in_usd(found['refunded'])} were refunded before; at most {in_usd(most)} can be"
        )
    keys = successors(conn, {found["key_id"]} - {None})
    places, at_s = places_of(found, keys), found["at_ms"] // 1000
    book = Windows(now_ms // 1000)
    book.load(conn, places, (), since_s=at_s)
    book.move(places, at_s, spent=-ask.nano_usd)
    book.write(conn)
    conn.execute(
        update(_R)
        .where(_R.c.request_id == ask.request_id)
        .values(refunded=_R.c.refunded + ask.nano_usd)
    )
    _post(conn, ask, found, SPEND, AVAILABLE, now_ms)


_DO = {Kind.TOP_UP: _top_up, Kind.CREDIT: _credit, Kind.REFUND: _refund}


def _post(
    conn: Connection, ask: AdjustAsk, row: Mapping[Any, Any], debit: str, credit: str, now_ms: int
) -> None:
    """A refund counts where its request does, or now where that month is closed."""
    postings = Postings(now_ms, periods.gate(conn, [row["at_ms"]], now_ms))
    postings.transfer(row, ask.kind.value, debit, credit, ask.nano_usd, transfer_id=ask.id)
    postings.write(conn)


def _bound(conn: Connection, ask: AdjustAsk) -> None:
    """All of a kind together stay countable: else a sum of them would end every report."""
    total = select(func.coalesce(func.sum(_A.c.amount), 0)).where(_A.c.kind == ask.kind.value)
    if int(conn.execute(total).scalar_one()) + ask.nano_usd >= NANO_USD_MAX:
        raise AdjustmentRefused(
            f"all adjustments of this kind would come to {in_usd(NANO_USD_MAX)} USD or more, which cannot "
            "be counted"
        )


def _same(made: Adjustment, ask: AdjustAsk) -> bool:
    scope, account = (ask.budget.scope, ask.budget.id) if ask.budget else (None, None)
    asked = (ask.kind, ask.tenant, scope, account, ask.request_id, ask.nano_usd)
    return asked == (
        *(made.kind, made.tenant, made.scope, made.account),
        *(made.request_id, made.nano_usd),
    )


def _row(of: Adjustment) -> dict[str, Any]:
    row = {name: getattr(of, name) for name in Adjustment.__dataclass_fields__}
    row["amount"] = row.pop("nano_usd")
    return row | {"kind": of.kind.value}


def _made(row: Mapping[Any, Any]) -> Adjustment:
    plain = dict(row)
    plain["nano_usd"] = plain.pop("amount")
    return Adjustment(**plain | {"kind": Kind(row["kind"])})
