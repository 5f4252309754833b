"""Tags as they are kept: all of a request's beside its reservation, and a row each to count and cut by.

Written with the hold, in its turn, and only where there are any.  `reservation.tags` is what a turn goes
by, so that a settlement asks for nothing more; `reservation_tag` is what budgets are counted anew from and
what reports are cut by.  What a client wrote into its request stands in these two places alone, and
`forget_client_tags` and, by request, `drop` take it out of both.

Refuses to know: who may tag (policies.tags), what is spent under a tag (windows).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Text, and_, delete, select

from policies.budget import Span
from policies.tags import Origin, Tag
from tenants import schema
from tenants.scopes import tag_account, tag_of
from tenants.sql import insert_many, update_many, within

_R, _T = schema.reservation, schema.reservation_tag
FORGOTTEN_MOST = 1000
"""Requests at once."""

# Built once: putting a statement together costs more than running it.
_KEEP = insert_many(_T)
_LEAVE = update_many(
    _R,
    {"of_request": Text(), "left_tags": Text()},
    sets="tags = {left_tags}",
    where="request_id = {of_request}",
)


def spelt(tags: Sequence[Tag]) -> str | None:
    """As a reservation keeps them."""
    return msgspec.json.encode(tags).decode() if tags else None


def read(kept: str | None) -> tuple[Tag, ...]:
    return () if kept is None else msgspec.json.decode(kept, type=tuple[Tag, ...])


def accounts(tenant: str, kept: str | None) -> list[str]:
    """Those under which a reservation with these tags is counted."""
    return [tag_account(tenant, tag.name, tag.value) for tag in read(kept) if tag.binding]


def keep(conn: Connection, reserved: Iterable[Mapping[str, Any]]) -> None:
    """A row a tag.  Asks nothing of the database where there is none."""
    rows = [
        {
            **tag._asdict(),
            "request_id": row["request_id"],
            "tenant": row["tenant"],
            "at_ms": row["at_ms"],
        }
        for row in reserved
        if row["tags"] is not None
        for tag in read(row["tags"])
    ]
    if rows:
        _KEEP.run(conn, rows)


def under(account: str, span: Span) -> ColumnElement[bool]:
    """The reservations of `span` that are counted under a tag's account."""
    tenant, name, value = tag_of(account)
    mine = select(_T.c.request_id).where(
        _T.c.origin != Origin.CLIENT.value,
        _T.c.tenant == tenant,
        _T.c.name == name,
        _T.c.value == value,
        _T.c.at_ms >= span.start_s * 1000,
    )
    if span.end_s is not None:
        mine = mine.where(_T.c.at_ms < span.end_s * 1000)
    return _R.c.request_id.in_(mine)


def forget_client_tags(
    conn: Connection, *, tenant: str, user_account: str | None = None, before_ms: int | None = None
) -> int:
    """Drop what clients wrote into requests of a tenant, or of one person of it (`user_account`), or what is
    older than `before_ms`.  Tags of keys and claims stay, and so does every sum.  Returns how many
    requests that were, at most `FORGOTTEN_MOST`: call again while it returns any."""
    theirs = select(_T.c.request_id).where(
        _T.c.origin == Origin.CLIENT.value, _T.c.tenant == tenant
    )
    if before_ms is not None:
        theirs = theirs.where(_T.c.at_ms < before_ms)
    if user_account is not None:
        theirs = theirs.join(_R, _R.c.request_id == _T.c.request_id).where(
            _R.c.user_account == user_account
        )
    ids = conn.execute(theirs.distinct().limit(FORGOTTEN_MOST)).scalars().all()
    return drop(conn, ids)


def drop(conn: Connection, request_ids: Iterable[str], *, binding: bool = False) -> int:
    """The client's tags of these requests, and with `binding` the others' too, which no budget must count any
    more.  Returns of how many requests there were any."""
    asked = {"ids": sorted(request_ids)}
    if not asked["ids"]:
        return 0
    rows = conn.execute(
        select(_R.c.request_id, _R.c.tags).where(
            within(_R.c.request_id, "ids"), _R.c.tags.is_not(None)
        ),
        asked,
    )
    filed = {request_id: read(kept) for request_id, kept in rows}
    left = {
        request_id: [tag for tag in found if tag.binding and not binding]
        for request_id, found in filed.items()
    }
    changed = [
        {"of_request": request_id, "left_tags": spelt(stays)}
        for request_id, stays in left.items()
        if len(stays) < len(filed[request_id])
    ]
    if changed:
        _LEAVE.run(conn, changed)
        gone = within(_T.c.request_id, "ids")
        if not binding:
            gone = and_(gone, _T.c.origin == Origin.CLIENT.value)
        conn.execute(delete(_T).where(gone), asked)
    return len(changed)
