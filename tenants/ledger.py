"""What the book does, as plain functions over a `Connection`: hold, settle, void, expire.

Refuses to know: threads, event loops, where time comes from.  Every decision about an amount is
`policies.budget` and `policies.price`; every change of a balance is `windows`.
Source: MONEY.md §1 (states and invariants); TigerBeetle's pending, post and void.

    HELD → SETTLED                  billed on what was used; more than reserved is an entry of its own
    HELD → VOIDED                   nothing ran, nothing is billed
    HELD → EXPIRED → SETTLED        billed as reserved until the usage arrives, then corrected

Nothing is ever edited: each step appends transfers between a tenant's accounts (`available`, `held`,
`spend`) and usage lines, both unique by what they are, so that a step taken twice cannot count twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, func, insert, select, update

from policies import price as pricing
from policies.budget import fit
from policies.facts import Meters, Price
from policies.price import Charge, Line, Meter
from policies.verdict import Allow, Deny
from tenants import postings, schema, usage, windows
from tenants.postings import AVAILABLE, ESTIMATE, ON_HOLD, REVERSAL, SPEND, USAGE
from tenants.scopes import SCOPES, BudgetAccount, Dimensions, scope_id
from tenants.usage import UsageRecord

LEASE_S = 60
SWEEP_MOST = 1000
IDS_MOST = 500
"""Ids in one statement."""

HELD, SETTLED, VOIDED, EXPIRED = "HELD", "SETTLED", "VOIDED", "EXPIRED"

_R = schema.reservation


# Built once: putting a statement together costs more than running it.
_RESERVE = insert(_R)
_FIND = select(_R).where(_R.c.request_id == bindparam("request_id")).with_for_update()
_LEAVE = (
    update(_R)
    .where(_R.c.request_id == bindparam("of_request"), _R.c.state == bindparam("of_state"))
    .values(
        state=bindparam("to_state"),
        charge=bindparam("to_charge"),
        estimated=bindparam("to_estimated"),
        ended_at_ms=bindparam("now_ms"),
    )
)
_PRICE = select(schema.price).where(schema.price.c.id == bindparam("id"))

Row = Mapping[Any, Any]
"""A row of `reservation`, by column name."""


class BookFault(Exception):
    """The caller broke the book's rules: an id used twice, a price that changed.  Our mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldAsk:
    """`output_tokens` is wanted for each of `n` choices; `output_tokens_least` equals it where the
    client named the length, else is what makes an answer worth beginning.  `prompt_tokens` is
    billed once, however many choices.  `dispatched`: work may start as soon as the hold is durable,
    so a crash leaves it unknown; False where `mark_dispatched` will come between."""

    request_id: str
    dims: Dimensions
    budgets: tuple[BudgetAccount, ...]
    price: Price
    prompt_tokens: int
    output_tokens: int
    output_tokens_least: int
    n: int = 1
    lease_s: int = LEASE_S
    dispatched: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """What was reserved.  The executor stops at `output_tokens` for each choice.  `limited_by` is
    the scope whose budget cut it; `over` the soft budgets that are exceeded."""

    request_id: str
    dims: Dimensions
    price_id: str
    output_tokens: int
    amount_nano_usd: int
    limited_by: str | None = None
    over: tuple[str, ...] = ()

    @property
    def limited(self) -> bool:
        return self.limited_by is not None


@dataclass(frozen=True, slots=True)
class Settled:
    """`repeat`: it had ended before, and this is the first result.  `alarm`: more was used than
    reserved, or something was used that had been voided; a person should look."""

    charge: Charge
    repeat: bool = False
    alarm: bool = False


@dataclass(frozen=True, slots=True)
class Swept:
    """Request ids whose holds were resolved without their request's word."""

    expired: tuple[str, ...] = ()
    voided: tuple[str, ...] = ()


def hold(conn: Connection, ask: HoldAsk, *, owner: str, now_ms: int) -> Allow[Hold] | Deny:
    """Reserve at every ancestor or at none."""
    assert all(account.id == scope_id(account.scope, ask.dims) for account in ask.budgets)
    if (known := _find(conn, ask.request_id)) is not None:
        return Allow(_held_before(known, ask))
    keep_price(conn, ask.price)
    accounts = sorted(ask.budgets, key=lambda a: SCOPES.index(a.scope))
    opened = [windows.open_window(conn, account, now_ms // 1000) for account in accounts]
    verdict = fit(
        [each.account for each in opened],
        ask.price,
        ask.prompt_tokens,
        ask.output_tokens,
        ask.output_tokens_least,
        ask.n,
    )
    if isinstance(verdict, Deny):
        return verdict
    fitted = verdict.value
    row: dict[str, Any] = usage.dims_row(ask.dims)
    row.update(
        request_id=ask.request_id,
        user_account=scope_id("user", ask.dims),
        project_account=scope_id("project", ask.dims),
        price_id=ask.price.id,
        prompt_tokens=ask.prompt_tokens,
        output_tokens=fitted.output_tokens,
        n=ask.n,
        limited_by=fitted.limited_by,
        over=",".join(fitted.over),
        amount=fitted.amount_nano_usd,
        charge=0,
        state=HELD,
        estimated=False,
        dispatched=ask.dispatched,
        owner=owner,
        at_ms=now_ms,
        lease_until_ms=now_ms + ask.lease_s * 1000,
    )
    conn.execute(_RESERVE, row)
    windows.enter(conn, ask.request_id, opened, fitted.amount_nano_usd)
    postings.transfer(conn, row, "hold", AVAILABLE, ON_HOLD, fitted.amount_nano_usd, now_ms)
    return Allow(_hold_of(row))


def settle(
    conn: Connection, request_id: str, meters: Meters, record: UsageRecord | None, *, now_ms: int
) -> Settled:
    """Bill what was used, once.  BookFault if nothing was ever held under this id."""
    row = _get(conn, request_id)
    if row["state"] in {SETTLED, VOIDED}:
        used = row["state"] == VOIDED and meters != Meters()
        return Settled(postings.charge_of(conn, row), repeat=True, alarm=used)
    charge = pricing.charge(_price(conn, row["price_id"]), meters)
    _leave(conn, row, SETTLED, charge.total_nano_usd, now_ms)
    if row["state"] == HELD:
        _post(conn, row, charge.total_nano_usd, now_ms)
    else:
        _correct(conn, row, charge.total_nano_usd, now_ms)
    postings.lines(conn, row, USAGE, charge.lines, now_ms)
    if record is not None:
        usage.record(conn, record)
    return Settled(charge, alarm=charge.total_nano_usd > row["amount"])


def void(conn: Connection, request_id: str, record: UsageRecord | None, *, now_ms: int) -> bool:
    """Nothing ran: everything back.  A hold that expired meanwhile is corrected to nothing.
    False where there was nothing to void (never held, or ended before)."""
    row = _find(conn, request_id)
    if row is None or row["state"] in {SETTLED, VOIDED}:
        return False
    if row["state"] == EXPIRED:
        settle(conn, request_id, Meters(), record, now_ms=now_ms)
        return True
    _leave(conn, row, VOIDED, 0, now_ms)
    windows.move(conn, request_id, held=-row["amount"], spent=0)
    postings.transfer(conn, row, "void", ON_HOLD, AVAILABLE, row["amount"], now_ms)
    if record is not None:
        usage.record(conn, record)
    return True


def mark_dispatched(conn: Connection, request_id: str, *, now_ms: int) -> bool:
    """True: durable, work may start.  False: the hold is gone (its lease lapsed), it may not."""
    changed = conn.execute(
        update(_R)
        .where(_R.c.request_id == request_id, _R.c.state == HELD, _R.c.lease_until_ms > now_ms)
        .values(dispatched=True)
    )
    return changed.rowcount == 1


def renew(
    conn: Connection, request_ids: Sequence[str], *, lease_s: int, now_ms: int
) -> tuple[str, ...]:
    """Keep the leases of what still runs; returns the ids that are held no longer."""
    lost: list[str] = []
    for start in range(0, len(request_ids), IDS_MOST):
        ids = list(request_ids[start : start + IDS_MOST])
        held = _R.c.request_id.in_(ids), _R.c.state == HELD
        kept = set(conn.execute(select(_R.c.request_id).where(*held)).scalars())
        conn.execute(update(_R).where(*held).values(lease_until_ms=now_ms + lease_s * 1000))
        lost += [request_id for request_id in ids if request_id not in kept]
    return tuple(lost)


def sweep(conn: Connection, *, now_ms: int, most: int = SWEEP_MOST) -> Swept:
    """Resolve the holds whose lease has lapsed; call again while it finds `most`."""
    lapsed = select(_R).where(_R.c.state == HELD, _R.c.lease_until_ms <= now_ms)
    rows = conn.execute(lapsed.order_by(_R.c.lease_until_ms).limit(most)).mappings().all()
    windows.drop_old(conn, now_ms // 1000)
    return _resolve(conn, rows, now_ms)


def recover(conn: Connection, *, owner: str, now_ms: int) -> Swept:
    """After a restart: resolve every hold of a process that is no more.  Totals are taken anew: which
    budgets stand may have changed with the configuration."""
    windows.forget(conn)
    dead = select(_R).where(_R.c.state == HELD, _R.c.owner != owner)
    return _resolve(conn, conn.execute(dead).mappings().all(), now_ms)


def keep_price(conn: Connection, price: Price) -> None:
    """Prices are immutable: BookFault where this id was used with other numbers."""
    row = asdict(price) | {"batch_factor": repr(price.batch_factor)}
    known = conn.execute(_PRICE, {"id": price.id}).mappings().one_or_none()
    if known is None:
        conn.execute(insert(schema.price).values(row))
    elif dict(known) != row:
        raise BookFault(
            f"price {price.id!r} is already in effect with other numbers; "
            "leave it as it was and add a new one with a later date"
        )


def _resolve(conn: Connection, rows: Iterable[Row], now_ms: int) -> Swept:
    expired: list[str] = []
    voided: list[str] = []
    for row in rows:
        if row["dispatched"]:
            _expire(conn, row, now_ms)
            expired.append(row["request_id"])
        else:
            void(conn, row["request_id"], None, now_ms=now_ms)
            voided.append(row["request_id"])
    return Swept(tuple(expired), tuple(voided))


def _expire(conn: Connection, row: Row, now_ms: int) -> None:
    """Nobody knows what ran: what was reserved is billed for now, and marked as estimated."""
    amount = row["amount"]
    _leave(conn, row, EXPIRED, amount, now_ms)
    windows.move(conn, row["request_id"], held=-amount, spent=amount)
    postings.transfer(conn, row, "expire", ON_HOLD, SPEND, amount, now_ms)
    price = _price(conn, row["price_id"])
    prompt = pricing.worst_case_input(price, row["prompt_tokens"])
    lines = (
        Line(Meter.INPUT, row["prompt_tokens"], pricing.dearest_input(price), prompt),
        Line(Meter.OUTPUT, row["output_tokens"] * row["n"], price.output, amount - prompt),
    )
    postings.lines(conn, row, ESTIMATE, lines, now_ms)


def _post(conn: Connection, row: Row, charge: int, now_ms: int) -> None:
    """From held to spend, the rest back; what exceeds the reservation is an entry of its own."""
    amount = row["amount"]
    windows.move(conn, row["request_id"], held=-amount, spent=charge)
    postings.transfer(conn, row, "settle", ON_HOLD, SPEND, min(charge, amount), now_ms)
    postings.transfer(conn, row, "release", ON_HOLD, AVAILABLE, amount - charge, now_ms)
    postings.transfer(conn, row, "overrun", AVAILABLE, SPEND, charge - amount, now_ms)


def _correct(conn: Connection, row: Row, charge: int, now_ms: int) -> None:
    """The usage of an expired hold has arrived: replace the estimate by it."""
    provisional = row["charge"]
    windows.move(conn, row["request_id"], held=0, spent=charge - provisional)
    postings.transfer(conn, row, "correct", SPEND, AVAILABLE, provisional - charge, now_ms)
    postings.transfer(conn, row, "overrun", AVAILABLE, SPEND, charge - provisional, now_ms)
    back = tuple(
        Line(line.meter, -line.tokens, line.unit_price, -line.nano_usd)
        for line in postings.charge_of(conn, row, ESTIMATE).lines
    )
    postings.lines(conn, row, REVERSAL, back, now_ms)


def _leave(conn: Connection, row: Row, state: str, charge: int, now_ms: int) -> None:
    """The state guard: of two that end one reservation, the second finds it changed."""
    guarded = {
        "of_request": row["request_id"],
        "of_state": row["state"],
        "to_state": state,
        "to_charge": charge,
        "to_estimated": state == EXPIRED,
        "now_ms": now_ms,
    }
    changed = conn.execute(_LEAVE, guarded)
    if changed.rowcount != 1:
        raise BookFault(f"reservation {row['request_id']} was ended by somebody else meanwhile")


def charge_now(conn: Connection, row: Row) -> Charge:
    """What stands against a reservation at present, estimated or not."""
    return postings.charge_of(conn, row, ESTIMATE if row["state"] == EXPIRED else USAGE)


def open_holds(conn: Connection) -> int:
    held = select(func.count()).select_from(_R).where(_R.c.state == HELD)
    return int(conn.execute(held).scalar_one())


def find(conn: Connection, request_id: str) -> Row | None:
    return _find(conn, request_id)


def _find(conn: Connection, request_id: str) -> Row | None:
    return conn.execute(_FIND, {"request_id": request_id}).mappings().one_or_none()


def _get(conn: Connection, request_id: str) -> Row:
    row = _find(conn, request_id)
    if row is None:
        raise BookFault(f"nothing was ever held under {request_id}")
    return row


def _price(conn: Connection, price_id: str) -> Price:
    row: dict[str, Any] = dict(conn.execute(_PRICE, {"id": price_id}).mappings().one())
    return Price(**row | {"batch_factor": float(row["batch_factor"])})


def _held_before(row: Row, ask: HoldAsk) -> Hold:
    """A repeated hold hears the first answer; an id for something else is our mistake."""
    same = usage.dims_of(row) == ask.dims and row["price_id"] == ask.price.id
    if not same or row["state"] != HELD or row["prompt_tokens"] != ask.prompt_tokens:
        raise BookFault(f"request id {ask.request_id} was used before; ids are minted once")
    return _hold_of(row)


def _hold_of(row: Row) -> Hold:
    return Hold(
        request_id=row["request_id"],
        dims=usage.dims_of(row),
        price_id=row["price_id"],
        output_tokens=row["output_tokens"],
        amount_nano_usd=row["amount"],
        limited_by=row["limited_by"],
        over=tuple(filter(None, row["over"].split(","))),
    )
