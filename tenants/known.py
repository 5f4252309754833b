"""What the directory knows, in memory: the configuration and everything that was set on top.

Refuses to know: SQL, event loops, who is told.  Source: DESIGN.md, settled question 19; SECURITY.md P6.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import replace

from policies.budget import WindowKind, window_at
from policies.facts import Budget, CredentialKind, Limits, Principal, Standing
from policies.price import NANO_USD_MAX
from policies.tags import parse, spelt
from policies.till import NANO_USD_BELOW
from policies.verdict import Deny, Reason
from tenants.config import NO_LIMITS, DirectoryConfig, PlanConfig, TenantConfig
from tenants.directory_rows import BudgetTarget, KeyRecord, RevocationKind, Revoked, Snapshot
from tenants.scopes import BUDGET_SCOPES, TAG, BudgetAccount, account_of
from tenants.windows import zone_of

SUSPENDED = "tenant_suspended"

_Place = tuple[RevocationKind, str, str, str]
"""Kind, tenant, issuer, value."""


class DirectoryFault(Exception):
    """What was asked for cannot be done; says what was wrong and what there is."""


class Known:
    """Reads never wait.  Written only by `Directory`, on its event loop.  `tombstone`: by which the name of a tenant
    that was deleted is known; configured or not, there is no such tenant."""

    def __init__(
        self, config: DirectoryConfig, kept: Snapshot, tombstone: Callable[[str], str] = str
    ) -> None:
        self._deleted, self._tombstone = kept.deleted, tombstone
        self.configure(config)
        self.keys: dict[str, KeyRecord] = {}
        self.by_digest: dict[bytes, str] = {}
        self.revoked: dict[_Place, Revoked] = {}
        self._lapsing: list[tuple[int, _Place]] = []
        self.suspended = set(kept.suspended)
        self.budgets = dict(kept.budgets)
        for key in kept.keys:
            self.see_key(key)
        for revoked in kept.revoked:
            self.see_revoked(revoked)

    def configure(self, config: DirectoryConfig) -> None:
        """`left_out`: those of it that were deleted."""
        self.left_out = tuple(name for name in config.tenants if self.is_deleted(name))
        living = {name: of for name, of in config.tenants.items() if name not in self.left_out}
        self.config = replace(config, tenants=living) if self.left_out else config

    def is_deleted(self, tenant: str) -> bool:
        return bool(self._deleted) and self._tombstone(tenant) in self._deleted

    def standing(self, principal: Principal) -> Standing | Deny:
        """What this principal may do, or NO_TENANT, TENANT_UNKNOWN, TENANT_SUSPENDED."""
        if not principal.tenant:
            return Deny(Reason.NO_TENANT)
        tenant = self.config.tenants.get(principal.tenant)
        if tenant is None:
            return Deny(Reason.TENANT_UNKNOWN)
        if principal.tenant in self.suspended:
            return Deny(Reason.TENANT_SUSPENDED)
        plan = self.config.plans[tenant.plan]
        return Standing(
            tenant=principal.tenant,
            suspended=False,
            models=frozenset(plan.models),
            classes=plan.classes,
            weight=plan.weight,
            limits=self._limits(principal, tenant, plan),
            budgets=self._budgets_of(principal, tenant, plan),
            tag_budgets=self._tag_budgets(principal, tenant) if principal.tags else {},
        )

    def is_revoked(
        self,
        *,
        key_id: str | None,
        token_id: str | None,
        issuer: str,
        subject: str,
        tenant: str | None,
        issued_at_s: int | None,
        now_s: int,
    ) -> str | None:
        """None where the credential stands, else a word for what was withdrawn, the credential
        before its tenant (`tenant_suspended`).  A credential of unknown age counts as old."""
        within = tenant or ""
        if key_id is not None:
            key = self.keys.get(key_id)
            if key is None or key.revoked:
                return "key_revoked"
            if key.expires_at_s is not None and key.expires_at_s <= now_s:
                return "key_expired"
            issued_at_s = key.created_at_s if issued_at_s is None else issued_at_s
        if token_id is not None and any(
            (RevocationKind.TOKEN, where, by, token_id) in self.revoked
            for where in {within, ""}
            for by in {issuer, ""}
        ):
            return "token_revoked"
        for where in {within, ""}:  # an operator may name no tenant: then it holds in every one
            person = self.revoked.get((RevocationKind.SUBJECT, where, issuer, subject))
            if person is not None and (issued_at_s is None or issued_at_s <= person.at_s):
                return "subject_revoked"
        return SUSPENDED if within in self.suspended else None

    def see_key(self, key: KeyRecord) -> None:
        self.keys[key.id] = key
        self.by_digest[key.digest] = key.id

    def see_revoked(self, revoked: Revoked) -> None:
        """Also forget those that have lapsed, without looking at the others: an administrator may
        revoke as often as they like, and everybody waits for this."""
        while self._lapsing and self._lapsing[0][0] <= revoked.at_s:
            until_s, place = heapq.heappop(self._lapsing)
            if (known := self.revoked.get(place)) is not None and known.until_s == until_s:
                del self.revoked[place]
        place = revoked.kind, revoked.tenant, revoked.issuer, revoked.value
        known = self.revoked.get(place)
        self.revoked[place] = revoked
        if known is None or known.until_s != revoked.until_s:
            heapq.heappush(self._lapsing, (revoked.until_s, place))
        if len(self._lapsing) > 2 * len(self.revoked) + 64:  # one revoked anew, again and again
            self._lapsing = [(each.until_s, at) for at, each in self.revoked.items()]
            heapq.heapify(self._lapsing)

    def _limits(
        self, principal: Principal, tenant: TenantConfig, plan: PlanConfig
    ) -> dict[str, Limits]:
        limits = {"user": plan.user_limits, "tenant": plan.limits}
        project = tenant.projects.get(principal.project or "")
        if project is not None:
            limits["project"] = project.limits
        if principal.credential.kind is CredentialKind.KEY:
            key = self.keys.get(principal.credential.id or "")
            limits["key"] = (key.limits if key else None) or plan.key_limits
        return {scope: limit for scope, limit in limits.items() if limit != NO_LIMITS}

    def _budgets_of(
        self, principal: Principal, tenant: TenantConfig, plan: PlanConfig
    ) -> dict[str, Budget]:
        name = principal.tenant or ""
        project = tenant.projects.get(principal.project or "")
        found = {
            "tenant": self.budgets.get(BudgetTarget(name)) or plan.budget,
            "user": self.budgets.get(BudgetTarget(name, "user", principal.user, principal.issuer))
            or self.budgets.get(BudgetTarget(name, "user", principal.user)),
        }
        if principal.project:
            own = self.budgets.get(BudgetTarget(name, "project", principal.project))
            found["project"] = own or (project.budget if project else None)
        if principal.credential.kind is CredentialKind.KEY:
            found["key"] = self.budgets.get(
                BudgetTarget(name, "key", principal.credential.id or "")
            )
        return {scope: budget for scope, budget in found.items() if budget is not None}

    def _tag_budgets(self, principal: Principal, tenant: TenantConfig) -> dict[str, Budget]:
        found = {}
        for tag in (spelt(name, value) for name, value in principal.tags):
            own = self.budgets.get(BudgetTarget(principal.tenant or "", TAG, tag))
            if (budget := own or tenant.tags.get(tag)) is not None:
                found[tag] = budget
        return found

    def budgets_of_tenant(self, tenant: str) -> dict[BudgetTarget, Budget]:
        """Every budget that stands in a tenant: configured, and what operators set instead."""
        of = self.config.tenants[tenant]
        standing: dict[BudgetTarget, Budget] = {}
        if (plan := self.config.plans[of.plan]).budget is not None:
            standing[BudgetTarget(tenant)] = plan.budget
        for name, project in of.projects.items():
            if project.budget is not None:
                standing[BudgetTarget(tenant, "project", name)] = project.budget
        for tag, budget in of.tags.items():
            standing[BudgetTarget(tenant, TAG, tag)] = budget
        return standing | {at: set_ for at, set_ in self.budgets.items() if at.tenant == tenant}


def account_under(budgets: Mapping[BudgetTarget, Budget], at: BudgetTarget) -> BudgetAccount | str:
    """The one account that is kept for a budget, or why there is none.  A user's budget may hold at every
    issuer; its accounts are one a person."""
    found = budgets.get(at) or budgets.get(replace(at, issuer=""))
    if found is None:
        return f"no budget is set for this {at.scope}; 'lockgate budget set' makes one"
    if account := account_of(at.scope, at.tenant, at.issuer, at.name, found):
        return account
    return "name the issuer too: users of one name at two issuers are two people"


def budget_fault(target: BudgetTarget, budget: Budget | None) -> str | None:
    """What keeps this from being a budget."""
    if target.scope not in BUDGET_SCOPES:
        return f"no scope is named {target.scope!r}; there are {', '.join(BUDGET_SCOPES)}"
    if (target.scope == "tenant") == bool(target.name):
        return "a budget names its project, user, key or tag; a tenant's names none"
    if target.scope == TAG:
        try:
            parse(target.name)
        except ValueError as why:
            return str(why)
    if target.issuer and target.scope != "user":
        return "only a user's budget names an issuer"
    if budget is None:
        return None
    if budget.till and (fault := _till_fault(budget)):
        return fault
    if budget.hard and budget.shadow:
        return "a budget that refuses is no shadow"
    if list(budget.notify_at) != sorted(set(budget.notify_at)):
        return "notify_at is rising"
    if not 0 <= budget.limit_nano_usd < NANO_USD_MAX:
        return f"a budget is within 0 and {NANO_USD_MAX} nano-USD"
    try:
        window_at(budget, 0, zone_of(budget))
    except (ValueError, KeyError, OSError):
        return (
            f"window {budget.window!r} in zone {budget.zone!r} cannot be counted; expected "
            "calendar_month, calendar_week, calendar_day, rolling_24h or total, and an IANA zone"
        )
    return None


def _till_fault(budget: Budget) -> str | None:
    if not budget.hard:
        return "a till is for a budget that refuses; a soft or shadow one has none"
    if budget.window == WindowKind.ROLLING_24H:
        return "a rolling window has no till: what it has left changes by itself"
    if budget.limit_nano_usd >= NANO_USD_BELOW:
        return f"a till is for less than {NANO_USD_BELOW} nano-USD a window, which Redis can count"
    return None
