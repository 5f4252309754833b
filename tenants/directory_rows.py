"""The directory's rows: keys, revocations, suspensions, budgets set by operators, and who did what.

Plain functions over a `Connection`.  Refuses to know: configuration, what is visible when (directory).
A key's row holds the keyed digest of its secret and never the secret.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import msgspec
from sqlalchemy import Connection, delete, insert, select, update

from policies.facts import Budget, Limits
from tenants import generations, schema

REVOCATION_KEPT_S = 400 * 86_400
"""Where nobody knows when a token expires: longer than any token we accept ought to live."""
EXPIRY_SLACK_S = 600
"""Tokens are accepted a little after they expire; their revocations outlast that."""


class RevocationKind(StrEnum):
    TOKEN = "token"  # noqa: S105 — the name of a kind, no secret
    SUBJECT = "subject"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """One API key as it is kept.  `digest` is the keyed hash that it is found by."""

    id: str
    digest: bytes = field(repr=False)
    tenant: str
    user: str
    project: str | None = None
    name: str = ""
    roles: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    service_class: str | None = None
    limits: Limits | None = None
    created_at_s: int = 0
    expires_at_s: int | None = None
    revoked_at_s: int | None = None
    replaced_by: str | None = None
    tags: tuple[tuple[str, str], ...] = ()

    @property
    def revoked(self) -> bool:
        return self.revoked_at_s is not None

    def rotated(
        self, id_: str, digest: bytes, *, now_s: int, grace_s: int
    ) -> tuple[KeyRecord, KeyRecord]:
        """The one in its place, which lives as long, and this one, which ends after `grace_s`."""
        expires_s, ends_s = self.expires_at_s, now_s + max(0, grace_s)
        new = replace(
            self,
            id=id_,
            digest=digest,
            created_at_s=now_s,
            expires_at_s=None if expires_s is None else now_s + expires_s - self.created_at_s,
            replaced_by=None,
        )
        ends_s = ends_s if expires_s is None else min(ends_s, expires_s)
        return new, replace(self, expires_at_s=ends_s, replaced_by=id_)


@dataclass(frozen=True, slots=True)
class Revoked:
    """A token id (until it would have expired anyway), or a subject's tokens issued up to `at_s`."""

    kind: RevocationKind
    tenant: str
    issuer: str
    value: str
    at_s: int
    until_s: int


@dataclass(frozen=True, slots=True)
class BudgetTarget:
    """Whose budget.  `name` is the project, the user, the key id or the tag (`name=value`), empty for the tenant itself;
    `issuer` may be empty for a user: then it holds for that name at every issuer, each alone."""

    tenant: str
    scope: str = "tenant"
    name: str = ""
    issuer: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that is kept, as it is read at start."""

    keys: tuple[KeyRecord, ...]
    revoked: tuple[Revoked, ...]
    suspended: frozenset[str]
    budgets: dict[BudgetTarget, Budget]
    deleted: frozenset[str] = frozenset()


def generation(conn: Connection) -> int:
    return generations.generation(conn, generations.Of.DIRECTORY)


def count_up(conn: Connection) -> int:
    return generations.count_up(conn, generations.Of.DIRECTORY)


def begin(conn: Connection) -> None:
    generations.begin(conn, generations.Of.DIRECTORY)


def load(conn: Connection) -> Snapshot:
    revocation, suspension = schema.revocation, schema.suspension
    return Snapshot(
        keys=tuple(_key(row) for row in conn.execute(select(schema.api_key)).mappings()),
        revoked=tuple(
            Revoked(
                RevocationKind(row["kind"]),
                row["tenant"],
                row["issuer"],
                row["value"],
                row["at_s"],
                row["until_s"],
            )
            for row in conn.execute(select(revocation)).mappings()
        ),
        suspended=frozenset(conn.execute(select(suspension.c.tenant)).scalars()),
        budgets={
            BudgetTarget(
                row["tenant"], row["scope"], row["name"], row["issuer"]
            ): msgspec.json.decode(row["budget"], type=Budget)
            for row in conn.execute(select(schema.budget_override)).mappings()
        },
        deleted=frozenset(
            conn.execute(
                select(schema.tenant_deletion.c.digest).where(
                    schema.tenant_deletion.c.ended_at_ms.is_not(None)
                )
            ).scalars()
        ),
    )


def prune(conn: Connection, *, now_s: int) -> None:
    """Forget revocations of what has expired by itself.  At start: it looks at all of them, and
    whoever revokes shares a commit with everybody's money."""
    conn.execute(delete(schema.revocation).where(schema.revocation.c.until_s <= now_s))


def add_key(conn: Connection, key: KeyRecord) -> None:
    conn.execute(insert(schema.api_key), _key_row(key))


def put_key(conn: Connection, key: KeyRecord) -> None:
    table = schema.api_key
    row = _key_row(key)
    conn.execute(update(table).where(table.c.id == key.id).values(row))


def revoke(conn: Connection, revoked: Revoked, *, actor: str, reason: str) -> None:
    """A later revocation of the same replaces an earlier one."""
    table = schema.revocation
    same = {
        "kind": revoked.kind.value,
        "tenant": revoked.tenant,
        "issuer": revoked.issuer,
        "value": revoked.value,
    }
    conn.execute(delete(table).filter_by(**same))
    conn.execute(
        insert(table).values(
            **same, at_s=revoked.at_s, until_s=revoked.until_s, actor=actor, reason=reason
        )
    )


def suspend(conn: Connection, tenant: str, *, at_s: int, actor: str, reason: str) -> None:
    table = schema.suspension
    if conn.execute(select(table).where(table.c.tenant == tenant)).first() is None:
        conn.execute(insert(table).values(tenant=tenant, at_s=at_s, actor=actor, reason=reason))


def resume(conn: Connection, tenant: str) -> None:
    conn.execute(delete(schema.suspension).where(schema.suspension.c.tenant == tenant))


def set_budget(conn: Connection, target: BudgetTarget, budget: Budget | None) -> None:
    table = schema.budget_override
    same = {
        "tenant": target.tenant,
        "scope": target.scope,
        "issuer": target.issuer,
        "name": target.name,
    }
    conn.execute(delete(table).filter_by(**same))
    if budget is not None:
        conn.execute(insert(table).values(**same, budget=msgspec.json.encode(budget).decode()))


def note(
    conn: Connection,
    *,
    at_s: int,
    tenant: str,
    kind: str,
    subject: str,
    detail: str,
    actor: str,
    reason: str,
) -> None:
    """Who changed what, when and why: only ever appended."""
    conn.execute(
        insert(schema.change).values(
            at_s=at_s,
            tenant=tenant,
            kind=kind,
            subject=subject,
            detail=detail,
            actor=actor,
            reason=reason,
        )
    )


def _key_row(key: KeyRecord) -> dict[str, Any]:
    row = {name: getattr(key, name) for name in KeyRecord.__dataclass_fields__}
    for name in ("roles", "groups", "limits", "tags"):
        row[name] = msgspec.json.encode(row[name]).decode()
    return row


def _key(row: Any) -> KeyRecord:
    plain = {name: row[name] for name in KeyRecord.__dataclass_fields__}
    for name in ("roles", "groups"):
        plain[name] = msgspec.json.decode(plain[name], type=tuple[str, ...])
    plain["tags"] = msgspec.json.decode(plain["tags"], type=tuple[tuple[str, str], ...])
    plain["limits"] = msgspec.json.decode(plain["limits"], type=Limits | None)
    return KeyRecord(**plain)
