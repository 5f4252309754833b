"""Registered texts as rows: what is known of each (`Record`), its sealed texts, its readers.

Plain functions over a `Connection`.  Each write checks the version it was made for, and counts up the
generation of the whole, so that who has read one can tell that another has written since.
Refuses to know: what is sealed in a text, who may read, when a thing is visible (`documents`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from sqlalchemy import Connection, delete, insert, select, update

from policies.facts import Role
from tenants import generations
from tenants.schema import registration as head
from tenants.schema import registration_reader as reader
from tenants.schema import registration_text as text


class Kind(StrEnum):
    DOCUMENT = "document"
    TEMPLATE = "template"


class VersionMoved(Exception):
    """Somebody changed it since it was looked at, or it is gone."""


@dataclass(frozen=True, slots=True)
class Readers:
    """Who may read a document beside its owner.  People and groups with their issuer."""

    users: frozenset[tuple[str, str]] = frozenset()
    groups: frozenset[tuple[str, str]] = frozenset()
    roles: frozenset[Role] = frozenset()

    @property
    def named_bytes(self) -> int:
        """What its names take; roles are few."""
        named = (part for entry in self.users | self.groups for part in entry)
        return sum(len(part.encode()) for part in named)


NOBODY = Readers()


@dataclass(frozen=True, slots=True)
class Sealed:
    """One version's text and what it is called, and its length in tokens by model."""

    text: bytes = field(repr=False)
    about: bytes = field(repr=False)
    tokens: Mapping[str, int]

    @property
    def tokens_max(self) -> int:
        return max(self.tokens.values(), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """`tokens`: of each version that is kept, by model.  `tenant` None: the operator's."""

    id: str
    kind: Kind
    tenant: str | None
    issuer: str
    owner: str
    content_version: int
    acl_version: int
    created_at_s: int
    changed_at_s: int
    expires_at_s: int | None
    tokens: Mapping[int, Mapping[str, int]]
    readers: Readers = NOBODY

    @property
    def versions(self) -> tuple[int, ...]:
        return tuple(self.tokens)

    @property
    def tokens_kept(self) -> int:
        return sum(max(each.values(), default=0) for each in self.tokens.values())


def load(conn: Connection) -> tuple[int, dict[str, Record]]:
    """The generation, and everything that is not deleted, oldest first."""
    tokens: dict[str, dict[int, Mapping[str, int]]] = {}
    for row in conn.execute(
        select(text.c.id, text.c.version, text.c.tokens).order_by(text.c.version)
    ):
        tokens.setdefault(row.id, {})[row.version] = json.loads(row.tokens)
    listed: dict[str, list[tuple[str, str, str]]] = {}
    for row in conn.execute(select(reader)):
        listed.setdefault(row.id, []).append((row.kind, row.issuer, row.name))
    rows = conn.execute(
        select(head).where(head.c.deleted_at_s.is_(None)).order_by(head.c.created_at_s, head.c.id)
    )
    return generation(conn), {
        row.id: Record(
            id=row.id,
            kind=Kind(row.kind),
            tenant=row.tenant,
            issuer=row.issuer,
            owner=row.owner,
            content_version=row.content_version,
            acl_version=row.acl_version,
            created_at_s=row.created_at_s,
            changed_at_s=row.changed_at_s,
            expires_at_s=row.expires_at_s,
            tokens=tokens.get(row.id, {}),
            readers=_readers(listed.get(row.id, ())),
        )
        for row in rows
    }


def generation(conn: Connection) -> int:
    return generations.generation(conn, generations.Of.TEXTS)


def count_up(conn: Connection) -> int:
    return generations.count_up(conn, generations.Of.TEXTS)


def create(conn: Connection, record: Record, sealed: Sealed) -> int:
    conn.execute(
        insert(head).values(
            id=record.id,
            kind=record.kind.value,
            tenant=record.tenant,
            issuer=record.issuer,
            owner=record.owner,
            content_version=record.content_version,
            acl_version=record.acl_version,
            created_at_s=record.created_at_s,
            changed_at_s=record.changed_at_s,
            expires_at_s=record.expires_at_s,
        )
    )
    _add_text(conn, record.id, record.content_version, sealed)
    _add_readers(conn, record.id, record.readers)
    return count_up(conn)


def put(conn: Connection, old: Record, new: Record, sealed: Sealed | None) -> int:
    """`new` in the place of `old`.  `sealed`: the text of its content version, where that is new.
    Versions that `new` does not keep go.  VersionMoved."""
    found = conn.execute(
        update(head)
        .where(
            head.c.id == old.id,
            head.c.content_version == old.content_version,
            head.c.acl_version == old.acl_version,
            head.c.deleted_at_s.is_(None),
        )
        .values(
            content_version=new.content_version,
            acl_version=new.acl_version,
            changed_at_s=new.changed_at_s,
            expires_at_s=new.expires_at_s,
        )
    )
    if found.rowcount != 1:
        raise VersionMoved(old.id)
    if sealed is not None:
        conn.execute(delete(text).where(text.c.id == old.id, text.c.version.not_in(new.versions)))
        _add_text(conn, old.id, new.content_version, sealed)
    if new.readers != old.readers:
        conn.execute(delete(reader).where(reader.c.id == old.id))
        _add_readers(conn, old.id, new.readers)
    return count_up(conn)


def remove(conn: Connection, ids: Iterable[str], at_s: int) -> int:
    """Texts and readers go; the id stays taken, and its versions with it."""
    for id_ in ids:
        conn.execute(
            update(head)
            .where(head.c.id == id_, head.c.deleted_at_s.is_(None))
            .values(deleted_at_s=at_s, acl_version=head.c.acl_version + 1)
        )
        conn.execute(delete(text).where(text.c.id == id_))
        conn.execute(delete(reader).where(reader.c.id == id_))
    return count_up(conn)


def texts(
    conn: Connection, wanted: Sequence[tuple[str, int]]
) -> dict[tuple[str, int], tuple[bytes, bytes]]:
    """Sealed text and about of each that is there, in one statement."""
    ids = sorted({id_ for id_, _ in wanted})
    rows = conn.execute(
        select(text.c.id, text.c.version, text.c.sealed_text, text.c.sealed_about).where(
            text.c.id.in_(ids), text.c.version.in_(sorted({version for _, version in wanted}))
        )
    )
    found = {(row.id, row.version): (row.sealed_text, row.sealed_about) for row in rows}
    return {each: found[each] for each in wanted if each in found}


def abouts(conn: Connection, wanted: Sequence[tuple[str, int]]) -> dict[tuple[str, int], bytes]:
    """What each is called, without its text."""
    ids = sorted({id_ for id_, _ in wanted})
    rows = conn.execute(
        select(text.c.id, text.c.version, text.c.sealed_about).where(text.c.id.in_(ids))
    )
    found = {(row.id, row.version): row.sealed_about for row in rows}
    return {each: found[each] for each in wanted if each in found}


def _add_text(conn: Connection, id_: str, version: int, sealed: Sealed) -> None:
    conn.execute(
        insert(text).values(
            id=id_,
            version=version,
            sealed_text=sealed.text,
            sealed_about=sealed.about,
            tokens=json.dumps(dict(sealed.tokens), sort_keys=True),
        )
    )


def _add_readers(conn: Connection, id_: str, readers: Readers) -> None:
    rows = [
        {"id": id_, "kind": kind, "issuer": issuer, "name": name}
        for kind, named in (("user", readers.users), ("group", readers.groups))
        for issuer, name in sorted(named)
    ]
    rows += [
        {"id": id_, "kind": "role", "issuer": "", "name": role.value}
        for role in sorted(readers.roles)
    ]
    if rows:
        conn.execute(insert(reader), rows)


def _readers(listed: Iterable[tuple[str, str, str]]) -> Readers:
    of: dict[str, set[tuple[str, str]]] = {"user": set(), "group": set(), "role": set()}
    for kind, issuer, name in listed:
        of[kind].add((issuer, name))
    return Readers(
        frozenset(of["user"]),
        frozenset(of["group"]),
        frozenset(Role(name) for _, name in of["role"]),
    )
