"""Stored responses in SQL, as plain functions over a `Connection`: begun, kept, found, removed, forgotten.

A row is one principal's, and every question names whose: what is another's and what is absent are the same nothing.
What was said is sealed bytes that mean nothing here; the columns beside it are what administrators may know.

Theory of operation.  A row is there, open and without a word, before anything is done for it, and names the process
that does it.  It is kept only while it is open and still that process's; whoever dies in between leaves it to its
lease, after which what ran in the background has failed and anything else is gone, since nobody was told of it.
Refuses to know: HTTP, what is sealed, where time comes from.  Source: DESIGN.md, settled 7.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from sqlalchemy import ColumnElement, Connection, and_, delete, func, insert, select, update

from tenants import schema

LEASE_S: Final = 60
KEPT_S: Final = 30 * 24 * 3600
"""From its beginning on, as OpenAI keeps them."""
SWEEP_MOST: Final = 500
OPEN: Final = ("queued", "in_progress")

_T = schema.response
_IS_OPEN = _T.c.status.in_(OPEN)


@dataclass(frozen=True, slots=True)
class Whose:
    tenant: str
    project: str
    issuer: str
    user: str

    @property
    def theirs(self) -> ColumnElement[bool]:
        return and_(
            *(_T.c.tenant == self.tenant, _T.c.project == self.project),
            *(_T.c.issuer == self.issuer, _T.c.user == self.user),
        )


Gone: TypeAlias = Sequence[tuple[Whose, int]]
"""What was removed: whose each was, and its bytes."""


@dataclass(frozen=True, slots=True)
class Begun:
    id: str
    model: str
    background: bool
    previous: str | None = None
    sealed: bytes | None = None
    version: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """`lapsed`: it is open, and who worked on it has gone."""

    id: str
    status: str
    background: bool
    previous: str | None
    sealed: bytes | None
    lapsed: bool


def begin(conn: Connection, whose: Whose, what: Begun, *, owner: str, now_ms: int) -> None:
    row = {
        "id": what.id,
        "tenant": whose.tenant,
        "project": whose.project,
        "issuer": whose.issuer,
        "user": whose.user,
        "model": what.model,
        "status": "queued",
        "background": what.background,
        "previous": what.previous,
        "created_at_ms": now_ms,
        "expires_at_ms": now_ms + KEPT_S * 1000,
        "owner": owner,
        "lease_until_ms": now_ms + LEASE_S * 1000,
        "cancelling": False,
        "sealed": what.sealed,
        "sealed_bytes": len(what.sealed or b""),
        "secret_version": what.version,
    }
    conn.execute(insert(_T).values(row))


def progress(conn: Connection, id_: str, *, owner: str) -> bool:
    """It has left the queue."""
    mine = _mine(id_, owner)
    return conn.execute(update(_T).where(mine).values(status="in_progress")).rowcount == 1


def keep(
    conn: Connection, id_: str, status: str, sealed: bytes, version: int, *, owner: str
) -> int | None:
    """It is over.  By how many bytes there is more of it; None where it was removed meanwhile, or given up."""
    mine = _mine(id_, owner)
    had = conn.execute(select(_T.c.sealed_bytes).where(mine).with_for_update()).scalar_one_or_none()
    if had is None:
        return None
    values = {
        "status": status,
        "sealed": sealed,
        "sealed_bytes": len(sealed),
        "secret_version": version,
    }
    conn.execute(update(_T).where(mine).values(values))
    return len(sealed) - int(had)


def abandon(conn: Connection, id_: str, *, owner: str) -> Gone:
    """Nothing came of it: as if it had never been."""
    return _delete(conn, _mine(id_, owner))


def find(conn: Connection, whose: Whose, id_: str, *, now_ms: int) -> Row | None:
    found = conn.execute(_rows(now_ms).where(_T.c.id == id_, whose.theirs)).one_or_none()
    return None if found is None else Row(*found)


def chain(
    conn: Connection, whose: Whose, id_: str, *, now_ms: int, most: int
) -> tuple[list[Row], bool]:
    """It and what it went on from, the first first.  False where one of them is missing, or there are more."""
    found: list[Row] = []
    next_: str | None = id_
    while next_ is not None:
        row = find(conn, whose, next_, now_ms=now_ms) if len(found) < most else None
        if row is None:
            return found[::-1], False
        found.append(row)
        next_ = row.previous
    return found[::-1], True


def remove(conn: Connection, whose: Whose, id_: str) -> Gone:
    return _delete(conn, and_(_T.c.id == id_, whose.theirs))


def cancel(conn: Connection, whose: Whose, id_: str) -> bool:
    """Whoever works on it is to stop.  False where nobody does."""
    wanted = and_(_T.c.id == id_, whose.theirs, _T.c.background.is_(True), _IS_OPEN)
    return conn.execute(update(_T).where(wanted).values(cancelling=True)).rowcount == 1


def end_unheard(conn: Connection, whose: Whose, id_: str) -> bool:
    """It is cancelled, since whoever works on it has not answered.  False where it has ended meanwhile."""
    wanted = and_(_T.c.id == id_, whose.theirs, _T.c.cancelling.is_(True), _IS_OPEN)
    return conn.execute(update(_T).where(wanted).values(status="cancelled")).rowcount == 1


def to_end(conn: Connection, ids: Sequence[str]) -> list[str]:
    """Of what runs here: what is to stop, because that was asked for elsewhere or it was removed."""
    going = select(_T.c.id).where(_T.c.id.in_(ids), _T.c.cancelling.is_(False), _IS_OPEN)
    there = set(conn.execute(going).scalars())
    return [id_ for id_ in ids if id_ not in there]


def renew(conn: Connection, ids: Sequence[str], *, owner: str, now_ms: int) -> None:
    for start in range(0, len(ids), SWEEP_MOST):
        mine = and_(_T.c.id.in_(ids[start : start + SWEEP_MOST]), _T.c.owner == owner, _IS_OPEN)
        conn.execute(update(_T).where(mine).values(lease_until_ms=now_ms + LEASE_S * 1000))


def recover(conn: Connection, *, owner: str, now_ms: int) -> None:
    """After a restart, where this process alone writes: whoever worked on what is open is no more."""
    dead = and_(_IS_OPEN, _T.c.owner != owner)
    conn.execute(update(_T).where(dead).values(lease_until_ms=now_ms))


def sweep(conn: Connection, *, now_ms: int, most: int = SWEEP_MOST) -> Gone:
    """A slice of what is over: what has expired, and what somebody died over."""
    lapsed = and_(_IS_OPEN, _T.c.lease_until_ms <= now_ms)
    failed = _some(conn, and_(lapsed, _T.c.background.is_(True)), most)
    if failed:
        conn.execute(update(_T).where(_T.c.id.in_(failed), lapsed).values(status="failed"))
    gone: list[tuple[Whose, int]] = []
    unheard = and_(lapsed, _T.c.background.is_(False))
    for over in (unheard, and_(_T.c.expires_at_ms <= now_ms, ~_IS_OPEN)):
        some = _some(conn, over, most)
        if some:
            gone += _delete(conn, and_(_T.c.id.in_(some), over))
    return gone


def forget(conn: Connection, tenant: str, *, most: int = SWEEP_MOST) -> int:
    """All of a tenant's, with its secret; what runs ends without being kept."""
    gone = _some(conn, _T.c.tenant == tenant, most)
    if gone:
        conn.execute(delete(_T).where(_T.c.id.in_(gone)))
    return len(gone)


def forget_person(conn: Connection, tenant: str, issuer: str, user: str, *, before_ms: int) -> int:
    """What a person stored until then goes with their name: it is what they said."""
    theirs = and_(
        *(_T.c.tenant == tenant, _T.c.issuer == issuer, _T.c.user == user),
        _T.c.created_at_ms < before_ms,
    )
    return conn.execute(delete(_T).where(theirs)).rowcount


def sealed_by(conn: Connection, tenant: str) -> Mapping[int, int]:
    """How many each version of the tenant's secret is needed for."""
    mine = and_(_T.c.tenant == tenant, _T.c.sealed.is_not(None))
    counted = select(_T.c.secret_version, func.count()).where(mine).group_by(_T.c.secret_version)
    return {version: int(count) for version, count in conn.execute(counted)}


def stale(
    conn: Connection, tenant: str, newest: int, after: str = "", *, most: int = 50
) -> list[tuple[str, bytes]]:
    """Some of what another version sealed than the newest, by id, those behind `after`."""
    old = and_(
        *(_T.c.tenant == tenant, _T.c.secret_version < newest, _T.c.sealed.is_not(None)),
        _T.c.id > after,
    )
    rows = conn.execute(select(_T.c.id, _T.c.sealed).where(old).order_by(_T.c.id).limit(most))
    return [(id_, bytes(sealed)) for id_, sealed in rows]


def reseal(conn: Connection, id_: str, old: bytes, new: bytes, version: int) -> bool:
    """False where what stands there is not `old` any more."""
    there = and_(_T.c.id == id_, _T.c.sealed == old)
    values = {"sealed": new, "sealed_bytes": len(new), "secret_version": version}
    return conn.execute(update(_T).where(there).values(values)).rowcount == 1


def tally(conn: Connection) -> Mapping[Whose, tuple[int, int]]:
    """How many each principal has, and how many bytes of them."""
    whose = (_T.c.tenant, _T.c.issuer, _T.c.user, _T.c.project)  # as the index has them
    counted = select(*whose, func.count(), func.sum(_T.c.sealed_bytes)).group_by(*whose)
    return {
        Whose(tenant, project, issuer, user): (int(many), int(size or 0))
        for tenant, issuer, user, project, many, size in conn.execute(counted)
    }


def _rows(now_ms: int) -> Any:
    return select(
        *(_T.c.id, _T.c.status, _T.c.background, _T.c.previous, _T.c.sealed),
        and_(_IS_OPEN, _T.c.lease_until_ms <= now_ms),
    )


def _mine(id_: str, owner: str) -> ColumnElement[bool]:
    return and_(_T.c.id == id_, _T.c.owner == owner, _IS_OPEN)


def _delete(conn: Connection, where: ColumnElement[bool]) -> Gone:
    whose = (_T.c.tenant, _T.c.project, _T.c.issuer, _T.c.user)
    gone = conn.execute(delete(_T).where(where).returning(*whose, _T.c.sealed_bytes))
    return [(Whose(*names), int(size)) for *names, size in gone]


def _some(conn: Connection, where: ColumnElement[bool], most: int) -> list[str]:
    return list(conn.execute(select(_T.c.id).where(where).limit(most)).scalars())
