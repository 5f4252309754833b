"""Who is turned away while the gateway itself cannot keep up: nobody who can soon be served, and the lowest first.

A process that takes in all that comes answers nobody in time: what it has begun shares the time of the
loop, and each turn of the loop grows with it, refusals included.  So only so many requests are prepared
at once (authenticated, parsed, tokenised, held), and the others wait for their turn: the highest rank
first, within a rank one tenant after the other, within a tenant in order.  A burst waits and is served.
Where somebody of the same tenant and rank has waited for long already, whoever comes next would wait as
long: they are turned away at once, before anything is done for them.  Whoever was let in to wait is served.

So a tenant is turned away for its own backlog and not for another's, and a credential that was not
good lately (a stranger's) waits behind all others: a flood of bad ones costs the good ones nothing.
One turn in a few is for whoever has waited longest, whatever the rank: no rank is shut out.

The bound of places works beside it: requests that wait for a model need no turn, and fill the house.
The last places are kept for the higher ranks.
Refuses to know: credentials, sockets, clocks.
Source: Nichols and Jacobson, "Controlling Queue Delay" (ACM Queue 2012): the time that is waited is
the measure, not a length; Zhou et al., "Overload Control for Scaling WeChat Microservices" (SoCC 2018):
priorities at the door; Choudhury and Hahne, "Dynamic Queue Length Thresholds" (1998): `may_hold`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum

from policies.classes import Kind


class Rank(IntEnum):
    """The lowest goes first.  A stranger's credential was not found good lately."""

    STRANGER = 0
    BACKFILL = 1
    WEIGHTED = 2
    RESERVED = 3


_RANKS = {
    Kind.BACKFILL: Rank.BACKFILL,
    Kind.WEIGHTED: Rank.WEIGHTED,
    Kind.RESERVED: Rank.RESERVED,
}


def rank_of(kind: Kind) -> Rank:
    return _RANKS[kind]


@dataclass(frozen=True, slots=True)
class Terms:
    """`at_work`: how many are prepared at once.  `turn_ms`: who takes longer waits for something else, and its turn
    is over.  `waiting`: how many may wait.  `high_ms`, `low_ms`: of the wait
    of a tenant's first, where turning away begins and where it ends.  `oldest_each`: one turn in so many is for
    who has waited longest.  `places`: by rank, the part of the house that it may fill."""

    at_work: int = 16
    turn_ms: float = 250.0
    waiting: int = 512
    high_ms: float = 200.0
    low_ms: float = 100.0
    oldest_each: int = 8
    places: tuple[float, float, float, float] = (0.75, 0.85, 0.95, 1.0)


TERMS = Terms()


@dataclass(frozen=True, slots=True)
class Backlog:
    """Of one tenant in one rank.  `shedding`: since its first had waited for long, and until it no longer has."""

    shedding: bool = False

    def after(self, waited_ms: float, terms: Terms = TERMS) -> Backlog:
        """`waited_ms`: by its first, 0 where nobody waits."""
        most = terms.low_ms if self.shedding else terms.high_ms
        return _SHEDDING if waited_ms > most else _OPEN


_OPEN, _SHEDDING = Backlog(), Backlog(shedding=True)


def may_wait(backlog: Backlog, own: int, every: int, terms: Terms = TERMS) -> bool:
    """Whether one more of a tenant may, of which `own` of `every` one that waits are."""
    return not backlog.shedding and may_hold(own, every, terms.waiting)


def next_rank(turn: int, waited_ms: Mapping[Rank, float], terms: Terms = TERMS) -> Rank:
    """Whose the turn is.  `waited_ms`: by the longest waiting of each rank that somebody waits in."""
    if turn % terms.oldest_each == 0:
        return max(waited_ms, key=lambda rank: (waited_ms[rank], rank))
    return max(waited_ms)


def has_place(rank: Rank, live: int, most: int, terms: Terms = TERMS) -> bool:
    return live < terms.places[rank] * most


def crowded(live: int, most: int, ranks: Collection[Rank] = tuple(Rank)) -> bool:
    """Whether any rank has no place left."""
    return not all(has_place(rank, live, most) for rank in ranks)


RETRY_S_MOST = 10


def retry_after_s(draw: float) -> int:
    """Not all at once.  `draw`: even in [0, 1)."""
    return 1 + int(RETRY_S_MOST * draw)


GREED = 3
"""How many times what is free one may hold."""


def may_hold(own: int, every: int, most: int) -> bool:
    """Whether a tenant, or one within it, that holds `own` of `every` place taken, of `most`, may take one more.
    Whoever takes all that it may leaves a quarter to the next, and they even out as what they hold ends."""
    return own < GREED * (most - every)
