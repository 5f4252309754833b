"""The scopes that limits and budgets hang on, and the one spelling of their ids.

Refuses to know: credentials' secrets, HTTP.  Buckets, leases and balances are all keyed by what is
spelt here, so two tenants' users of one name, or two issuers' subjects, can never share one.
Ids of more than one part are JSON arrays: unambiguous, whatever characters a claim holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from policies.facts import Budget, CredentialKind, Limits, Principal, Standing
from policies.tags import parse

SCOPES = ("key", "user", "project", "tenant")
"""Narrowest first.  Who asks is in one of each, or in none."""
TAG = "tag"
BUDGET_SCOPES = ("key", "user", "project", TAG, "tenant")
"""Those that budgets hang on, in the one order in which they are asked; of tags there may be several."""


@dataclass(frozen=True, slots=True)
class Dimensions:
    """What every cost is reported by.  `key_id` is None for tokens."""

    tenant: str
    project: str | None
    user: str
    issuer: str
    key_id: str | None
    model: str
    service_class: str | None


@dataclass(frozen=True, slots=True)
class ScopeLimits:
    """One scope's limits; `id` as `scope_id` spells it."""

    scope: str
    id: str
    limits: Limits


@dataclass(frozen=True, slots=True)
class BudgetAccount:
    """One scope's budget; `id` as `scope_id` spells it."""

    scope: str
    id: str
    budget: Budget


def dimensions(principal: Principal, model: str, service_class: str | None) -> Dimensions:
    assert principal.tenant  # access has refused the rest
    is_key = principal.credential.kind is CredentialKind.KEY
    return Dimensions(
        tenant=principal.tenant,
        project=principal.project,
        user=principal.user,
        issuer=principal.issuer,
        key_id=principal.credential.id if is_key else None,
        model=model,
        service_class=service_class,
    )


def scope_id(scope: str, dims: Dimensions) -> str | None:
    """None where these dimensions have no such scope (no key, no project)."""
    match scope:
        case "key":
            return dims.key_id
        case "user":
            return _spell(dims.tenant, dims.issuer, dims.user)
        case "project":
            return _spell(dims.tenant, dims.project) if dims.project else None
        case "tenant":
            return dims.tenant
    raise ValueError(f"no scope is named {scope!r}; there are {', '.join(SCOPES)}")


def scope_limits(standing: Standing, dims: Dimensions) -> tuple[ScopeLimits, ...]:
    """What tempo is asked with, narrowest first."""
    return tuple(
        ScopeLimits(scope, spelt, standing.limits[scope])
        for scope in SCOPES
        if scope in standing.limits and (spelt := scope_id(scope, dims)) is not None
    )


def budget_accounts(standing: Standing, dims: Dimensions) -> tuple[BudgetAccount, ...]:
    """What the book is asked with, narrowest first."""
    found = [
        BudgetAccount(scope, spelt, standing.budgets[scope])
        for scope in SCOPES
        if scope in standing.budgets and (spelt := scope_id(scope, dims)) is not None
    ]
    if standing.tag_budgets:
        found += [
            BudgetAccount(TAG, tag_account(dims.tenant, *parse(tag)), budget)
            for tag, budget in standing.tag_budgets.items()
        ]
        found.sort(key=in_order)
    return tuple(found)


def account_of(
    scope: str, tenant: str, issuer: str, name: str, budget: Budget
) -> BudgetAccount | None:
    """The one account that a budget is kept for; None for a user's at every issuer, which are many."""
    match scope:
        case "tenant":
            return BudgetAccount(scope, tenant, budget)
        case "project":
            return BudgetAccount(scope, _spell(tenant, name), budget)
        case "key":
            return BudgetAccount(scope, name, budget)
        case "tag":
            return BudgetAccount(scope, tag_account(tenant, *parse(name)), budget)
    return BudgetAccount(scope, _spell(tenant, issuer, name), budget) if issuer else None


def in_order(account: BudgetAccount) -> tuple[int, str]:
    """A key to sort by: narrowest first, and one order for everybody."""
    return BUDGET_SCOPES.index(account.scope), account.id


def tag_account(tenant: str, name: str, value: str) -> str:
    return _spell(tenant, name, value)


def tag_of(account: str) -> tuple[str, str, str]:
    """Tenant, name and value of what `tag_account` has spelt."""
    tenant, name, value = msgspec.json.decode(account, type=tuple[str, str, str])
    return tenant, name, value


def _spell(*parts: str) -> str:
    return msgspec.json.encode(parts).decode()
