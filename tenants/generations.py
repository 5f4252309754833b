"""Numbers that grow with every change of what all gateways go by, in the transaction of the change.

Who has read a number can tell that another process has written since.  The row is locked by whoever counts
up until it commits, so numbers become visible in their order (PostgreSQL included).
Refuses to know: what changed.
"""

from __future__ import annotations

from enum import IntEnum

from sqlalchemy import Connection, insert, select, update

from tenants.schema import registration_state as state


class Of(IntEnum):
    """The table was the registered texts' first, and is named for them."""

    TEXTS = 1
    DIRECTORY = 2
    SECRETS = 3


def generation(conn: Connection, of: Of) -> int:
    mine = select(state.c.generation).where(state.c.id == of.value)
    found: int | None = conn.execute(mine).scalar_one_or_none()
    return found or 0


def begin(conn: Connection, of: Of) -> None:
    """A row to count in.  IntegrityError where another process makes it at this moment: it is there."""
    if conn.execute(select(state.c.id).where(state.c.id == of.value)).first() is None:
        conn.execute(insert(state).values(id=of.value, generation=0))


def count_up(conn: Connection, of: Of) -> int:
    mine = update(state).where(state.c.id == of.value)
    if not conn.execute(mine.values(generation=state.c.generation + 1)).rowcount:
        conn.execute(insert(state).values(id=of.value, generation=1))
    return generation(conn, of)
