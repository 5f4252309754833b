"""What people, projects and tenants are called when they are not to be named any more.

    p_ or x_  ‖  16 bytes of  digest(kind, salt of the tenant, what), in hexadecimal

The digest is keyed by the root key, the salt is drawn for a tenant and lies in the database.  So one person keeps one
pseudonym, whenever and on whichever gateway it is asked for, and sums by person stay what they were; whoever has
only the database, or only the root key, can confirm no guess; and nobody can once the salt is gone.
Who is renamed belongs to the issuer `PSEUDONYM`, by whom nobody signs in, so that nobody is taken for them.

Refuses to know: which rows are renamed when (`forgetting`, `deletion`), the key (`Digest`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Text, and_, func, select

from tenants import schema, tags
from tenants.scopes import Dimensions, scope_id
from tenants.sql import insert_new, update_many
from tenants.usage import dims_of

PSEUDONYM: Final = "pseudonym"
SALT_BYTES: Final = 32
DIGITS: Final = 32
PERSON, OTHER = "p_", "x_"
Digest = Callable[[Sequence[bytes]], bytes]

_S = schema.pseudonym_salt
_WHO = {
    f"to_{name}": Text() for name in ("tenant", "project", "user", "issuer")
}  # by column name, as they are written
_SETS = 'tenant = {to_tenant}, project = {to_project}, "user" = {to_user}, issuer = {to_issuer}'
_RESERVED = update_many(
    schema.reservation,
    {"of": Text(), **_WHO, "to_user_account": Text(), "to_project_account": Text()},
    sets=_SETS + ", user_account = {to_user_account}, project_account = {to_project_account}",
    where="request_id = {of}",
)
_RECORDED = update_many(
    schema.request, {"of": Text(), **_WHO}, sets=_SETS, where="request_id = {of}"
)


@dataclass(frozen=True, slots=True)
class Person:
    tenant: str
    issuer: str
    user: str

    @property
    def account(self) -> str:
        dims = Dimensions(self.tenant, None, self.user, self.issuer, None, "", None)
        return str(scope_id("user", dims))

    @property
    def actor(self) -> str:
        """As whoever changes something is written down."""
        return f"{self.issuer}:{self.user}"


@dataclass(frozen=True, slots=True)
class Names:
    """Of one tenant, by its name and salt."""

    tenant: str
    digest: Digest = field(repr=False)
    salt: bytes = field(repr=False)

    def person(self, issuer: str, user: str) -> str:
        return user if issuer == PSEUDONYM else PERSON + self._of("person", issuer, user)

    def other(self, kind: str, what: str) -> str:
        """A project, or somebody of whom the issuer is not known."""
        return OTHER + self._of(kind, what)

    def actor(self, actor: str) -> str:
        return (
            actor
            if actor.startswith(f"{PSEUDONYM}:")
            else f"{PSEUDONYM}:{self._of('actor', actor)}"
        )

    def _of(self, kind: str, *what: str) -> str:
        parts = [kind.encode(), self.tenant.encode(), self.salt, *(each.encode() for each in what)]
        return self.digest(parts)[: DIGITS // 2].hex()


def has_form(column: ColumnElement[str], begins: str) -> ColumnElement[bool]:
    """Whether it is `begins` and a pseudonym's digits; that alone is no sign of one, since people are called so, too."""
    digits = func.substr(column, len(begins) + 1)
    return and_(
        func.substr(column, 1, len(begins)) == begins,
        func.length(digits) == DIGITS,
        func.ltrim(digits, "0123456789abcdef") == "",
    )


def tombstone(digest: Digest, tenant: str) -> str:
    """By which a deleted tenant's name is known again, and cannot be read."""
    return digest([b"tombstone", tenant.encode()]).hex()


def names_of(conn: Connection, tenant: str, digest: Digest, drawn: bytes) -> Names:
    """`drawn`: the tenant's salt from now on, where it has none."""
    mine = select(_S.c.salt).where(_S.c.tenant == tenant)
    salt = conn.execute(mine).scalar_one_or_none()
    if salt is None:
        insert_new(conn, _S, [{"tenant": tenant, "salt": drawn}])
        salt = conn.execute(mine).scalar_one()
    return Names(tenant, digest, bytes(salt))


def rename_reserved(
    conn: Connection, names: Names, rows: Sequence[Mapping[Any, Any]], *, tenant: str | None = None
) -> None:
    """Reservations, and what is recorded of them; what clients filed them under goes.  `tenant`: it is to be called
    so, its projects have names that say nothing, and its own tags go too."""
    if rows:
        new = [_renamed(names, row, tenant) for row in rows]
        _RESERVED.run(conn, new)
        filed = [row["request_id"] for row in rows if row["tags"] is not None]
        tags.drop(conn, filed, binding=tenant is not None)
        _RECORDED.run(conn, [{name: row[name] for name in ("of", *_WHO)} for row in new])


def rename_recorded(
    conn: Connection, names: Names, rows: Sequence[Mapping[Any, Any]], *, tenant: str | None = None
) -> None:
    if rows:
        renamed = (_renamed(names, row, tenant) for row in rows)
        _RECORDED.run(conn, [{name: row[name] for name in ("of", *_WHO)} for row in renamed])


def _renamed(names: Names, row: Mapping[Any, Any], tenant: str | None) -> dict[str, Any]:
    old = dims_of(row)
    project = old.project
    if tenant is not None and project:
        project = names.other("project", project)
    new = Dimensions(
        tenant or old.tenant,
        project,
        names.person(old.issuer, old.user),
        PSEUDONYM,
        old.key_id,
        old.model,
        old.service_class,
    )
    return {
        "of": row["request_id"],
        "to_tenant": new.tenant,
        "to_project": new.project,
        "to_user": new.user,
        "to_issuer": new.issuer,
        "to_user_account": scope_id("user", new),
        "to_project_account": scope_id("project", new),
    }
