"""Idempotency keys in SQL, as plain functions over a `Connection`: claimed, kept, closed, freed, forgotten.

A row stands for a key and all that it belongs to, by a keyed digest: neither the key nor a body can be read from
it.  The answer is sealed bytes that mean nothing here.  `policies.idempotency` decides; of two processes that
claim a key at once the primary key decides.  Refuses to know: HTTP, what is sealed, where time comes from.

Theory of operation.  A claim is durable before anything is done by it, and names the request that does it.  That
request's own reservation is what tells, when its process has gone and its lease lapsed, whether anything was
billed.  Whatever ends a claim does so only where it is still that request's.  Source: MONEY.md §1, §3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, and_, delete, func, or_, select, update

from policies.idempotency import Billed, Standing, State, Verdict, judge
from tenants import ledger, schema
from tenants.asks import Ask, HoldAsk
from tenants.sql import insert_new

LEASE_S: Final = 60
TTL_S: Final = 24 * 3600
"""From the claim on.  SDKs retry for minutes, people and queues for a day (Stripe keeps keys as long)."""
SWEEP_MOST: Final = 500
DIGESTS_MOST: Final = 500
"""In one statement."""

_T = schema.idempotency


@dataclass(frozen=True, slots=True)
class Claim:
    """`digest`: of the key and all that it belongs to; `body`: of what is asked.  `request_id` does it, where nobody
    has yet.  `metered`: the book knows of it."""

    digest: str
    body: bytes
    tenant: str
    request_id: str
    metered: bool


@dataclass(frozen=True, slots=True)
class Found:
    """`request_id`: whose the key is now.  `sealed`: of a REPLAY."""

    verdict: Verdict
    request_id: str
    sealed: bytes | None = None
    why: str | None = None


def claim(conn: Connection, ask: Claim, *, owner: str, now_ms: int, room: bool = True) -> Found:
    """The key is this request's, or whatever else it is.  `room`: for another key of this tenant's."""
    row = _find(conn, ask.digest)
    if row is None:
        verdict = judge(None, room=room)
        if verdict is not Verdict.RUN:
            return Found(verdict, ask.request_id)
        insert_new(conn, _T, [{"digest": ask.digest, **_claimed(ask, owner, now_ms)}])
        row = _find(conn, ask.digest)
        assert row is not None, "whoever was first has committed"
    if (row["request_id"], row["state"]) == (ask.request_id, State.RUNNING.value):
        return Found(Verdict.RUN, ask.request_id)
    verdict = judge(_standing(conn, row, ask.body, now_ms))
    if verdict is Verdict.RUN:
        _take_over(conn, row, ask, owner, now_ms)
        return Found(verdict, ask.request_id)
    sealed = bytes(row["sealed"]) if verdict is Verdict.REPLAY else None
    return Found(verdict, row["request_id"], sealed, row["why"])


def lost_claims(conn: Connection, asks: Sequence[Ask]) -> frozenset[str]:
    """The requests that would hold by a key which is not theirs any more: their process was away for longer than a
    lease, and somebody else has it.  Asked in the transaction that reserves, and locked until it ends."""
    wanted = [
        (each.claim, each.request_id)
        for each in asks
        if isinstance(each, HoldAsk) and each.claim is not None
    ]
    if not wanted:
        return frozenset()
    running = (
        select(_T.c.digest, _T.c.request_id)
        .where(_T.c.digest.in_([digest for digest, _ in wanted]), _T.c.state == State.RUNNING.value)
        .order_by(_T.c.digest)
        .with_for_update()
    )
    kept = {row.digest: row.request_id for row in conn.execute(running)}
    return frozenset(request_id for digest, request_id in wanted if kept.get(digest) != request_id)


def renew(conn: Connection, digests: Sequence[str], *, owner: str, now_ms: int) -> None:
    for start in range(0, len(digests), DIGESTS_MOST):
        some = digests[start : start + DIGESTS_MOST]
        conn.execute(
            update(_T)
            .where(_T.c.digest.in_(some), _T.c.owner == owner, _T.c.state == State.RUNNING.value)
            .values(lease_until_ms=now_ms + LEASE_S * 1000)
        )


def finish(
    conn: Connection,
    digest: str,
    request_id: str,
    sealed: bytes | None,
    version: int,
    why: str | None,
) -> bool:
    """Done, with an answer or with the reason why none is kept.  `version`: of the secret that sealed it.  False where
    the key is somebody else's by now."""
    done = conn.execute(
        update(_T)
        .where(_mine(digest, request_id))
        .values(
            state=State.DONE.value,
            sealed=sealed,
            sealed_bytes=len(sealed or b""),
            secret_version=version,
            why=why,
        )
    )
    return done.rowcount == 1


def free(conn: Connection, digest: str, request_id: str) -> bool:
    """Nothing came of it: as if the key had never been."""
    return conn.execute(delete(_T).where(_mine(digest, request_id))).rowcount == 1


def sweep(conn: Connection, *, now_ms: int, most: int = SWEEP_MOST) -> int:
    """Forget what is over, the oldest first; call again while it finds `most`.  What runs stays."""
    over = and_(
        _T.c.expires_at_ms <= now_ms,
        or_(_T.c.state == State.DONE.value, _T.c.lease_until_ms <= now_ms),
    )
    some = select(_T.c.digest).where(over).order_by(_T.c.expires_at_ms).limit(most)
    gone = list(conn.execute(some).scalars())
    for start in range(0, len(gone), DIGESTS_MOST):
        conn.execute(delete(_T).where(_T.c.digest.in_(gone[start : start + DIGESTS_MOST]), over))
    return len(gone)


def forget(conn: Connection, tenant: str, *, most: int = SWEEP_MOST) -> int:
    """A tenant's answers vanish with its secret, and with them what was asked.  What runs stays, and ends without
    an answer."""
    theirs = and_(_T.c.tenant == tenant, _T.c.state == State.DONE.value)
    gone = list(conn.execute(select(_T.c.digest).where(theirs).limit(most)).scalars())
    for start in range(0, len(gone), DIGESTS_MOST):
        conn.execute(delete(_T).where(_T.c.digest.in_(gone[start : start + DIGESTS_MOST]), theirs))
    return len(gone)


def drop(conn: Connection, tenant: str, version: int, why: str) -> int:
    """The answers that this version of the tenant's secret sealed are kept no more; their keys stay done."""
    dropped = conn.execute(
        update(_T)
        .where(_T.c.tenant == tenant, _T.c.secret_version == version, _T.c.sealed.is_not(None))
        .values(sealed=None, sealed_bytes=0, why=why)
    )
    return dropped.rowcount


def tally(conn: Connection) -> Mapping[str, tuple[int, int]]:
    """How many keys each tenant has, and how many bytes of answers."""
    rows = conn.execute(
        select(_T.c.tenant, func.count(), func.sum(_T.c.sealed_bytes)).group_by(_T.c.tenant)
    )
    return {tenant: (int(keys), int(size or 0)) for tenant, keys, size in rows}


def _take_over(
    conn: Connection, row: Mapping[Any, Any], ask: Claim, owner: str, now_ms: int
) -> None:
    taken = conn.execute(
        update(_T)
        .where(_T.c.digest == ask.digest, _T.c.request_id == row["request_id"])
        .values(_claimed(ask, owner, now_ms))
    )
    assert taken.rowcount == 1, "the row was read for update"


def _claimed(ask: Claim, owner: str, now_ms: int) -> dict[str, Any]:
    return {
        "tenant": ask.tenant,
        "body": ask.body,
        "request_id": ask.request_id,
        "metered": ask.metered,
        "state": State.RUNNING.value,
        "owner": owner,
        "lease_until_ms": now_ms + LEASE_S * 1000,
        "expires_at_ms": now_ms + TTL_S * 1000,
        "sealed": None,
        "sealed_bytes": 0,
        "secret_version": 0,
        "why": None,
    }


def _standing(conn: Connection, row: Mapping[Any, Any], body: bytes, now_ms: int) -> Standing:
    return Standing(
        state=State(row["state"]),
        same_body=bytes(row["body"]) == body,
        lapsed=row["lease_until_ms"] <= now_ms,
        expired=row["expires_at_ms"] <= now_ms,
        kept=row["sealed"] is not None,
        billed=_billed(conn, row),
    )


def _billed(conn: Connection, row: Mapping[Any, Any]) -> Billed:
    if not row["metered"]:
        return Billed.UNTOLD
    held = ledger.find(conn, row["request_id"])
    if held is None or held["state"] == ledger.VOIDED:
        return Billed.NOTHING
    if held["state"] == ledger.HELD:
        return Billed.OPEN
    return Billed.SOMETHING if held["charge"] else Billed.NOTHING


def _mine(digest: str, request_id: str) -> Any:
    return and_(
        _T.c.digest == digest,
        _T.c.request_id == request_id,
        _T.c.state == State.RUNNING.value,
    )


def _find(conn: Connection, digest: str) -> Mapping[Any, Any] | None:
    found = conn.execute(select(_T).where(_T.c.digest == digest).with_for_update())
    return found.mappings().one_or_none()
