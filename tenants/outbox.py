"""What is to be told: a row in the transaction of what it tells of, and its delivery, at least once.

Refuses to know: where it is told, and how (gateway).  Source: MONEY.md §3 ("Webhooks: outbox row in the
same transaction").

A row's id follows from what it is about (budget, window, threshold), so that one thing is told once
whoever notices it, however often, on however many gateways; and it is the `webhook-id` of every attempt.
Whoever delivers a row claims it first for `CLAIM_MS`; one that dies meanwhile leaves it to the next.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
from sqlalchemy import Connection, select, update

from tenants import schema
from tenants.sql import insert_new

_O = schema.outbox
THRESHOLD = "budget.threshold_reached"
PARTS = 1_000_000
"""A threshold is kept as millionths of a limit."""
CLAIM_MS = 120_000
CLAIMED_MOST = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A budget that has come to `threshold`, in millionths, of its limit.  `refused`: and a request did
    not fit under it.  `resets_at_s` is None where its window never ends."""

    scope: str
    account: str
    window_id: str
    threshold: int
    limit_nano_usd: int
    spent_nano_usd: int
    held_nano_usd: int
    refused: bool
    resets_at_s: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One row that this process may deliver now.  `attempt` counts from 1."""

    id: str
    what: Reached
    at_ms: int
    attempt: int


def post(conn: Connection, reached: Sequence[Reached], now_ms: int) -> None:
    """What was told before stays as it was told."""
    if reached:
        insert_new(conn, _O, [_row(each, now_ms) for each in reached])


def claim(conn: Connection, *, now_ms: int, most: int = CLAIMED_MOST) -> tuple[Told, ...]:
    """What is due, oldest first; nobody else gets it for `CLAIM_MS`."""
    due = (
        select(_O)
        .where(_O.c.done_at_ms.is_(None), _O.c.next_at_ms <= now_ms)
        .order_by(_O.c.next_at_ms, _O.c.id)
        .limit(most)
        .with_for_update(skip_locked=True)
    )
    rows = conn.execute(due).mappings().all()
    if rows:
        conn.execute(
            update(_O)
            .where(_O.c.id.in_([row["id"] for row in rows]))
            .values(attempts=_O.c.attempts + 1, next_at_ms=now_ms + CLAIM_MS)
        )
    return tuple(map(_told, rows))


def postpone(conn: Connection, told: Told, *, until_ms: int) -> None:
    conn.execute(
        update(_O).where(_O.c.id == told.id, _O.c.done_at_ms.is_(None)).values(next_at_ms=until_ms)
    )


def finish(conn: Connection, told: Told, outcome: str, *, now_ms: int) -> None:
    conn.execute(
        update(_O)
        .where(_O.c.id == told.id, _O.c.done_at_ms.is_(None))
        .values(done_at_ms=now_ms, outcome=outcome)
    )


def _row(of: Reached, now_ms: int) -> dict[str, Any]:
    about = (THRESHOLD, of.scope, of.account, of.window_id, str(of.threshold))
    return {
        "id": "evt_" + hashlib.sha256(msgspec.json.encode(about)).hexdigest()[:32],
        "kind": THRESHOLD,
        "scope": of.scope,
        "account": of.account,
        "window_id": of.window_id,
        "threshold": of.threshold,
        "payload": msgspec.json.encode(asdict(of)).decode(),
        "at_ms": now_ms,
        "attempts": 0,
        "next_at_ms": now_ms,
        "done_at_ms": None,
        "outcome": None,
    }


def _told(row: Mapping[Any, Any]) -> Told:
    what = msgspec.json.decode(row["payload"], type=Reached)
    return Told(id=row["id"], what=what, at_ms=row["at_ms"], attempt=row["attempts"] + 1)
