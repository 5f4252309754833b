"""What the book does with all that is asked of it at one moment: hold, settle, void, expire.

    HELD → SETTLED                  billed on what was used; more than reserved is an entry of its own
    HELD → VOIDED                   nothing ran, nothing is billed
    HELD → EXPIRED → SETTLED        billed as reserved until the usage arrives, then corrected

Theory of operation.  A `turn` reads everything it could need, locked in one order (reservations, then
windows); decides in memory, in the order in which it was asked; and writes what came of it, a statement
for each table.  So what a hold costs does not grow with how many are asked at once, and first come is
first served.  A reservation is the pending transfer; when it ends, transfers between a tenant's
accounts (`available`, `spend`) and usage lines are appended.  Nothing of those is ever edited, and both
are unique by what they are, so that a step taken twice cannot count twice.

Refuses to know: threads, event loops, where time comes from.  Every decision about an amount is
`policies.budget` and `policies.price`; every change of a balance is `windows`.
Source: MONEY.md §1 (states and invariants); TigerBeetle (pending, post, void; prefetch does all I/O,
commit only decides).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sqlalchemy import BigInteger, Boolean, Connection, Text, func, select

from policies import price as pricing
from policies.budget import Account, Fit, fit
from policies.facts import Meters, Price
from policies.price import Charge, Line, Meter
from policies.verdict import Allow, Deny
from tenants import periods, places, postings, prices, schema, tags, usage
from tenants.asks import (
    Ask,
    BookFault,
    Hold,
    HoldAsk,
    LapseAsk,
    SettleAsk,
    Settled,
    VoidAsk,
    Worded,
)
from tenants.floats import Floats
from tenants.postings import AVAILABLE, ESTIMATE, REVERSAL, SPEND, USAGE, Postings
from tenants.scopes import TAG, BudgetAccount, in_order, scope_id
from tenants.sql import Find, insert_many, update_many, within
from tenants.usage import UsageRecord
from tenants.windows import Windows

HELD, SETTLED, VOIDED, EXPIRED = "HELD", "SETTLED", "VOIDED", "EXPIRED"
ENDED = frozenset({SETTLED, VOIDED})

_SHADOW = "shadow:"
"""Before the scope of a budget in `over` that would have refused."""

_R = schema.reservation

# Built once: putting a statement together costs more than running it.
_RESERVE = insert_many(_R)
_OF = select(_R).where(within(_R.c.request_id, "ids"))
_FIND, _FIND_LOCKED = Find(_OF), Find(_OF.order_by(_R.c.request_id).with_for_update())
_LEAVE = update_many(
    _R,
    {
        "of_request": Text(),
        "of_state": Text(),
        "to_state": Text(),
        "to_charge": BigInteger(),
        "to_refunded": BigInteger(),
        "to_estimated": Boolean(),
        "to_ended_at_ms": BigInteger(),
    },
    sets="state = {to_state}, charge = {to_charge}, refunded = {to_refunded}, estimated = {to_estimated}, "
    "ended_at_ms = {to_ended_at_ms}",
    where="request_id = {of_request} AND state = {of_state}",
)

Row = dict[str, Any]
"""A row of `reservation`, by column name."""


def turn(
    conn: Connection,
    asks: Sequence[Ask],
    *,
    owner: str,
    now_ms: int,
    published: Mapping[str, Price] | None = None,
) -> list[Any]:
    """The answer to each, in order: Allow[Hold] or Deny (Worded where tills were asked), Settled, or a bool
    (voided; lapsed, with the state that it left as a string).  A BookFault among them is that one's alone.
    `published`: prices that are known to be kept."""
    page = _Page(conn, asks, owner, now_ms, published or {})
    answers = [page.answer(ask) for ask in asks]
    page.write(conn)
    return answers


class _Page:
    """What one turn has read, and what it makes of it.  Between reading and writing, no I/O."""

    def __init__(
        self,
        conn: Connection,
        asks: Sequence[Ask],
        owner: str,
        now_ms: int,
        published: Mapping[str, Price],
    ) -> None:
        self._owner, self._now_ms = owner, now_ms
        holds = [ask for ask in asks if isinstance(ask, HoldAsk)]
        ids = sorted({ask.request_id for ask in asks})
        found = _FIND_LOCKED.rows(conn, {"ids": ids})
        self._rows: dict[str, Row] = {row["request_id"]: row for row in found}
        self._read = {request_id: row["state"] for request_id, row in self._rows.items()}
        self._billed = postings.charges(conn, self._rows.values())
        self._prices = prices.known(
            conn,
            (ask.price for ask in holds),
            [row["price_id"] for row in self._rows.values()],
            published,
        )
        reserved = [*self._rows.values(), *map(_accounts, holds)]
        keys = {row["key_id"] for row in reserved if row["key_id"] is not None}
        self._keys = places.successors(conn, keys) if keys else {}
        self._windows = Windows(now_ms // 1000)
        self._windows.load(
            conn,
            (place for row in reserved for place in places.places_of(row, self._keys)),
            (account for ask in holds for account in ask.budgets),
            since_s=min([row["at_ms"] for row in self._rows.values()], default=now_ms) // 1000,
        )
        admitted_ms = [row["at_ms"] for row in self._rows.values()]
        self._postings = Postings(now_ms, periods.gate(conn, admitted_ms, now_ms))
        self._records: list[UsageRecord] = []

    def answer(self, ask: Ask) -> Any:
        match ask:
            case HoldAsk():
                return self._hold(ask)
            case SettleAsk():
                return self._settle(ask.request_id, ask.meters, ask.record)
            case VoidAsk():
                return self._void(ask.request_id, ask.record)
            case LapseAsk():
                return self._lapse(ask)

    def write(self, conn: Connection) -> None:
        """One statement a table."""
        reserved = [row for request_id, row in self._rows.items() if request_id not in self._read]
        left = [
            {
                "of_request": request_id,
                "of_state": state,
                "to_state": row["state"],
                "to_charge": row["charge"],
                "to_refunded": row["refunded"],
                "to_estimated": row["estimated"],
                "to_ended_at_ms": row["ended_at_ms"],
            }
            for request_id, state in self._read.items()
            if (row := self._rows[request_id])["state"] != state
        ]
        if reserved:
            _RESERVE.run(conn, reserved)
            tags.keep(conn, reserved)
        if left:
            changed = _LEAVE.run(conn, left)
            assert changed == len(left), "a reservation was ended by somebody else meanwhile"
        self._postings.write(conn)
        usage.keep(conn, self._records)
        self._windows.write(conn)

    def _hold(self, ask: HoldAsk) -> Allow[Hold] | Deny | Worded | BookFault:
        """Reserve at every ancestor or at none."""
        if (known := self._rows.get(ask.request_id)) is not None:
            return _held_before(known, ask)
        if fault := prices.differs(self._prices, ask.price):
            return fault
        budgets = sorted(ask.budgets, key=in_order)
        accounts = [self._windows.account(budget) for budget in budgets]
        floats: Floats | None = None
        if ask.till or any(each.floated_nano_usd for each in accounts):
            floats = Floats(self._windows, budgets, ask, self._now_ms * 1000)
            verdict = floats.decide(partial(_fits, ask))
        else:
            verdict = _fits(ask, accounts)
        if isinstance(verdict, Deny):
            for budget in budgets:
                if (budget.scope, budget.id) == (verdict.scope, verdict.account):
                    self._windows.refuse(budget)
            return _worded(ask, floats, verdict)
        fitted = verdict.value
        row = _accounts(ask) | {
            "request_id": ask.request_id,
            "price_id": ask.price.id,
            "prompt_tokens": ask.prompt_tokens,
            "output_tokens": fitted.output_tokens,
            "n": ask.n,
            "limited_by": fitted.limited_by,
            "over": ",".join((*fitted.over, *(_SHADOW + each for each in fitted.shadowed))),
            "amount": fitted.amount_nano_usd,
            "charge": 0,
            "refunded": 0,
            "state": HELD,
            "estimated": False,
            "dispatched": ask.dispatched,
            "owner": self._owner,
            "at_ms": self._now_ms,
            "lease_until_ms": self._now_ms + ask.lease_s * 1000,
            "ended_at_ms": None,
        }
        self._rows[ask.request_id] = row
        if floats is not None:
            floats.journal()
        self._move(row, held=fitted.amount_nano_usd)
        for budget in budgets:
            self._windows.admit(budget)
        if floats is not None:
            floats.refill(fitted.amount_nano_usd)
        return _worded(ask, floats, Allow(_hold_of(row)))

    def _settle(
        self, request_id: str, meters: Meters, record: UsageRecord | None
    ) -> Settled | BookFault:
        """Bill what was used, once."""
        row = self._rows.get(request_id)
        if row is None:
            return BookFault(f"nothing was ever held under {request_id}")
        if row["state"] in ENDED:
            used = row["state"] == VOIDED and meters != Meters()
            first = self._billed.get(request_id) or Charge(row["price_id"], (), 0)
            return Settled(first, repeat=True, alarm=used)
        charge = pricing.charge(self._prices[row["price_id"]], meters)
        total = charge.total_nano_usd
        if row["state"] == HELD:
            self._leave(row, SETTLED, total, held=-row["amount"], spent=total)
            self._postings.transfer(row, "settle", AVAILABLE, SPEND, min(total, row["amount"]))
            self._postings.transfer(row, "overrun", AVAILABLE, SPEND, total - row["amount"])
        else:
            self._correct(row, total)
            if record is not None:  # whoever it was may have another name by now
                record = replace(record, dims=usage.dims_of(row))
        # What used nothing has a line too, so that every report knows of it.
        nothing = (Line(Meter.OUTPUT, 0, self._prices[row["price_id"]].output, 0),)
        self._postings.lines(row, USAGE, charge.lines or nothing)
        self._billed[request_id] = charge
        self._record(record)
        return Settled(charge, alarm=total > row["amount"])

    def _void(self, request_id: str, record: UsageRecord | None) -> bool:
        """Nothing ran: everything back.  A hold that expired meanwhile is corrected to nothing.
        False where there was nothing to void (never held, or ended before)."""
        row = self._rows.get(request_id)
        if row is None or row["state"] in ENDED:
            return False
        if row["state"] == EXPIRED:
            self._settle(request_id, Meters(), record)
            return True
        self._leave(row, VOIDED, 0, held=-row["amount"], spent=0)
        self._record(record)
        return True

    def _lapse(self, ask: LapseAsk) -> str | None:
        """The state that it was left in, None where it had been renewed or ended.  Nobody knows what
        ran: what was reserved is billed for now, and marked as estimated; unless it cannot have run."""
        row = self._rows.get(ask.request_id)
        if row is None or row["state"] != HELD:
            return None
        if ask.until_ms is not None and row["lease_until_ms"] > ask.until_ms:
            return None
        if not row["dispatched"]:
            self._void(ask.request_id, None)
            return VOIDED
        amount = row["amount"]
        self._leave(row, EXPIRED, amount, held=-amount, spent=amount)
        self._postings.transfer(row, "expire", AVAILABLE, SPEND, amount)
        lines = _worst_lines(self._prices[row["price_id"]], row)
        self._postings.lines(row, ESTIMATE, lines)
        self._billed[ask.request_id] = Charge(row["price_id"], lines, amount)
        return EXPIRED

    def _correct(self, row: Row, charge: int) -> None:
        """The usage of an expired hold has arrived: replace the estimate by it.  What was refunded of
        the estimate beyond what it really came to is not owed any more, and goes back."""
        provisional, estimate = row["charge"], self._billed[row["request_id"]]
        back = max(0, row["refunded"] - charge)
        row["refunded"] -= back
        self._leave(row, SETTLED, charge, held=0, spent=charge - provisional + back)
        self._postings.transfer(row, "refund_returned", AVAILABLE, SPEND, back)
        self._postings.transfer(row, "correct", SPEND, AVAILABLE, provisional - charge)
        self._postings.transfer(row, "overrun", AVAILABLE, SPEND, charge - provisional)
        reversed_ = tuple(
            Line(line.meter, -line.tokens, line.unit_price, -line.nano_usd)
            for line in estimate.lines
        )
        self._postings.lines(row, REVERSAL, reversed_)

    def _leave(self, row: Row, state: str, charge: int, *, held: int, spent: int) -> None:
        row["state"], row["charge"], row["estimated"] = state, charge, state == EXPIRED
        row["ended_at_ms"] = self._now_ms
        self._move(row, held=held, spent=spent)

    def _move(self, row: Row, *, held: int, spent: int = 0) -> None:
        under = places.places_of(row, self._keys)
        self._windows.move(under, row["at_ms"] // 1000, held=held, spent=spent)

    def _record(self, record: UsageRecord | None) -> None:
        if record is not None:
            self._records.append(record)


def _fits(ask: HoldAsk, accounts: Sequence[Account]) -> Allow[Fit] | Deny:
    return fit(
        accounts, ask.price, ask.prompt_tokens, ask.output_tokens, ask.output_tokens_least, ask.n
    )


def _worded(
    ask: HoldAsk, floats: Floats | None, verdict: Allow[Hold] | Deny
) -> Allow[Hold] | Deny | Worded:
    """With what the tills should hear, where they were asked."""
    if floats is None or not ask.till:
        return verdict
    return Worded(verdict, tuple(floats.words()))


def _accounts(ask: HoldAsk) -> Row:
    """Whose it is, and under which accounts it is counted."""
    assert all(_is_under(ask, account) for account in ask.budgets)
    return usage.dims_row(ask.dims) | {
        "user_account": scope_id("user", ask.dims),
        "project_account": scope_id("project", ask.dims),
        "tags": tags.spelt(ask.tags),
    }


def _is_under(ask: HoldAsk, account: BudgetAccount) -> bool:
    if account.scope == TAG:
        return account.id in tags.accounts(ask.dims.tenant, tags.spelt(ask.tags))
    return account.id == scope_id(account.scope, ask.dims)


def _worst_lines(price: Price, row: Row) -> tuple[Line, ...]:
    """What was reserved, as lines: each is tokens × price, however it was rounded."""
    prompt = pricing.worst_case_input(price, row["prompt_tokens"])
    output = row["output_tokens"] * row["n"]
    return (
        Line(Meter.INPUT, row["prompt_tokens"], pricing.dearest_input(price), prompt),
        Line(Meter.OUTPUT, output, price.output, row["amount"] - prompt),
    )


def _held_before(row: Row, ask: HoldAsk) -> Allow[Hold] | BookFault:
    """A repeated hold hears the first answer; an id for something else is our mistake."""
    same = usage.dims_of(row) == ask.dims and row["price_id"] == ask.price.id
    if not same or row["state"] != HELD or row["prompt_tokens"] != ask.prompt_tokens:
        return BookFault(f"request id {ask.request_id} was used before; ids are minted once")
    return Allow(_hold_of(row))


def _hold_of(row: Mapping[Any, Any]) -> Hold:
    over = [each for each in row["over"].split(",") if each]
    return Hold(
        request_id=row["request_id"],
        dims=usage.dims_of(row),
        price_id=row["price_id"],
        output_tokens=row["output_tokens"],
        amount_nano_usd=row["amount"],
        limited_by=row["limited_by"],
        over=tuple(each for each in over if not each.startswith(_SHADOW)),
        shadowed=tuple(each.removeprefix(_SHADOW) for each in over if each.startswith(_SHADOW)),
    )


def open_holds(conn: Connection) -> int:
    held = select(func.count()).select_from(_R).where(_R.c.state == HELD)
    return int(conn.execute(held).scalar_one())


def find(conn: Connection, request_id: str) -> Mapping[Any, Any] | None:
    return next(iter(_FIND.rows(conn, {"ids": [request_id]})), None)


def find_locked(conn: Connection, request_id: str) -> Mapping[Any, Any] | None:
    return next(iter(_FIND_LOCKED.rows(conn, {"ids": [request_id]})), None)


def charge_now(conn: Connection, row: Mapping[Any, Any]) -> Charge:
    """What stands against a reservation at present, estimated or not."""
    return postings.charges(conn, [row]).get(row["request_id"]) or Charge(row["price_id"], (), 0)
