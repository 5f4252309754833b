"""Who was refused and said how it will be known when it comes back: the place it had, kept for twice the
time that it was first told to wait.

A place is the time that it was first told and the ticket of its first coming.  Nothing that its request does
makes either better, or lets it last longer.  It is good for two things: inside its own user who comes back
stands where it stood, and whoever of its tenant comes meanwhile is told the truth, that somebody is to come
before.  It is no claim on the machine and no one else's business: start times are untouched, other tenants
see nothing of it, and of another user of the tenant as many places count as one has there oneself, and one
more: as turns go.

Who comes before the time that it was told last is not looked at, and nothing changes by it.  So of all
its comings only those count that are not too early, and each of those tells the next time: whoever asks
as often as it likes is answered as who leaves the early ones out (README.md, decision 14).

Bounded: `PLACES_MAX` of a tenant in a class.  Beyond that the newest place of the user that has most by
weight goes for one of a user that would still have less; else the newcomer has none.  So nobody's flood
takes a place from who has as few, and two that have as many do not take each other's by turns.
`QUEUES_MAX` tenants.
Refuses to know: what a key is made of, whether it is the same request (the gateway's), what is predicted.
Source: SCHEDULER.md §2, "Retries"; DESIGN.md, settled question 6.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Final

from executor.scheduler.promises import RETRY_MS_MIN, Ahead
from executor.scheduler.protocol import Turn, Work

PLACES_MAX: Final = 64
QUEUES_MAX: Final = 1024
_LIVES: Final = 2  # times what it was told
_MS: Final = 1_000_000

Key = tuple[str, str]  # class, tenant


class Tickets:
    """The places of those who are not here."""

    __slots__ = ("_places",)

    def __init__(self) -> None:
        self._places: dict[Key, dict[bytes, Turn]] = {}

    def take(self, key: Key, retry_key: bytes | None, now_ns: int) -> Turn | None:
        """Of one that was here before.  Its place goes with it, unless it comes too early."""
        if retry_key is None:
            return None
        places = self._living(key, now_ns)
        turn = places.get(retry_key)
        if turn is not None and turn.next_ns <= now_ns:
            del places[retry_key]
        return turn

    def keep(
        self, key: Key, work: Work, ahead: Ahead, *, retry_ms: int, now_ns: int, came_in: bool
    ) -> int:
        """It was refused, and is told to come in `retry_ms`; or after having waited (`came_in`) it was sent
        away.  In how many after all: not when its place is over."""
        if work.retry_key is None:
            return retry_ms
        had = work.turn
        if had is not None and not came_in:
            left_ms = (had.until_ns - now_ns) // _MS
            if left_ms < RETRY_MS_MIN:
                had = None  # as good as over: it begins anew
            else:
                retry_ms = min(retry_ms, left_ms)
        next_ns, ends_ns = (now_ns + times * retry_ms * _MS for times in (1, _LIVES))
        weight = work.user_weight
        if had is None:
            turn = Turn(next_ns, work.ticket, work.user, weight, ahead, ends_ns, next_ns)
        else:
            ends_ns = ends_ns if came_in else had.until_ns
            turn = had._replace(user_weight=weight, ahead=ahead, until_ns=ends_ns, next_ns=next_ns)
        self._file(key, work.retry_key, turn, now_ns)
        return retry_ms

    def before(self, key: Key, work: Work, own: int, now_ns: int) -> list[Turn]:
        """Those who are to come before it, whose user has `own` things waiting: who was told an earlier time;
        before one that was told none, all."""
        places = self._living(key, now_ns)
        first = sorted(turn for name, turn in places.items() if name != work.retry_key)
        if work.turn is not None:
            first = first[: bisect_left(first, work.turn)]
        turns = 1 + own + sum(each.user == work.user for each in first)
        had: Counter[str] = Counter()
        found = []
        for each in first:
            had[each.user] += 1
            if each.user == work.user or had[each.user] <= turns:
                found.append(each)
        return found

    def _file(self, key: Key, retry_key: bytes, turn: Turn, now_ns: int) -> None:
        places = self._living(key, now_ns)
        other = places.get(retry_key)  # of another request by the same key
        if other is not None:
            places[retry_key] = min(turn, other)
        elif self._has_room(key, now_ns) and (len(places) < PLACES_MAX or _gives_way(places, turn)):
            self._places.setdefault(key, places)[retry_key] = turn

    def _living(self, key: Key, now_ns: int) -> dict[bytes, Turn]:
        """O(`PLACES_MAX`)."""
        places = self._places.get(key)
        if places is None:
            return {}
        for retry_key in [name for name, each in places.items() if each.until_ns <= now_ns]:
            del places[retry_key]
        if not places:
            del self._places[key]
        return places

    def _has_room(self, key: Key, now_ns: int) -> bool:
        if key not in self._places and len(self._places) >= QUEUES_MAX:
            for each in list(self._places):
                self._living(each, now_ns)
        return key in self._places or len(self._places) < QUEUES_MAX


def _gives_way(places: dict[bytes, Turn], turn: Turn) -> bool:
    """Whether the newest of the user that has most by weight has gone for this one, whose user would still
    have less."""
    counts = Counter(each.user for each in places.values())
    name, newest = max(
        places.items(), key=lambda item: (counts[item[1].user] / item[1].user_weight, item[1][:2])
    )
    most = counts[newest.user] / newest.user_weight
    if most <= (counts[turn.user] + 1) / turn.user_weight:
        return False
    del places[name]
    return True
