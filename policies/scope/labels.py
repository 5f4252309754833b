"""Labels: who supplied the tokens of a prefix, hence who may reuse what was computed from them.

Refuses to know: text.  A label is made by whoever knows where a segment came from, never from what it
says.

    public ⊑ tenant ⊑ documents ⊑ user ⊑ session

Theory of operation.  A label names everything that its tokens came from: the templates, the documents
with their versions, then the person.  `join` of two is the least label above both and names what either
names, so a block late in a prompt still carries the versions of a document at its start, and of one that
came after the user's own words; bumping a version makes all of it unreachable.  Level follows from what
is named, so no label contradicts itself.  Two tenants, two people, or two versions of one document in
one prompt is a mistake of ours: `Incomparable`.  Source: SECURITY.md §2; Denning 1976.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import IntEnum
from functools import reduce
from typing import Final, TypeVar

from policies.scope.encoding import Value, enc

T = TypeVar("T")

NAMED_MAX: Final = 256
"""Templates, and documents, in one label."""


class Incomparable(AssertionError):
    """Our mistake, and never stripped: labels that can stand in no request together."""


class Level(IntEnum):
    PUBLIC = 0
    TENANT = 1
    DOCUMENTS = 2
    USER = 3
    SESSION = 4


@dataclass(frozen=True, slots=True)
class Template:
    """`owner` is a tenant, or None for the operator's, which are public."""

    owner: str | None
    id: str
    version: int


@dataclass(frozen=True, slots=True)
class Document:
    id: str
    acl_version: int
    content_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """Made by the five functions below and by `join`."""

    tenant: str | None = None
    templates: frozenset[Template] = frozenset()
    documents: frozenset[Document] = frozenset()
    issuer: str | None = None
    subject: str | None = None
    narrowing: bytes | None = None
    session: bytes | None = None

    def __post_init__(self) -> None:
        owners = {each.owner for each in self.templates} - {None}
        sound = (
            self.tenant != ""
            and owners <= {self.tenant}
            and (self.tenant is not None or (not self.documents and self.subject is None))
            and (self.issuer is None) == (self.subject is None)
            and (self.subject is not None or (self.narrowing is None and self.session is None))
            and len({each.id for each in self.documents}) == len(self.documents) <= NAMED_MAX
            and len(self.templates) <= NAMED_MAX
        )
        if not sound:
            raise Incomparable("a label that contradicts itself, or names more than one may")

    @property
    def level(self) -> Level:
        if self.session is not None:
            return Level.SESSION
        if self.subject is not None:
            return Level.USER
        if self.documents:
            return Level.DOCUMENTS
        return Level.PUBLIC if self.tenant is None else Level.TENANT

    def encoded(self) -> bytes:
        """Every field by its name: two labels never have the same bytes."""
        return enc(("label", tuple((each.name, _plain(self, each.name)) for each in fields(self))))


BOTTOM: Final = Label()
"""Below every label, of no tokens at all."""


def public(template: str, version: int) -> Label:
    return Label(templates=frozenset({Template(None, template, version)}))


def tenant(tenant_id: str, template: str, version: int) -> Label:
    return Label(tenant=tenant_id, templates=frozenset({Template(tenant_id, template, version)}))


def documents(tenant_id: str, named: Iterable[Document]) -> Label:
    found = frozenset(named)
    if not found:
        raise Incomparable("a label of documents names at least one")
    return Label(tenant=tenant_id, documents=found)


def user(tenant_id: str, issuer: str, subject: str, narrowing: bytes | None = None) -> Label:
    """`narrowing`: `security.cache_keys.narrowing` of what a client calls its own users, or None."""
    return Label(tenant=tenant_id, issuer=issuer, subject=subject, narrowing=narrowing)


def session(of: Label, session_id: bytes) -> Label:
    return join(
        of,
        Label(
            tenant=of.tenant,
            issuer=of.issuer,
            subject=of.subject,
            narrowing=of.narrowing,
            session=session_id,
        ),
    )


def join(a: Label, b: Label) -> Label:
    """The least label above both.  Incomparable where there is none."""
    if a is b or a == b:
        return a
    return Label(
        tenant=_either(a.tenant, b.tenant, "tenants"),
        templates=a.templates | b.templates,
        documents=a.documents | b.documents,
        issuer=_either(a.issuer, b.issuer, "issuers"),
        subject=_either(a.subject, b.subject, "people"),
        narrowing=_either(a.narrowing, b.narrowing, "narrowings"),
        session=_either(a.session, b.session, "sessions"),
    )


def join_all(labels: Iterable[Label]) -> Label:
    return reduce(join, labels, BOTTOM)


def below(a: Label, b: Label) -> bool:
    """Whether a ⊑ b: whoever may read b may read a."""
    return (
        a.templates <= b.templates
        and a.documents <= b.documents
        and a.tenant in {None, b.tenant}
        and a.issuer in {None, b.issuer}
        and a.subject in {None, b.subject}
        and a.narrowing in {None, b.narrowing}
        and a.session in {None, b.session}
    )


def _either(a: T | None, b: T | None, what: str) -> T | None:
    if a is None or a == b:
        return b
    if b is None:
        return a
    raise Incomparable(f"two {what} in one label; a request has one")


def _plain(label: Label, name: str) -> Value:
    if name == "templates":
        return frozenset((each.owner, each.id, each.version) for each in label.templates)
    if name == "documents":
        return frozenset(
            (each.id, each.acl_version, each.content_version) for each in label.documents
        )
    value: Value = getattr(label, name)
    return value
