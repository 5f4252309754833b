"""Who exists and what they may do now: configuration, and what operators changed while running.

Reads are from memory and never wait.  A change is durable in SQL first, then visible here at once,
then told to whoever subscribed, so that running streams can be ended.
Refuses to know: how credentials are checked, what a decision is (access).
Source: DESIGN.md, settled questions 7, 9 and 19; SECURITY.md P6.  Not loaded, it knows nothing and
says so by raising: what cannot be known is not allowed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from policies.facts import Budget, Principal, Standing
from policies.verdict import Deny, Reason
from tenants import directory_rows as rows
from tenants.changes import Change, ChangeKind, Listeners
from tenants.config import DirectoryConfig, PlanConfig, ProjectConfig, TenantConfig
from tenants.directory_rows import BudgetTarget, KeyRecord, RevocationKind, Revoked
from tenants.epochs import Epochs
from tenants.known import DirectoryFault, Known, account_under, budget_fault
from tenants.scopes import BudgetAccount
from tenants.store import Store

__all__ = [
    "BudgetTarget",
    "Change",
    "ChangeKind",
    "Directory",
    "DirectoryConfig",
    "DirectoryFault",
    "KeyRecord",
    "PlanConfig",
    "ProjectConfig",
    "TenantConfig",
]


class Directory:
    """`clock_s` is wall time.  `epochs`: by which other gateways hear of it, and it of theirs.  `tombstone`: of a name."""

    def __init__(
        self,
        config: DirectoryConfig,
        store: Store,
        *,
        clock_s: Callable[[], float],
        epochs: Epochs | None = None,
        tombstone: Callable[[str], str] = str,
    ) -> None:
        self._tombstone = tombstone
        self._epochs = epochs
        self._generation = self._written = 0
        self._config, self._store = config, store
        self._clock_s = clock_s
        self._kept: Known | None = None
        self._listeners = Listeners()
        self._changing: set[asyncio.Task[None]] = set()

    async def load(self) -> None:
        """Once at start, before anybody asks."""
        now_s = self._now_s()
        await self._store.write(lambda conn: rows.prune(conn, now_s=now_s))
        with suppress(IntegrityError):
            await self._store.write(rows.begin)
        await self.refresh()

    async def refresh(self) -> None:
        """What other gateways have changed, if anything, becomes visible and is told.  StoreUnavailable."""
        if self._kept and await self._store.read(rows.generation) == self._generation:
            return
        config = self._kept.config if self._kept else self._config
        generation, known = await self._store.read(  # the number first
            lambda conn: (rows.generation(conn), Known(config, rows.load(conn), self._tombstone))
        )
        if generation < self._written:
            return  # older than a change of ours that is visible: the next look finds a newer one
        known.configure(self._kept.config if self._kept else config)  # reloaded meanwhile
        self._kept, self._generation = known, generation
        self._listeners.publish(Change(ChangeKind.LEARNED, ""))

    # What is so now.

    def standing(self, principal: Principal) -> Standing | Deny:
        """What this principal may do, or NO_TENANT, TENANT_UNKNOWN, TENANT_SUSPENDED, POLICY_STALE."""
        if self._epochs is not None and self._epochs.stale():
            return Deny(Reason.POLICY_STALE)
        return self._known.standing(principal)

    def is_revoked(
        self,
        *,
        key_id: str | None,
        token_id: str | None,
        issuer: str,
        subject: str,
        tenant: str | None,
        issued_at_s: int | None,
    ) -> str | None:
        """None where the credential stands, else a word for what was withdrawn, the credential
        before its tenant (`tenant_suspended`).  A credential of unknown age counts as old."""
        return self._known.is_revoked(
            key_id=key_id,
            token_id=token_id,
            issuer=issuer,
            subject=subject,
            tenant=tenant,
            issued_at_s=issued_at_s,
            now_s=self._now_s(),
        )

    async def find(self, digest: bytes) -> KeyRecord | None:
        """The key of exactly this digest, revoked or not.  From memory; async, since a directory of
        many processes will have to ask."""
        key_id = self._known.by_digest.get(digest)
        return None if key_id is None else self._known.keys[key_id]

    def key(self, key_id: str) -> KeyRecord | None:
        return self._known.keys.get(key_id)

    def list_keys(self, tenant: str) -> tuple[KeyRecord, ...]:
        """Oldest first, revoked ones included."""
        mine = (key for key in self._known.keys.values() if key.tenant == tenant)
        return tuple(sorted(mine, key=lambda key: (key.created_at_s, key.id)))

    def tenants(self) -> dict[str, bool]:
        """Every configured tenant, and whether it is suspended."""
        return {name: name in self._known.suspended for name in sorted(self._known.config.tenants)}

    def is_deleted(self, tenant: str) -> bool:
        """For good, whatever configuration says."""
        return self._known.is_deleted(tenant)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Configured, and deleted."""
        return self._known.left_out

    def plan_of(self, tenant: str) -> str:
        """The name of its plan.  Raises DirectoryFault for an unknown tenant."""
        self._tenant(tenant)
        return self._known.config.tenants[tenant].plan

    def classes_of(self, tenant: str) -> tuple[str, ...]:
        return self._known.config.plans[self.plan_of(tenant)].classes

    def room_of(self, tenant: str) -> tuple[int | None, int | None]:
        """How many registered texts, and tokens in all of them, its plan allows."""
        plan = self._known.config.plans[self.plan_of(tenant)]
        return plan.documents, plan.document_tokens

    def budgets(self, tenant: str) -> dict[BudgetTarget, Budget]:
        """Every budget that stands in a tenant.  Raises DirectoryFault for an unknown one."""
        self._tenant(tenant)
        return self._known.budgets_of_tenant(tenant)

    def budget_of(self, at: BudgetTarget) -> BudgetAccount:
        """The account that is kept for one budget.  Raises DirectoryFault where there is none."""
        found = account_under(self.budgets(at.tenant), at)
        if isinstance(found, str):
            raise DirectoryFault(found)
        return found

    # What operators change.  `actor` and `reason` are kept for good.

    async def add_key(self, key: KeyRecord, *, actor: str, reason: str = "") -> None:
        self._tenant(key.tenant)
        if key.id in self._known.keys or key.digest in self._known.by_digest:
            raise DirectoryFault(f"key {key.id} exists already; mint another")
        change = Change(ChangeKind.KEY_ADDED, key.tenant, key.id)
        await self._change(
            lambda conn: rows.add_key(conn, key),
            lambda: self._known.see_key(key),
            change,
            actor,
            reason,
        )

    async def rotate_key(
        self,
        key_id: str,
        *,
        new_id: str,
        new_digest: bytes,
        grace_s: int = 0,
        actor: str,
        reason: str = "",
    ) -> KeyRecord:
        """A new secret for the same rights, as long a life and the same budget, with what was spent of
        it (`windows` counts a key's predecessors); the old one ends after `grace_s`."""
        old = self._key(key_id)
        now_s = self._now_s()
        if old.revoked or (old.expires_at_s is not None and old.expires_at_s <= now_s):
            raise DirectoryFault(f"key {key_id} has ended; create a new one instead")
        if new_id in self._known.keys or new_digest in self._known.by_digest:
            raise DirectoryFault(f"key {new_id} exists already; mint another")
        new, ending = old.rotated(new_id, new_digest, now_s=now_s, grace_s=grace_s)
        mine = BudgetTarget(old.tenant, "key", new_id)
        budget = self._known.budgets.get(replace(mine, name=key_id))

        def op(conn: Connection) -> None:
            rows.add_key(conn, new)
            rows.put_key(conn, ending)
            rows.set_budget(conn, mine, budget)

        def see() -> None:
            if budget is not None:
                self._known.budgets[mine] = budget
            self._known.see_key(new)
            self._known.see_key(ending)

        change = Change(ChangeKind.KEY_ROTATED, old.tenant, key_id)
        await self._change(op, see, change, actor, reason, detail=new_id)
        return new

    async def revoke_key(self, key_id: str, *, actor: str, reason: str = "") -> None:
        """For good.  A key that is revoked already stays as it is."""
        key = self._key(key_id)
        if key.revoked:
            return
        gone = replace(key, revoked_at_s=self._now_s())
        change = Change(ChangeKind.KEY_REVOKED, key.tenant, key_id)
        await self._change(
            lambda conn: rows.put_key(conn, gone),
            lambda: self._known.see_key(gone),
            change,
            actor,
            reason,
        )

    async def revoke_token(
        self,
        token_id: str,
        *,
        issuer: str = "",
        tenant: str = "",
        expires_at_s: int | None = None,
        actor: str,
        reason: str = "",
    ) -> None:
        """One token by its `jti`.  Without an issuer or tenant: whoever's it is."""
        now_s = self._now_s()
        until_s = now_s + rows.REVOCATION_KEPT_S
        if expires_at_s is not None:
            until_s = min(until_s, expires_at_s + rows.EXPIRY_SLACK_S)
        revoked = Revoked(RevocationKind.TOKEN, tenant, issuer, token_id, now_s, until_s)
        await self._revoke(revoked, ChangeKind.TOKEN_REVOKED, actor, reason)

    async def revoke_subject(
        self, *, tenant: str, issuer: str, subject: str, actor: str, reason: str = ""
    ) -> None:
        """Every token of a person that was issued up to this second."""
        now_s = self._now_s()
        until_s = now_s + rows.REVOCATION_KEPT_S
        revoked = Revoked(RevocationKind.SUBJECT, tenant, issuer, subject, now_s, until_s)
        await self._revoke(revoked, ChangeKind.SUBJECT_REVOKED, actor, reason)

    async def suspend(self, tenant: str, *, actor: str, reason: str = "") -> None:
        self._tenant(tenant)
        now_s = self._now_s()
        await self._change(
            lambda conn: rows.suspend(conn, tenant, at_s=now_s, actor=actor, reason=reason),
            lambda: self._known.suspended.add(tenant),
            Change(ChangeKind.TENANT_SUSPENDED, tenant, tenant),
            actor,
            reason,
        )

    async def resume(self, tenant: str, *, actor: str, reason: str = "") -> None:
        self._tenant(tenant)
        await self._change(
            lambda conn: rows.resume(conn, tenant),
            lambda: self._known.suspended.discard(tenant),
            Change(ChangeKind.TENANT_RESUMED, tenant, tenant),
            actor,
            reason,
        )

    async def set_budget(
        self, target: BudgetTarget, budget: Budget | None, *, actor: str, reason: str
    ) -> None:
        """In place of what configuration says; None: as configured again."""
        self._tenant(target.tenant)
        if fault := budget_fault(target, budget):
            raise DirectoryFault(fault)

        def see() -> None:
            self._known.budgets.pop(target, None)
            if budget is not None:
                self._known.budgets[target] = budget

        change = Change(ChangeKind.BUDGET_SET, target.tenant, f"{target.scope}:{target.name}")
        await self._change(
            lambda conn: rows.set_budget(conn, target, budget),
            see,
            change,
            actor,
            reason,
            detail=repr(budget),
        )

    async def note(
        self, kind: ChangeKind, *, tenant: str, subject: str, actor: str, reason: str
    ) -> None:
        """Who is about to do what is none of ours to do, and why.  `tenant` "": to all."""
        change = Change(kind, tenant, subject)
        await self._change(lambda _: None, lambda: None, change, actor, reason)

    def configure(self, config: DirectoryConfig) -> None:
        """A reloaded configuration takes effect at once; what operators set stays on top."""
        self._known.configure(config)
        self._listeners.publish(Change(ChangeKind.CONFIGURED, ""))

    def subscribe(self, listener: Callable[[Change], None]) -> Callable[[], None]:
        """Called on the event loop after each change; returns how to stop."""
        return self._listeners.subscribe(listener)

    # How.

    async def _revoke(self, revoked: Revoked, kind: ChangeKind, actor: str, reason: str) -> None:
        await self._change(
            lambda conn: rows.revoke(conn, revoked, actor=actor, reason=reason),
            lambda: self._known.see_revoked(revoked),
            Change(kind, revoked.tenant, revoked.value),
            actor,
            reason,
        )

    async def _change(
        self,
        op: Callable[[Connection], None],
        see: Callable[[], object],
        change: Change,
        actor: str,
        reason: str,
        detail: str = "",
    ) -> None:
        """Durable, visible, told, in this order, and all three even if the caller goes away."""
        assert self._known  # raises where it is not loaded, before anything is written
        at_s = self._now_s()

        def write(conn: Connection) -> int:
            op(conn)
            rows.note(
                conn,
                at_s=at_s,
                tenant=change.tenant,
                kind=change.kind.value,
                subject=change.subject,
                detail=detail,
                actor=actor,
                reason=reason,
            )
            return rows.count_up(conn)

        async def run() -> None:
            try:
                generation = await self._store.write(write)
            except IntegrityError as why:
                raise DirectoryFault(f"{change.subject} exists already") from why
            see()
            self._written = max(self._written, generation)
            if generation == self._generation + 1:  # else another's lies between, still to be read
                self._generation = generation
            if self._epochs is not None:
                self._epochs.changed()
            self._listeners.publish(change)

        task = asyncio.get_running_loop().create_task(run())
        self._changing.add(task)
        task.add_done_callback(self._changing.discard)
        await asyncio.shield(task)

    def _now_s(self) -> int:
        return int(self._clock_s())

    @property
    def _known(self) -> Known:
        if self._kept is None:
            raise RuntimeError("the directory is not loaded; await load() before serving")
        return self._kept

    def _key(self, key_id: str) -> KeyRecord:
        key = self._known.keys.get(key_id)
        if key is None:
            raise DirectoryFault(f"there is no key {key_id!r}; list the tenant's keys")
        return key

    def _tenant(self, tenant: str) -> None:
        if tenant not in self._known.config.tenants:
            known = ", ".join(sorted(self._known.config.tenants))
            raise DirectoryFault(f"there is no tenant {tenant!r}; there are {known}")
