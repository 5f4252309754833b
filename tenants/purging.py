"""How a request went, forgotten after some time; what it cost is not.

A record whose request was charged stays, without its course, since device time is counted by it; one that was refused
before anything was held goes.  Refuses to know: when (`retention`).
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, and_, delete, or_, select, update

from tenants import schema

PURGED: Final = "purged"
"""The outcome of a record that tells no more."""
BATCH: Final = 500

_R, _Q, _O = schema.reservation, schema.request, schema.outbox
_NOTHING: Final = {
    "route": "",
    "outcome": PURGED,
    "reason": None,
    "finish_reason": None,
    "trace": "[]",
    **dict.fromkeys(
        ("admitted_ns", "queued_ns", "prefill_ns", "decode_ns", "total_ns", "recomputed_ns"), 0
    ),
    **dict.fromkeys(("generated_tokens", "delivered_tokens", "preemptions"), 0),
}


def purge(conn: Connection, tenant: str, *, from_ms: int, to_ms: int, most: int = BATCH) -> int:
    """Of one tenant and span of time."""
    within = and_(
        *(_Q.c.tenant == tenant, _Q.c.received_at_ms >= from_ms, _Q.c.received_at_ms < to_ms),
        _Q.c.outcome != PURGED,
    )
    ids = list(conn.execute(select(_Q.c.request_id).where(within).limit(most)).scalars())
    if ids:
        these = _Q.c.request_id.in_(ids)
        held = select(_R.c.request_id).where(_R.c.request_id == _Q.c.request_id).exists()
        conn.execute(delete(_Q).where(these, ~held))
        conn.execute(update(_Q).where(these).values(_NOTHING))
    return len(ids)


def drop_notices(
    conn: Connection, *, before_ms: int, people_before_ms: int = 0, most: int = BATCH
) -> int:
    """What was told of budgets; `people_before_ms`: of users' budgets."""
    of_users = and_(_O.c.scope == "user", _O.c.done_at_ms < people_before_ms)
    over = or_(_O.c.done_at_ms < before_ms, of_users)
    latest_ms = max(before_ms, people_before_ms)
    some = select(_O.c.id).where(_O.c.done_at_ms < latest_ms, over).limit(most)
    ids = list(conn.execute(some).scalars())
    if ids:
        conn.execute(delete(_O).where(_O.c.id.in_(ids)))
    return len(ids)
