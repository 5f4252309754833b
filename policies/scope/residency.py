"""How long an entry lives, what users' traffic may do to it, and which hits may be told.

Deterministic warmness: below user scope entries come of registration and stay until a version or an
expiry ends them; users' requests neither make, keep alive nor push out any (P4).  A tenant that opts
into opportunistic sharing gives that up among its own users, and hits of that kind are shown as misses.
Refuses to know: memory, clocks, keys; instants are monotonic nanoseconds.  Source: SECURITY.md §2
(TTL, Timing, cached_tokens); DESIGN.md, settled questions 3 and 5.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from policies.scope.labels import Level


class Source(StrEnum):
    """How an entry came to be, which is the same as who may be told of it."""

    OWN = "own"  # the reader's own traffic, in user or session scope
    PINNED = "pinned"  # registered
    OPPORTUNISTIC = (
        "opportunistic"  # somebody's traffic in a shared scope, where the tenant opted in
    )


def made_by_traffic(level: Level, *, opportunistic: bool) -> Source | None:
    """What a user's request makes at this level, refreshes when it reads it, and may push out for
    want of room.  None: nothing.  Public entries are never a tenant's to make."""
    if level >= Level.USER:
        return Source.OWN
    return Source.OPPORTUNISTIC if opportunistic and level > Level.PUBLIC else None


NEVER_NS: Final = 2**63 - 1
"""An instant that does not come."""


@dataclass(frozen=True, slots=True)
class Ttl:
    """`idle_ns` None: pinned, no read moves its end.  `absolute_ns` None, of pinned alone: no end of its own;
    it is there until it is taken away.  `expires_ns`: the instant at which the earliest
    of its documents' ACLs, or another policy that does not depend on tokens, ends it."""

    absolute_ns: int | None
    idle_ns: int | None
    expires_ns: int | None

    def __post_init__(self) -> None:
        assert self.absolute_ns is None or self.absolute_ns > 0
        assert self.idle_ns is None or self.idle_ns > 0
        assert self.absolute_ns is not None or self.idle_ns is None


def ends_ns(ttl: Ttl, *, created_ns: int, used_ns: int) -> int:
    """The first instant at which it may not be read.  `used_ns`: the last read that counts."""
    ends = NEVER_NS if ttl.absolute_ns is None else created_ns + ttl.absolute_ns
    if ttl.idle_ns is not None:
        ends = min(ends, used_ns + ttl.idle_ns)
    return ends if ttl.expires_ns is None else min(ends, ttl.expires_ns)


def alive(ttl: Ttl, *, created_ns: int, used_ns: int, now_ns: int) -> bool:
    """Asked at each look-up, not by a sweeper alone.  An entry from the future is dead: that clock is
    not ours."""
    return created_ns <= now_ns < ends_ns(ttl, created_ns=created_ns, used_ns=used_ns)


@dataclass(frozen=True, slots=True)
class Hit:
    """Consecutive tokens of a prompt's prefix that were found."""

    source: Source
    tokens: int


def disclosed_tokens(hits: Iterable[Hit]) -> int:
    """`cached_tokens`: as shown, as discounted, as ordered by.  `hits` in the order of the prompt.
    Ends at the first opportunistic hit: had that been a miss, nothing after it would have hit."""
    shown = 0
    for hit in hits:
        if hit.source is Source.OPPORTUNISTIC:
            break
        shown += hit.tokens
    return shown
