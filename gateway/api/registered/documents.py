"""Documents: text that a request refers to by id, with a list of who may.

    POST   /v1/documents                  register
    GET    /v1/documents                  one's own, and those one may read: what is known of them
    GET    /v1/documents/{id}             the same of one
    GET    /v1/documents/{id}/content     the text, for its owner alone
    PATCH  /v1/documents/{id}             another text, another end
    PUT    /v1/documents/{id}/acl         another list of readers, perhaps only of the `acl_version` seen
    DELETE /v1/documents/{id}

Who may what is `policies.registered`.  A change that takes a right away is answered when nothing is read
by the old right any more.  Source: DESIGN.md (The cache is keyed by permission; settled 3, 7).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.api.registered.call import (
    Call,
    Family,
    Name,
    Text,
    Title,
    about_of,
    name_of,
    text_of,
    view,
)
from gateway.errors import conflict, from_deny, invalid
from gateway.registered import About
from policies import registered as rules
from policies.facts import Role
from policies.registered import Right
from policies.verdict import Deny, Reason
from security.audit import RegisteredEvent
from tenants.documents import Kind, Readers, Record

READERS_MAX = 1000
LIST_BYTES_MAX = 128 * 1024
"""Of one list's names: as many as may be on it, at some 60 bytes each."""
_ROLES = {role.value: role for role in (Role.TENANT_ADMIN, Role.FINANCE)}
Instant = Annotated[int, Meta(ge=0, le=253_402_300_799)]


class User(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    subject: Name
    issuer: Name | None = None


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name
    issuer: Name | None = None


class Listed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Without an issuer: the caller's own."""

    users: Annotated[list[User], Meta(max_length=READERS_MAX)] | None = None
    groups: Annotated[list[Group], Meta(max_length=READERS_MAX)] | None = None
    roles: Annotated[list[str], Meta(max_length=8)] | None = None


class Relisted(Listed, frozen=True, forbid_unknown_fields=True):
    """`acl_version`: the one that the caller has seen; without it the list replaces whatever stands."""

    acl_version: Annotated[int, Meta(ge=1)] | None = None


class NewDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    text: Text
    title: Title | None = None
    acl: Listed | None = None
    expires_at: Instant | None = None


class Change(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`expires_at` null: no end.  A title goes with a text; without one it stays."""

    text: Text | None = None
    title: Title | None = None
    expires_at: Instant | UnsetType | None = UNSET


async def create(call: Call) -> object:
    asked = call.decode(NewDocument)
    who, house = call.who, call.house
    if not rules.may_register_document(who) or who.tenant is None:
        raise from_deny(Deny(Reason.NO_TENANT))
    text = text_of(asked.text, "text")
    about = About(None if asked.title is None else name_of(asked.title, "title"))
    now_s = house.clock.wall_ms() // 1000
    made = Record(
        id=house.registered.mint_id(Kind.DOCUMENT),
        kind=Kind.DOCUMENT,
        tenant=who.tenant,
        issuer=who.issuer,
        owner=who.user,
        content_version=1,
        acl_version=1,
        created_at_s=now_s,
        changed_at_s=now_s,
        expires_at_s=_future(asked.expires_at, now_s),
        tokens={},
        readers=readers(call, asked.acl or Listed()),
    )
    tokens = await call.tokens(text, who.tenant, "text")
    record = await house.registered.create(made, text, about, tokens, call.room(who.tenant))
    await call.record(RegisteredEvent.DOCUMENT_CREATED, record)
    return document_view(call, record, about)


async def change(call: Call) -> object:
    asked = call.decode(Change)
    record = call.found(Right.CHANGE)
    house, now_s = call.house, call.house.clock.wall_ms() // 1000
    changes: dict[str, Any] = {"changed_at_s": now_s}
    if not isinstance(asked.expires_at, UnsetType):
        changes["expires_at_s"] = _future(asked.expires_at, now_s)

    def becomes(old: Record) -> Record:
        return replace(call.permitted(old, Right.CHANGE), **changes)

    if asked.text is None:
        if asked.title is not None:
            raise invalid("title: goes with a text; send both.", param="title")
        _, changed, ending = await house.registered.change(record.id, becomes)
    else:
        text, about = text_of(asked.text, "text"), await about_of(call, record)
        if asked.title is not None:
            about = About(name_of(asked.title, "title"))
        tokens = await call.tokens(text, record.tenant, "text")
        changed, ending = await house.registered.rewrite(
            record.id, text, about, tokens, call.room(record.tenant), becomes
        )
    await call.record(RegisteredEvent.DOCUMENT_CHANGED, changed, ending)
    return document_view(call, changed, await about_of(call, changed))


async def set_acl(call: Call) -> object:
    asked = call.decode(Relisted)
    call.found(Right.GRANT, Right.NARROW)
    listed = readers(call, asked)

    def becomes(old: Record) -> Record:
        # Before what the list takes: a stale one says nothing of what its sender wanted.
        _require_seen(asked.acl_version, call.permitted(old, Right.GRANT, Right.NARROW))
        rights = {Right.GRANT}
        if rules.narrower(listed, old.readers):
            rights.add(Right.NARROW)
        return replace(call.permitted(old, *rights), readers=listed)

    old, changed, ending = await call.house.registered.change(call.id, becomes)
    narrows = rules.narrower(changed.readers, old.readers)
    event = RegisteredEvent.DOCUMENT_REVOKED if narrows else RegisteredEvent.DOCUMENT_GRANTED
    await call.record(event, changed, ending)
    return document_view(call, changed, await about_of(call, changed))


def _require_seen(seen: int | None, old: Record) -> None:
    """Raises ApiError 409."""
    if seen is not None and seen != old.acl_version:
        raise conflict(
            "changed_meanwhile",
            f"acl_version: who may read it is at version {old.acl_version} now, not {seen}. Look, and try "
            "again.",
            param="acl_version",
        )


def readers(call: Call, asked: Listed) -> Readers:
    """Raises ApiError 400."""
    mine = call.who.issuer
    users = [(each.issuer or mine, each.subject) for each in asked.users or []]
    groups = [(each.issuer or mine, each.name) for each in asked.groups or []]
    for field, listed in (("users", users), ("groups", groups)):
        for index, (issuer, name) in enumerate(listed):
            name_of(issuer, f"acl.{field}[{index}].issuer")
            name_of(name, f"acl.{field}[{index}]")
    if unknown := [role for role in asked.roles or [] if role not in _ROLES]:
        raise invalid(
            f"acl.roles: expected {' or '.join(sorted(_ROLES))}, not {unknown[0][:64]!a}.",
            param="acl.roles",
        )
    found = Readers(
        frozenset(users),
        frozenset(groups),
        frozenset(_ROLES[role] for role in asked.roles or []),
    )
    if (size := found.named_bytes) > LIST_BYTES_MAX:
        raise invalid(
            f"acl: its names take {size} bytes; at most {LIST_BYTES_MAX}. Put people into groups.",
            param="acl",
        )
    return found


def document_view(call: Call, record: Record, about: About) -> dict[str, Any]:
    """A reader never sees who else reads, nor how often that changed."""
    rights = call.rights(record)
    shown = view(call, record, about)
    shown["expires_at"] = record.expires_at_s
    shown["owned"] = Right.TEXT in rights
    if Right.TEXT in rights:
        shown["warm"] = call.house.warmth.is_warm(record, call.house.deployments)
    if Right.READERS in rights:
        listed = record.readers
        shown["acl_version"] = record.acl_version
        shown["acl"] = {
            "users": [{"issuer": i, "subject": name} for i, name in sorted(listed.users)],
            "groups": [{"issuer": i, "name": name} for i, name in sorted(listed.groups)],
            "roles": sorted(role.value for role in listed.roles),
        }
    return shown


def _future(expires_at: int | None, now_s: int) -> int | None:
    if expires_at is not None and expires_at <= now_s:
        raise invalid(
            "expires_at: expected a second of Unix time that is still to come.", param="expires_at"
        )
    return expires_at


FAMILY = Family(document_view, RegisteredEvent.DOCUMENT_READ, RegisteredEvent.DOCUMENT_DELETED)
