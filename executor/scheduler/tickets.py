"""Who was refused and said how it will be known when it comes back: the place it had, kept for twice the
time that it was told to wait.

A place is good for two things: inside its own user who comes back stands where it stood, and whoever of
its tenant comes meanwhile is told the truth, that somebody is to come before.  It is no claim on the
machine and no one else's business: start times are untouched, other tenants see nothing of it, and of
another user of the tenant as many places count as one has there oneself, and one more: as turns go.

Bounded: `PLACES_MAX` of a tenant in a class; more are refused without a place, so a flood displaces
nobody, not even its own.  `QUEUES_MAX` tenants.
Refuses to know: what a key is made of, whether it is the same request (the gateway's), what is predicted.
Source: SCHEDULER.md §2, "Retries"; DESIGN.md, settled question 6.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Final, NamedTuple

from executor.scheduler.promises import Ahead
from executor.scheduler.protocol import Work

PLACES_MAX: Final = 64
QUEUES_MAX: Final = 1024
_LIVES: Final = 2  # times what it was told

Key = tuple[str, str]  # class, tenant


class Turn(NamedTuple):
    """`due_ns`: the time that it was first told.  `ticket`: of its first coming."""

    due_ns: int
    ticket: int
    user: str
    ahead: Ahead
    until_ns: int


class Tickets:
    __slots__ = ("_places",)

    def __init__(self) -> None:
        self._places: dict[Key, dict[bytes, Turn]] = {}

    def find(self, key: Key, retry_key: bytes | None, now_ns: int) -> Turn | None:
        """Of a newcomer that was here before."""
        return None if retry_key is None else self._living(key, now_ns).get(retry_key)

    def keep(self, key: Key, work: Work, ahead: Ahead, *, retry_ms: int, now_ns: int) -> None:
        """It was refused, and told to come in `retry_ms`.  Who comes again stays where it was."""
        if work.retry_key is None:
            return
        places = self._living(key, now_ns)
        known = places.get(work.retry_key)
        if known is None and (len(places) >= PLACES_MAX or not self._has_room(key, now_ns)):
            return
        retry_ns = retry_ms * 1_000_000
        due_ns, ticket = (
            (now_ns + retry_ns, work.ticket) if known is None else (known.due_ns, known.ticket)
        )
        turn = Turn(due_ns, ticket, work.user, ahead, now_ns + _LIVES * retry_ns)
        self._places.setdefault(key, places)[work.retry_key] = turn

    def take(self, key: Key, retry_key: bytes | None, now_ns: int) -> Turn | None:
        """It is let in, and its place used up."""
        place = self.find(key, retry_key, now_ns)
        if place is not None and retry_key is not None:
            del self._places[key][retry_key]
        return place

    def before(self, key: Key, mine: Turn | None, user: str, own: int, now_ns: int) -> list[Turn]:
        """Those who are to come before one of `user`, which has `own` things waiting: who was told an earlier
        time; all, before its own: until then a place is worth nothing, so nobody gains by asking often."""
        first = sorted(each for each in self._living(key, now_ns).values() if each is not mine)
        if mine is not None and mine.due_ns <= now_ns:
            first = first[: bisect_left(first, mine)]
        turns = 1 + own + sum(each.user == user for each in first)
        had: Counter[str] = Counter()
        found = []
        for each in first:
            had[each.user] += 1
            if each.user == user or had[each.user] <= turns:
                found.append(each)
        return found

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
