"""The connections of one listener by what they do, and who of them makes room for one more.

Two lines, each in the order in which the waiting began: `opening` (no whole head has come yet) and `kept` (answered,
and nothing of a next request has come).  Who is in neither is busy or leaving.  Whoever is kept too long is closed;
where every place is taken, whoever waits makes room for who comes; and a server that ends takes leave of both lines.
A request costs two dictionary operations here and no timer of its own: all are kept equally long, so the first
of the line is the first to go.
Refuses to know: sockets, HTTP, how a connection is closed, how long a head may take (`connection`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from gateway.wire_guard import Fault


class Waiter(Protocol):
    @property
    def leaving(self) -> bool: ...

    def part(self, why: Fault | None) -> bool:
        """Leave now, and say `why` first where there is one.  False: bytes of it have come that nobody has
        looked at, and it stays."""

    def abort(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Counts:
    """`made_room`: how many left for a newcomer, since the start."""

    opening: int = 0
    idle: int = 0
    busy: int = 0
    leaving: int = 0
    made_room: int = 0


class Connections:
    def __init__(self, most: int, keep_alive_s: float, head_grace_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._most = most
        self._leaving_most = max(1, most // 8)
        self._keep_alive_s = keep_alive_s
        self._head_grace_s = head_grace_s
        self._opening: dict[Waiter, float] = {}  # since when
        self._kept: dict[Waiter, float] = {}
        self._leaving: dict[Waiter, None] = {}
        self._placed = 0  # all but who leaves
        self._left = 0  # of those who leave: all that are still there
        self._made_room = 0
        self._timer: asyncio.TimerHandle | None = None
        self.draining = False
        self._closing = False

    def counts(self) -> Counts:
        waiting = len(self._opening) + len(self._kept)
        return Counts(
            opening=len(self._opening),
            idle=len(self._kept),
            busy=self._placed - waiting,
            leaving=self._left,
            made_room=self._made_room,
        )

    # What a connection does

    def comes(self, who: Waiter) -> None:
        self._placed += 1
        self._opening[who] = self._loop.time()

    def opens(self, who: Waiter) -> None:
        """A part of a head has come, and nothing else is under way."""
        self._kept.pop(who, None)
        if self._closing and who.part(Fault.DRAINING):
            return
        self._opening.setdefault(who, self._loop.time())

    def works(self, who: Waiter) -> None:
        """A request is under way."""
        if self._kept.pop(who, None) is None:
            self._opening.pop(who, None)

    def keeps(self, who: Waiter) -> None:
        """Answered.  While draining it leaves; what of a next request has come by then goes on first."""
        if self.draining:
            who.part(None)
            return
        self._kept[who] = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._keep_alive_s, self._look)

    def parts(self, who: Waiter) -> None:
        """It has had its last word and waits for its peer's.  It has no place any more; of too many such, the
        first waits no longer."""
        self.works(who)
        self._placed -= 1
        self._left += 1
        self._leaving[who] = None
        if len(self._leaving) > self._leaving_most:
            first = next(iter(self._leaving))
            del self._leaving[first]
            first.abort()

    def gone(self, who: Waiter) -> None:
        self.works(who)
        self._leaving.pop(who, None)
        if who.leaving:
            self._left -= 1
        else:
            self._placed -= 1

    # Making room

    def has_room(self) -> bool:
        """For one more; if need be, because one that waits has left for it."""
        if self._placed < self._most:
            return True
        for who, why in self._in_order():
            if who.part(why):
                self._made_room += 1
                return True
        return False

    def _in_order(self) -> Iterator[tuple[Waiter, Fault | None]]:
        """A head that takes long; then who has waited longest for nothing; then the oldest of those whose head may be
        on its way.  Who was never answered is told why; between two answers a word would be taken for the next one."""
        slow_s = self._loop.time() - self._head_grace_s
        for who, since_s in self._opening.items():
            if since_s > slow_s:
                break
            yield who, Fault.CONNECTIONS
        for who in self._kept:
            yield who, None
        for who in self._opening:
            yield who, Fault.CONNECTIONS

    def _look(self) -> None:
        """Close whoever was kept too long, and come again for the next."""
        self._timer = None
        until_s = self._loop.time() - self._keep_alive_s
        while self._kept:
            who, since_s = next(iter(self._kept.items()))
            if since_s > until_s:
                self._timer = self._loop.call_later(since_s - until_s, self._look)
                return
            del self._kept[who]
            who.part(None)  # or a next request has just come: then it is about to work

    # The end

    def drain(self) -> None:
        """Whoever waits between two requests leaves, from now on too."""
        self.draining = True
        self._leaving_most = self._most  # all at once
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for who in list(self._kept):
            who.part(None)
        self._kept.clear()

    def close(self) -> None:
        """Whoever has sent no whole head is told, from now on too."""
        self.drain()
        self._closing = True
        for who in list(self._opening):
            who.part(Fault.DRAINING)
