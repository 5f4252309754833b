"""The permission with which a cache is asked: made by `decide` over live facts, and in no other way.

Deny by default; what is absent, expired, of another version and not for this reader is one answer
(P8); a snapshot of the policy that is too old denies.  Refuses to know: where the facts are kept, keys,
tokens.  Instants are monotonic nanoseconds.  Source: SECURITY.md §2 (Authorization at read time).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import final

from policies.facts import Principal, Role, Standing
from policies.scope.labels import Document, Label, Template, below
from policies.verdict import Allow, Deny, Reason

_OF_A_TENANT = frozenset({Role.TENANT_ADMIN, Role.FINANCE})
"""An operator's role beside a tenant counts for nothing (`access`)."""


@dataclass(frozen=True, slots=True)
class Acl:
    """Who may read one document.  People and groups are named with their issuer: equal names of two
    issuers are two.  Roles are the tenant's."""

    tenant: str
    acl_version: int
    content_version: int
    users: frozenset[tuple[str, str]] = frozenset()
    groups: frozenset[tuple[str, str]] = frozenset()
    roles: frozenset[Role] = frozenset()
    expires_ns: int | None = None


_NOBODY = Acl("", acl_version=-1, content_version=-1, expires_ns=0)
"""In the place of one that is absent."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The policy as it was known at `read_ns`.  `id` grows with each change of it.  `templates`: all
    that are registered, the model's own scaffold among them."""

    id: int
    read_ns: int
    acls: Mapping[str, Acl] = field(repr=False)
    templates: frozenset[Template] = field(repr=False)


@final
@dataclass(frozen=True, slots=True, init=False)
class Decision:
    """A reader may read whatever lies below `label`, until `deadline_ns`, by snapshot `snapshot`."""

    label: Label
    snapshot: int
    deadline_ns: int

    def __init__(self) -> None:
        raise TypeError("a Decision is made by decide() alone")

    def covers(self, label: Label, now_ns: int) -> bool:
        return now_ns < self.deadline_ns and below(label, self.label)

    def stands(self, acl_versions: Mapping[str, int], now_ns: int) -> bool:
        """Against the newest versions: whether none of its documents has moved on or gone."""
        return now_ns < self.deadline_ns and all(
            acl_versions.get(each.id) == each.acl_version for each in self.label.documents
        )


def decide(
    principal: Principal,
    standing: Standing,
    label: Label,
    snapshot: Snapshot,
    *,
    now_ns: int,
    stale_ns_max: int,
) -> Allow[Decision] | Deny:
    """Whether `principal` may read what `label` names, a whole request's join.  `stale_ns_max`: how old
    a snapshot may be."""
    try:
        ends_ns = snapshot.read_ns + stale_ns_max
        if reason := _refusal(principal, standing, label):
            return Deny(reason)
        if not snapshot.read_ns <= now_ns < ends_ns:
            return Deny(Reason.POLICY_STALE)
        if not label.templates <= snapshot.templates:
            return Deny(Reason.TEMPLATE_NOT_FOUND)
        named = [(each, snapshot.acls.get(each.id)) for each in label.documents]
        readable = [_may_read(principal, each, acl, now_ns) for each, acl in named]
        if not all(readable):  # all are looked at, whichever it is
            return Deny(Reason.DOCUMENT_NOT_FOUND)
        expiries = (acl.expires_ns for _, acl in named if acl is not None)
        ends_ns = min([ends_ns, *(each for each in expiries if each is not None)])
    except Exception:  # noqa: BLE001 — whatever went wrong in deciding, the answer is no
        return Deny(Reason.POLICY_ERROR)
    return Allow(_made(label, snapshot.id, ends_ns))


def _refusal(principal: Principal, standing: Standing, label: Label) -> Reason | None:
    if not principal.tenant:
        return Reason.NO_TENANT
    if standing.tenant != principal.tenant or label.tenant not in {None, principal.tenant}:
        return Reason.FORBIDDEN
    if label.subject is not None and (label.issuer, label.subject) != (
        principal.issuer,
        principal.user,
    ):
        return Reason.FORBIDDEN
    return Reason.TENANT_SUSPENDED if standing.suspended else None


def _may_read(principal: Principal, document: Document, acl: Acl | None, now_ns: int) -> bool:
    """As much work for one answer as for another: each part is looked at, whatever the others say."""
    known = acl or _NOBODY
    mine = known.tenant == principal.tenant
    same = (known.acl_version, known.content_version) == (
        document.acl_version,
        document.content_version,
    )
    live = known.expires_ns is None or now_ns < known.expires_ns
    return bool(mine & same & live & names(known, principal))


def names(acl: Acl, principal: Principal) -> bool:
    """Whether a list has this principal on it, within the tenant that it knows to be theirs."""
    person = (principal.issuer, principal.user) in acl.users
    member = not acl.groups.isdisjoint({(principal.issuer, group) for group in principal.groups})
    return person | member | (not principal.roles.isdisjoint(acl.roles & _OF_A_TENANT))


def renewed(label: Label, snapshot: Snapshot) -> Label:
    """The same texts by the ACLs of now: what to ask `decide` of a request that runs, which may go on
    where a list was changed and still has its reader on it.  Never for a look-up."""
    known = ((each, snapshot.acls.get(each.id)) for each in label.documents)
    return replace(
        label,
        documents=frozenset(
            each if acl is None else replace(each, acl_version=acl.acl_version)
            for each, acl in known
        ),
    )


def newest(label: Label, snapshot: Snapshot) -> Label:
    """The same documents with what they say now: what somebody would meet who asks for them anew."""
    known = ((each, snapshot.acls.get(each.id)) for each in label.documents)
    return replace(
        label,
        documents=frozenset(
            each if acl is None else Document(each.id, acl.acl_version, acl.content_version)
            for each, acl in known
        ),
    )


def _made(label: Label, snapshot: int, deadline_ns: int) -> Decision:
    made = object.__new__(Decision)
    for name, value in (("label", label), ("snapshot", snapshot), ("deadline_ns", deadline_ns)):
        object.__setattr__(made, name, value)
    return made
