"""A closed month sealed anew, because a name in it was replaced; and the chain of its seals.

The rows are read once, a page at a time, for two hashes: of what they say, and of what they will say.  One transaction
then sees that the month still has the first, replaces the name in exactly the rows that were read, keeps the second,
and appends who did it, when and why.  Whoever wrote in between at the database is found by `verify`, since the second
hash is of what was read.  Sums and counts are equal, or nothing is done.  Refuses to know: why names go (`deletion`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from policies.periods import Month
from tenants import closing, schema
from tenants.closing import Seal
from tenants.periods import closed_until

_P, _L, _S = schema.period, schema.ledger_entry, schema.period_seal
_TENANT_AT = 3
"""Of what is hashed of a ledger entry."""


class MonthDiffers(Exception):
    """A closed month is not what was closed: nothing of it is changed.  Says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resealed:
    """One link: `changed` rows have another name since."""

    name: str
    number: int
    at_ms: int
    old_sha256: str
    new_sha256: str
    changed: int
    entries: int
    lines: int
    spend_nano_usd: int
    actor: str
    reason: str


@dataclass(slots=True)
class Both:
    """The two hashes of a month in which `tenant` is to be called `pseudonym`."""

    period: Month
    tenant: str
    pseudonym: str
    changed: int = 0
    old: Seal = field(init=False)
    new: Seal = field(init=False)

    def __post_init__(self) -> None:
        self.old, self.new = Seal(self.period.name), Seal(self.period.name)

    def take(self, part: int, rows: Sequence[Sequence[Any]]) -> None:
        self.old.take(part, rows)
        if part == 0:
            theirs = [row[_TENANT_AT] == self.tenant for row in rows]
            self.changed += sum(theirs)
            rows = [
                (*row[:_TENANT_AT], self.pseudonym, *row[_TENANT_AT + 1 :]) if is_theirs else row
                for row, is_theirs in zip(rows, theirs, strict=True)
            ]
        self.new.take(part, rows)


def check(conn: Connection, both: Both) -> None:
    """Whether the month still is what was closed.  MonthDiffers."""
    kept = closing.find(conn, both.period.name)
    sums = {(each.entries, each.lines, each.spend_nano_usd) for each in (both.old, both.new)}
    if kept is None or kept.sha256 is None or kept.sha256 != both.old.sha256 or len(sums) != 1:
        raise MonthDiffers(f"{both.period.name} is not what was closed; compare it with a backup")


def reseal(conn: Connection, both: Both, *, now_ms: int, actor: str, reason: str) -> None:
    """Raises MonthDiffers."""
    closed_until(conn, read=False)  # one at a time, and nobody closes meanwhile
    check(conn, both)
    period, old, new = both.period, both.old, both.new
    theirs = update(_L).where(
        *(_L.c.effective_ms >= period.start_ms, _L.c.effective_ms < period.end_ms),
        _L.c.tenant == both.tenant,
    )
    if conn.execute(theirs.values(tenant=both.pseudonym)).rowcount != both.changed:
        raise MonthDiffers(f"{period.name} was changed while it was read; ask again")
    conn.execute(update(_P).where(_P.c.name == period.name).values(sha256=new.sha256))
    number = conn.execute(select(func.count()).where(_S.c.name == period.name)).scalar_one()
    link = Resealed(
        name=period.name,
        number=int(number) + 1,
        at_ms=now_ms,
        old_sha256=old.sha256,
        new_sha256=new.sha256,
        changed=both.changed,
        entries=new.entries,
        lines=new.lines,
        spend_nano_usd=new.spend_nano_usd,
        actor=actor,
        reason=reason,
    )
    conn.execute(
        insert(_S).values({each: getattr(link, each) for each in Resealed.__dataclass_fields__})
    )


def seals(conn: Connection, name: str) -> tuple[Resealed, ...]:
    """Oldest first."""
    found = conn.execute(select(_S).where(_S.c.name == name).order_by(_S.c.number))
    return tuple(Resealed(**row) for row in found.mappings())


def chained(links: Sequence[Resealed], sha256: str | None) -> bool:
    """Whether each begins where the one before ended, and the last is what is kept."""
    ends = [each.new_sha256 for each in links[-1:]]
    between = all(a.new_sha256 == b.old_sha256 for a, b in pairwise(links))
    return between and ends in ([], [sha256])
