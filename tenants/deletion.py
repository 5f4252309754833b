"""A tenant deleted: what it had is dropped, what it cost is kept under a pseudonym.  A step is one commit.

    begun → drained → exported → (shredded) → dropped and renamed, step by step → ended

Each step finds what is left to do by looking, so that whoever died at any of them is gone on with by asking again.
Sums of every report stay, and so does what each of its people and projects comes to: only names go.  Ended, the row
holds a digest of the name, by which it is refused for good, and nothing holds the name.

Refuses to know: secrets and executors (gateway), HTTP, who may.  Source: DESIGN.md, settled question 19.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, Connection, Table, and_, delete, func, or_, select, update

from policies.periods import Month, month_at
from tenants import closing, directory_rows, documents_rows, resealing, schema
from tenants.changes import ChangeKind
from tenants.periods import closed_until
from tenants.pseudonyms import (
    PSEUDONYM,
    Digest,
    Names,
    Person,
    rename_recorded,
    rename_reserved,
    tombstone,
)
from tenants.resealing import Both
from tenants.scopes import TAG, Dimensions, scope_id, tag_account
from tenants.sql import insert_new

BATCH: Final = 500
REMOVED: Final = "(removed with its tenant)"
"""In the place of what people wrote."""

_T, _L, _R, _Q = schema.tenant_deletion, schema.ledger_entry, schema.reservation, schema.request
_A, _C, _D = schema.adjustment, schema.change, schema.registration
_OF_A_TEXT = (schema.registration_text, schema.registration_reader)
_DROPPED = (
    *(schema.api_key, schema.revocation, schema.budget_override, schema.idempotency),
    *(schema.tenant_secret, schema.erasure, schema.response),
)


class DeletionRefused(Exception):
    """Not now; says why.  `code` is for programs."""

    def __init__(self, code: str, says: str, retry_after_s: int | None = None) -> None:
        super().__init__(says)
        self.code = code
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """`tenant` is None once it has ended; `export_sha256`: from when on nothing can be undone, and empty when the files
    hold nothing of it any more."""

    digest: str
    pseudonym: str
    tenant: str | None
    export_sha256: str | None
    at_ms: int
    ended_at_ms: int | None
    actor: str
    reason: str


def find(conn: Connection, digest: Digest, tenant: str) -> Deletion | None:
    mine = select(_T).where(_T.c.digest == tombstone(digest, tenant))
    row = conn.execute(mine).mappings().one_or_none()
    return None if row is None else Deletion(**row)


def begin(
    conn: Connection,
    digest: Digest,
    tenant: str,
    *,
    drawn: str,
    now_ms: int,
    actor: str,
    reason: str,
) -> Deletion:
    """`drawn`: what it is called from then on.  Begun before: goes on as what it was.  Suspended by it, also where it
    stands in no configuration at the moment."""
    row = {
        "digest": tombstone(digest, tenant),
        "pseudonym": drawn,
        "tenant": tenant,
        "at_ms": now_ms,
        "actor": actor,
        "reason": reason,
    }
    insert_new(conn, _T, [row])
    directory_rows.suspend(conn, tenant, at_s=now_ms // 1000, actor=actor, reason=reason)
    directory_rows.count_up(conn)
    found = find(conn, digest, tenant)
    assert found is not None
    return found


def exported(conn: Connection, of: Deletion, sha256: str) -> None:
    conn.execute(update(_T).where(_T.c.digest == of.digest).values(export_sha256=sha256))


def abandon(conn: Connection, of: Deletion) -> bool:
    """False where it is too late."""
    mine = and_(_T.c.digest == of.digest, _T.c.export_sha256.is_(None))
    return conn.execute(delete(_T).where(mine)).rowcount == 1


def unwiped(conn: Connection) -> bool:
    """Whether one has ended of which something may still stand in gaps of the files."""
    ended = select(func.count()).where(_T.c.ended_at_ms.is_not(None), _T.c.export_sha256 != "")
    return bool(conn.execute(ended).scalar_one())


def wiped(conn: Connection) -> None:
    conn.execute(update(_T).where(_T.c.ended_at_ms.is_not(None)).values(export_sha256=""))


def held(conn: Connection, tenant: str) -> int:
    """How many of its requests run."""
    mine = select(func.count()).where(_R.c.state == "HELD", _R.c.tenant == tenant)
    return int(conn.execute(mine).scalar_one())


def step(conn: Connection, of: Deletion, names: Names, *, now_ms: int) -> Month | bool:
    """One batch of what is left.  A month: it is to be sealed anew first (`reseal`).  False: it has ended."""
    assert of.tenant is not None
    for work in _STEPS:
        if work(conn, of, names):
            return True
    for month in closed_months(conn, of.tenant, most=1):
        return month
    _end(conn, of, now_ms)
    return False


def reseal(conn: Connection, of: Deletion, both: Both, *, now_ms: int) -> None:
    reason = f"a tenant was deleted and is called {of.pseudonym}"
    resealing.reseal(conn, both, now_ms=now_ms, actor=of.actor, reason=reason)


# The steps, each a batch: how many rows it found to do.


def _drop_texts(conn: Connection, of: Deletion, _: Names) -> int:
    some = select(_D.c.id).where(_D.c.tenant == of.tenant).limit(BATCH)
    ids = list(conn.execute(some).scalars())
    if ids:
        for table in (*_OF_A_TEXT, _D):
            conn.execute(delete(table).where(table.c.id.in_(ids)))
        documents_rows.count_up(conn)
    return len(ids)


def _drop_windows(conn: Connection, of: Deletion, _: Names) -> int:
    """Totals, and what was told of them; while its keys are known."""
    assert of.tenant is not None
    begins = msgspec.json.encode([of.tenant]).decode().removesuffix("]") + ","
    keys = select(schema.api_key.c.id).where(schema.api_key.c.tenant == of.tenant)
    count = 0
    for table in (schema.budget_window, schema.outbox):
        scope, account = table.c.scope, table.c.account
        theirs = or_(
            and_(scope == "tenant", account == of.tenant),
            and_(scope == "key", account.in_(keys)),
            and_(scope.not_in(("tenant", "key")), account.startswith(begins, autoescape=True)),
        )
        count += conn.execute(delete(table).where(theirs)).rowcount
    return count


def _drop_rows(conn: Connection, of: Deletion, _: Names) -> int:
    count = sum(_some(conn, table, table.c.tenant == of.tenant) for table in _DROPPED)
    if count:
        directory_rows.count_up(conn)
    return count


def _some(conn: Connection, table: Table, where: ColumnElement[bool]) -> int:
    (key, *_) = table.primary_key.columns
    some = select(key).where(where).limit(BATCH)
    return conn.execute(delete(table).where(where, key.in_(some))).rowcount


def _rename_reserved(conn: Connection, of: Deletion, names: Names) -> int:
    rows = conn.execute(select(_R).where(_R.c.tenant == of.tenant).limit(BATCH)).mappings().all()
    rename_reserved(conn, names, rows, tenant=of.pseudonym)
    return len(rows)


def _rename_recorded(conn: Connection, of: Deletion, names: Names) -> int:
    rows = conn.execute(select(_Q).where(_Q.c.tenant == of.tenant).limit(BATCH)).mappings().all()
    rename_recorded(conn, names, rows, tenant=of.pseudonym)
    return len(rows)


def _rename_adjusted(conn: Connection, of: Deletion, names: Names) -> int:
    rows = conn.execute(select(_A).where(_A.c.tenant == of.tenant).limit(BATCH)).mappings().all()
    for row in rows:
        new = {
            "tenant": of.pseudonym,
            "account": _account(row, of, names),
            "actor": names.actor(row["actor"]),
            "reason": REMOVED,
        }
        conn.execute(update(_A).where(_A.c.id == row["id"]).values(new))
    return len(rows)


def _account(row: Mapping[Any, Any], of: Deletion, names: Names) -> str | None:
    account: str | None = row["account"]
    if account is None or row["scope"] == "key":
        return account
    if row["scope"] == "tenant":
        return of.pseudonym
    parts = msgspec.json.decode(account, type=list[str])
    if row["scope"] == "user":
        return Person(of.pseudonym, PSEUDONYM, names.person(*parts[1:])).account
    if row["scope"] == TAG:
        return tag_account(of.pseudonym, *(names.other("tag", part) for part in parts[1:]))
    dims = Dimensions(of.pseudonym, names.other("project", parts[1]), "", "", None, "", None)
    return scope_id("project", dims)


def _rename_changes(conn: Connection, of: Deletion, names: Names) -> int:
    rows = conn.execute(select(_C).where(_C.c.tenant == of.tenant).limit(BATCH)).mappings().all()
    for row in rows:
        of_a_key = row["kind"].startswith("key_")
        new = {
            "tenant": of.pseudonym,
            "subject": row["subject"] if of_a_key else names.other("subject", row["subject"]),
            "actor": names.actor(row["actor"]),
            "reason": REMOVED,
        }
        conn.execute(update(_C).where(_C.c.id == row["id"]).values(new))
    return len(rows)


def _rename_open_entries(conn: Connection, of: Deletion, _: Names) -> int:
    """Of months that are not closed; a month that is closed meanwhile waits for this transaction."""
    until_ms = closed_until(conn, read=True)
    theirs = and_(_L.c.tenant == of.tenant, _L.c.effective_ms >= until_ms)
    some = select(_L.c.transfer_id).where(theirs).limit(BATCH)
    named = update(_L).where(_L.c.transfer_id.in_(some))
    return conn.execute(named.values(tenant=of.pseudonym)).rowcount


_STEPS: Final[tuple[Callable[[Connection, Deletion, Names], int], ...]] = (
    *(_drop_texts, _drop_windows, _drop_rows),
    *(_rename_reserved, _rename_recorded, _rename_adjusted, _rename_changes, _rename_open_entries),
)


def closed_months(conn: Connection, tenant: str, *, most: int = 1200) -> list[Month]:
    """Those that hold entries of it, oldest first.  DeletionRefused where one is shut and not sealed."""
    until_ms, after_ms, found = closed_until(conn), 0, list[Month]()
    while len(found) < most:
        first = select(func.min(_L.c.effective_ms)).where(
            *(_L.c.tenant == tenant, _L.c.effective_ms >= after_ms, _L.c.effective_ms < until_ms)
        )
        at_ms = conn.execute(first).scalar_one()
        if at_ms is None:
            break
        month = month_at(int(at_ms))
        kept = closing.find(conn, month.name)
        if kept is None or kept.sha256 is None:
            raise DeletionRefused(
                "period_closing",
                f"{month.name} was shut and is not sealed: 'lockgate usage close --period {month.name}' first",
            )
        found.append(month)
        after_ms = month.end_ms
    return found


def check(conn: Connection, *, both: Both) -> None:
    """Raises MonthDiffers, before anything is destroyed."""
    resealing.check(conn, both)


def _end(conn: Connection, of: Deletion, now_ms: int) -> None:
    """Nothing is left: the last rows that hold the name."""
    tenant = str(of.tenant)
    conn.execute(delete(schema.suspension).where(schema.suspension.c.tenant == tenant))
    salts = schema.pseudonym_salt
    conn.execute(delete(salts).where(salts.c.tenant == tenant))
    reason = re.sub(re.escape(tenant), of.pseudonym, of.reason, flags=re.IGNORECASE)
    ended = {"tenant": None, "ended_at_ms": now_ms, "reason": reason}
    conn.execute(update(_T).where(_T.c.digest == of.digest).values(ended))
    directory_rows.note(
        conn,
        at_s=now_ms // 1000,
        tenant=of.pseudonym,
        kind=ChangeKind.TENANT_DELETED.value,
        subject=of.pseudonym,
        detail="",
        actor=of.actor,
        reason=reason,
    )
    directory_rows.count_up(conn)
