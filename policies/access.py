"""Who may do what: deny by default, forbid wins, and a policy that fails denies.

Refuses to know: how identity was established, where standings come from.
Source: Cedar's evaluation (permit, forbid, reasons), except that there a forbid that fails is
skipped; here it denies.  DESIGN.md, settled questions 7 and 11.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from policies.facts import Ask, Principal, Role, Standing
from policies.verdict import Allow, Deny, Reason

DEFAULT_CLASS = "interactive"

Forbid = Callable[[Principal, Standing, Ask], Reason | None]


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose something is.  Equal users of two issuers are two people."""

    tenant: str
    issuer: str
    user: str


def authorize(principal: Principal, standing: Standing, ask: Ask) -> Allow[str] | Deny:
    """The service class to serve `ask` in, or why not.  All forbids are heard before any permit."""
    try:
        for forbid in FORBIDS:
            if reason := forbid(principal, standing, ask):
                return Deny(reason)
        if ask.model not in standing.models:
            return Deny(Reason.MODEL_NOT_FOUND)
        return Allow(class_of(principal, standing, ask.service_class))
    except Exception:  # noqa: BLE001 — whatever went wrong in deciding, the answer is no
        return Deny(Reason.POLICY_ERROR)


def _no_tenant(principal: Principal, standing: Standing, ask: Ask) -> Reason | None:
    return None if principal.tenant else Reason.NO_TENANT


def _foreign_standing(principal: Principal, standing: Standing, ask: Ask) -> Reason | None:
    return None if principal.tenant == standing.tenant else Reason.FORBIDDEN


def _suspended(principal: Principal, standing: Standing, ask: Ask) -> Reason | None:
    return Reason.TENANT_SUSPENDED if standing.suspended else None


def _class_outside_plan(principal: Principal, standing: Standing, ask: Ask) -> Reason | None:
    allowed = class_of(principal, standing, ask.service_class) in standing.classes
    return None if allowed else Reason.CLASS_FORBIDDEN


def _class_outside_credential(principal: Principal, standing: Standing, ask: Ask) -> Reason | None:
    """A credential that names a class is bound to it."""
    bound = principal.service_class
    escapes = bound is not None and ask.service_class not in {None, bound}
    return Reason.CLASS_FORBIDDEN if escapes else None


FORBIDS: tuple[Forbid, ...] = (
    _no_tenant,
    _foreign_standing,
    _suspended,
    _class_outside_credential,
    _class_outside_plan,
)


def class_of(principal: Principal, standing: Standing, asked: str | None) -> str:
    """What was asked for, else the credential's, else interactive, else the plan's first."""
    named = asked or principal.service_class
    if named is not None:
        return named
    if DEFAULT_CLASS in standing.classes or not standing.classes:
        return DEFAULT_CLASS
    return standing.classes[0]


# Roles.  An operator belongs to no tenant: an operator's role beside a tenant counts for nothing,
# so that no tenant's identity provider can mint one.


def _operates(principal: Principal, *roles: Role) -> bool:
    return principal.tenant is None and not principal.roles.isdisjoint(roles)


def _within(principal: Principal, tenant: str, *roles: Role) -> bool:
    return bool(tenant) and principal.tenant == tenant and not principal.roles.isdisjoint(roles)


def may_operate(principal: Principal) -> bool:
    return _operates(principal, Role.OPERATOR)


def may_administer(principal: Principal, tenant: str) -> bool:
    """Keys, projects, requests' metadata of one tenant."""
    return may_operate(principal) or _within(principal, tenant, Role.TENANT_ADMIN)


def may_read_usage(principal: Principal, tenant: str | None) -> bool:
    """Tokens and money of one tenant; None: of all."""
    if _operates(principal, Role.OPERATOR, Role.OPERATOR_FINANCE):
        return True
    return tenant is not None and _within(principal, tenant, Role.TENANT_ADMIN, Role.FINANCE)


def may_read_cost(principal: Principal) -> bool:
    """Device time and margin are the operator's (settled question 5)."""
    return _operates(principal, Role.OPERATOR, Role.OPERATOR_FINANCE)


def may_close_period(principal: Principal) -> bool:
    """Close a month, of all tenants at once, and check what was closed."""
    return _operates(principal, Role.OPERATOR, Role.OPERATOR_FINANCE)


def may_set_budget(principal: Principal, tenant: str, scope: str) -> bool:
    """A tenant's administrator divides the tenant's budget; only an operator sets that itself."""
    if _operates(principal, Role.OPERATOR, Role.OPERATOR_FINANCE):
        return True
    return scope != "tenant" and _within(principal, tenant, Role.TENANT_ADMIN)


def may_adjust(principal: Principal) -> bool:
    """Top up, credit, refund: an operator gives money, and no tenant gives it to itself."""
    return _operates(principal, Role.OPERATOR, Role.OPERATOR_FINANCE)


def may_revoke(principal: Principal, tenant: str) -> bool:
    """Keys, tokens and subjects of one tenant."""
    if _operates(principal, Role.OPERATOR, Role.OPERATOR_SECURITY):
        return True
    return _within(principal, tenant, Role.TENANT_ADMIN)


def may_suspend(principal: Principal) -> bool:
    return _operates(principal, Role.OPERATOR, Role.OPERATOR_SECURITY)


def may_delete_tenant(principal: Principal) -> bool:
    """Take all of a tenant's rows out, money and people, and destroy what hangs on it."""
    return may_operate(principal)


def may_audit(principal: Principal) -> bool:
    return _operates(principal, Role.OPERATOR, Role.OPERATOR_SECURITY)


def may_keep_secrets(principal: Principal) -> bool:
    """Rotate and destroy what tenants' texts hang on, and the roots above it."""
    return _operates(principal, Role.OPERATOR, Role.OPERATOR_SECURITY)


class CacheAct(Enum):
    """What one may ask of the cache from outside.  Reading stands here to be refused: what is kept is
    found by a request that its label covers, or by nobody."""

    LIST = "list"
    PURGE = "purge"
    READ = "read"


def may_on_cache(principal: Principal, act: CacheAct, tenant: str | None) -> bool:
    """Of one tenant; None: of all.  How much is kept is metadata, which a tenant's administrator sees and
    removes as it does keys."""
    if act is CacheAct.READ:
        return False
    if _operates(principal, Role.OPERATOR, Role.OPERATOR_SECURITY):
        return True
    return tenant is not None and _within(principal, tenant, Role.TENANT_ADMIN)


def may_read_request(principal: Principal, owner: Owner) -> bool:
    """The stages and price of a request: its owner, or the administrator of the owner's tenant."""
    if owner == Owner(principal.tenant or "", principal.issuer, principal.user):
        return bool(owner.tenant)
    return _within(principal, owner.tenant, Role.TENANT_ADMIN)
