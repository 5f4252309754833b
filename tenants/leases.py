"""Holds are leases: renewed while their request runs, resolved when nobody renews them any more.

Refuses to know: what a resolved hold costs (ledger).  Source: MONEY.md §1 ("Crash recovery").
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, select, update

from tenants import ledger, schema, windows
from tenants.asks import LapseAsk, Swept
from tenants.ledger import EXPIRED, HELD, VOIDED

SWEEP_MOST = 1000
IDS_MOST = 500
"""Ids in one statement."""

_R = schema.reservation


def mark_dispatched(conn: Connection, request_id: str, *, now_ms: int) -> bool:
    """True: durable, work may start.  False: the hold is gone (its lease lapsed), it may not."""
    changed = conn.execute(
        update(_R)
        .where(_R.c.request_id == request_id, _R.c.state == HELD, _R.c.lease_until_ms > now_ms)
        .values(dispatched=True)
    )
    return changed.rowcount == 1


def renew(
    conn: Connection, request_ids: Sequence[str], *, lease_s: int, now_ms: int
) -> tuple[str, ...]:
    """Keep the leases of what still runs; returns the ids that are held no longer."""
    lost: list[str] = []
    ordered = sorted(request_ids)
    for start in range(0, len(ordered), IDS_MOST):
        ids = ordered[start : start + IDS_MOST]
        held = select(_R.c.request_id).where(_R.c.request_id.in_(ids), _R.c.state == HELD)
        locked = held.order_by(_R.c.request_id).with_for_update()
        kept = sorted(conn.execute(locked).scalars())
        conn.execute(
            update(_R)
            .where(_R.c.request_id.in_(kept))
            .values(lease_until_ms=now_ms + lease_s * 1000)
        )
        lost += set(ids).difference(kept)
    return tuple(each for each in request_ids if each in set(lost))


def sweep(conn: Connection, *, now_ms: int, most: int = SWEEP_MOST) -> Swept:
    """Resolve the holds whose lease has lapsed; call again while it finds `most`.  What another gateway
    is at, it leaves alone."""
    windows.drop_old(conn, now_ms // 1000)
    lapsed = (
        select(_R.c.request_id)
        .where(_R.c.state == HELD, _R.c.lease_until_ms <= now_ms)
        .order_by(_R.c.lease_until_ms)
        .limit(most)
        .with_for_update(skip_locked=True)
    )
    return _resolve(conn, conn.execute(lapsed).scalars().all(), now_ms, until_ms=now_ms)


def recover(conn: Connection, *, owner: str, now_ms: int) -> Swept:
    """After a restart, where this process alone writes: resolve every hold of a process that is no
    more, whatever its lease."""
    dead = select(_R.c.request_id).where(_R.c.state == HELD, _R.c.owner != owner)
    return _resolve(conn, conn.execute(dead).scalars().all(), now_ms, until_ms=None)


def _resolve(conn: Connection, ids: Sequence[str], now_ms: int, *, until_ms: int | None) -> Swept:
    if not ids:
        return Swept()
    asks = [LapseAsk(each, until_ms) for each in ids]
    left = ledger.turn(conn, asks, owner="", now_ms=now_ms)
    became = dict(zip(ids, left, strict=True))
    return Swept(
        tuple(each for each in ids if became[each] == EXPIRED),
        tuple(each for each in ids if became[each] == VOIDED),
    )
