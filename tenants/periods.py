"""The gate behind which months are closed: one row, one instant, asked by whoever writes what is late.

Refuses to know: what is written, which month may be closed (policies.periods), how one is sealed
(closing).  Source: MONEY.md §1, invariant 11.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, select

from policies.periods import may_be_closed
from tenants import schema

_G = schema.period_gate
_GATE = select(_G.c.closed_until_ms).where(_G.c.id == 1)


def gate(conn: Connection, admitted_ms: Iterable[int], now_ms: int) -> int:
    """Up to where months are closed, for a transaction that writes entries of what was admitted at these
    times: it stays there until that transaction ends.  0, and nothing asked, where none of it is so old
    that its month could be closed; so not on the way of requests that end as they should."""
    if not any(may_be_closed(at_ms, now_ms) for at_ms in admitted_ms):
        return 0
    return closed_until(conn, read=True)


def closed_until(conn: Connection, *, read: bool | None = None) -> int:
    """`read`: locked until this transaction ends, shared; False: exclusively."""
    query = _GATE if read is None else _GATE.with_for_update(read=read)
    return int(conn.execute(query).scalar_one())
