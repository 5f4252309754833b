"""By which secret registered texts are sealed, and the same texts sealed anew in their place.

Plain functions over a `Connection`.  Refuses to know: what a head says (its length is given), what is sealed.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, func, select, update

from tenants.schema import registration as head
from tenants.schema import registration_text as text


@dataclass(frozen=True, slots=True)
class SealedHeads:
    """How a text and what it is called begin."""

    id: str
    version: int
    text: bytes
    about: bytes


def heads(conn: Connection, tenant: str, head_bytes: int) -> list[SealedHeads]:
    """Of every version that is kept of a tenant's texts."""
    rows = conn.execute(
        select(
            text.c.id,
            text.c.version,
            func.substr(text.c.sealed_text, 1, head_bytes),
            func.substr(text.c.sealed_about, 1, head_bytes),
        )
        .join(head, head.c.id == text.c.id)
        .where(head.c.tenant == tenant)
        .order_by(text.c.id, text.c.version)
    )
    return [SealedHeads(row[0], row[1], bytes(row[2]), bytes(row[3])) for row in rows]


def reseal(
    conn: Connection,
    id_: str,
    version: int,
    old: tuple[bytes, bytes],
    new: tuple[bytes, bytes],
) -> bool:
    """False where what stands there is not `old` any more: somebody wrote or removed it meanwhile.  The second of
    both is compared: it is short, and no two sealings are alike."""
    done = conn.execute(
        update(text)
        .where(
            text.c.id == id_,
            text.c.version == version,
            text.c.sealed_about == old[1],
        )
        .values(sealed_text=new[0], sealed_about=new[1])
    )
    return done.rowcount == 1
