"""Budgets on the admin listener: set and shown, topped up, and what is credited and refunded.

What is given is given once: `id` names it, and asked again it is answered as before.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

from gateway import views
from gateway.api.administration.call import Call
from gateway.api.administration.operations import Id, Note, knowing, permit
from gateway.api.wire import query
from gateway.errors import conflict, invalid, not_found
from gateway.settings.shape import BudgetMode, Share
from policies import access
from policies.facts import Budget
from policies.price import NANO_USD_MAX, in_usd
from tenants.adjustments import (
    AdjustAsk,
    Adjustment,
    AdjustmentRefused,
    IdTaken,
    Kind,
    NothingToRefund,
)
from tenants.directory import BudgetTarget
from tenants.scopes import BudgetAccount

Usd = Annotated[str, Meta(pattern=r"^[0-9]{1,10}(\.[0-9]{1,9})?$")]
Own = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")]
"""An id that the caller chose.  No slash: ids of the ledger's own have one."""
Why = Annotated[str, Meta(min_length=1, max_length=512)]


class BudgetAsk(msgspec.Struct, forbid_unknown_fields=True):
    tenant: Id
    usd: Usd
    scope: Id = "tenant"
    id: Id | None = None
    issuer: Id | None = None
    window: Id = "calendar_month"
    zone: Id = "UTC"
    hard: bool = True
    mode: BudgetMode | None = None
    notify_at: Annotated[list[Share], Meta(max_length=16)] | None = None
    till: bool = False
    reason: Note | None = None


async def set_budget(call: Call) -> object:
    ask = call.decode(BudgetAsk)
    permit(access.may_set_budget(call.who, ask.tenant, ask.scope))
    directory = knowing(call, ask.tenant)
    if ask.scope == "key":
        key = directory.key(ask.id or "")
        if key is None or key.tenant != ask.tenant:  # its balance would be shown, too
            raise not_found("There is no such key.")
    mode = ask.mode or (BudgetMode.HARD if ask.hard else BudgetMode.SOFT)
    budget = Budget(
        limit_nano_usd=views.nano_usd(ask.usd),
        window=ask.window,
        zone=ask.zone,
        hard=mode is BudgetMode.HARD,
        shadow=mode is BudgetMode.SHADOW,
        notify_at=tuple(ask.notify_at or ()),
        till=ask.till,
    )
    if ask.till and call.house.book.till is None:
        raise invalid(
            "till: there is nothing here to keep one in: it needs state.redis_url, and PostgreSQL.",
            param="till",
        )
    await directory.set_budget(
        views.target(ask.tenant, ask.scope, ask.id, ask.issuer),
        budget,
        reason=ask.reason or "",
        actor=call.actor,
    )
    await call.record("budget.set", tenant=ask.tenant, target=ask.scope, reason=None)
    set_ = {"tenant": ask.tenant, "scope": ask.scope, "id": ask.id, "limit_usd": ask.usd}
    return set_ if ask.issuer is None else set_ | {"issuer": ask.issuer}


async def budgets(call: Call) -> object:
    asked = query(call.scope, frozenset({"tenant"}))
    tenant = asked.get("tenant") or call.who.tenant
    permit(access.may_read_usage(call.who, tenant))
    if tenant is not None:
        knowing(call, tenant)
    # Which issuers there are is not told to tenants: they may be other customers'.
    configured = access.may_read_usage(call.who, None)
    return {"budgets": await views.budgets_view(call.house, tenant, configured=configured)}


class TopUpAsk(msgspec.Struct, forbid_unknown_fields=True):
    """`name` of the project, user or key; `issuer` of the user."""

    tenant: Id
    usd: Usd
    reason: Why
    scope: Id = "tenant"
    name: Id | None = None
    issuer: Id | None = None
    id: Own | None = None


class CreditAsk(msgspec.Struct, forbid_unknown_fields=True):
    tenant: Id
    usd: Usd
    reason: Why
    id: Own | None = None


class RefundAsk(msgspec.Struct, forbid_unknown_fields=True):
    tenant: Id
    request_id: Id
    usd: Usd
    reason: Why
    id: Own | None = None


async def top_up(call: Call) -> object:
    """Room in one budget, in the window of now."""
    permit(access.may_adjust(call.who))
    ask = call.decode(TopUpAsk)
    at = views.target(ask.tenant, ask.scope, ask.name, ask.issuer)
    directory = knowing(call, ask.tenant)
    if at.scope == "user" and not at.issuer:
        await _name_the_issuer(call, at, directory.budgets(ask.tenant))
    budget = directory.budget_of(at)
    return await _adjust(call, Kind.TOP_UP, ask, budget=budget)


async def _name_the_issuer(call: Call, at: BudgetTarget, budgets: Iterable[BudgetTarget]) -> None:
    """Raises ApiError 400 where there are budgets of this name: they are kept by issuer."""
    theirs = {each.issuer for each in budgets if (each.scope, each.name) == (at.scope, at.name)}
    if not theirs:
        return
    if "" in theirs:
        theirs.update(await views.issuers_of(call.house, at, configured=True))
    raise invalid(
        "Name the issuer too (--issuer): users of one name at two issuers are two people. There are: "
        + ", ".join(sorted(theirs - {""}))
        + ".",
        param="issuer",
    )


async def credit(call: Call) -> object:
    """Less of what a tenant owes."""
    permit(access.may_adjust(call.who))
    return await _adjust(call, Kind.CREDIT, call.decode(CreditAsk))


async def refund(call: Call) -> object:
    """Less of what one request was charged."""
    permit(access.may_adjust(call.who))
    ask = call.decode(RefundAsk)
    return await _adjust(call, Kind.REFUND, ask, request_id=ask.request_id)


async def adjustments(call: Call) -> object:
    asked = query(call.scope, frozenset({"tenant", "request_id"}))
    tenant = asked.get("tenant") or call.who.tenant
    permit(access.may_read_usage(call.who, tenant))
    if tenant is not None:
        knowing(call, tenant)
    found = await call.house.book.adjustments(tenant=tenant, request_id=asked.get("request_id"))
    return {"adjustments": [_view(each) for each in found]}


async def _adjust(
    call: Call,
    kind: Kind,
    ask: TopUpAsk | CreditAsk | RefundAsk,
    *,
    budget: BudgetAccount | None = None,
    request_id: str | None = None,
) -> object:
    knowing(call, ask.tenant)
    nano_usd = views.nano_usd(ask.usd)
    if not 0 < nano_usd < NANO_USD_MAX:
        raise invalid(
            f"usd: expected more than 0 and less than {in_usd(NANO_USD_MAX)}.", param="usd"
        )
    wanted = AdjustAsk(
        id=ask.id or f"adj_{secrets.token_hex(12)}",
        kind=kind,
        tenant=ask.tenant,
        nano_usd=nano_usd,
        actor=call.actor,
        reason=ask.reason,
        budget=budget,
        request_id=request_id,
    )
    try:
        done = await call.house.book.adjust(wanted)
    except NothingToRefund as why:
        raise not_found(f"{why}.") from why
    except IdTaken as why:
        raise conflict("id_taken", f"{why}.", param="id") from why
    except AdjustmentRefused as why:
        raise invalid(f"{why}.", param="usd") from why
    told = "repeat" if done.repeat else None
    await call.record(f"budget.{kind.value}", tenant=ask.tenant, target=done.made.id, reason=told)
    return _view(done.made) | {"repeat": done.repeat}


def _view(made: Adjustment) -> dict[str, object]:
    return {
        "id": made.id,
        "kind": made.kind.value,
        "tenant": made.tenant,
        "scope": made.scope,
        "account": made.account,
        "request_id": made.request_id,
        "usd": in_usd(made.nano_usd),
        "actor": made.actor,
        "reason": made.reason,
        "at": views.when(made.at_ms),
    }
