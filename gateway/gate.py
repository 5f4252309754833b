"""Where requests wait for their turn to be prepared: the one place that keeps the loop's turns short.

A turn is held from the gate until the book is asked or an answer begins, by none whose body is still to
come, and for a quarter of a second at most: what takes longer waits for something else (a database,
whoever has the same key), and nobody is to wait behind it.  That includes the book: a durable commit costs
the same for one and for many, and those who wait for it are the more, the more are let in meanwhile.
No turn is timed while nobody waits.  Order, and who may wait, are `policies.shedding`'s.
Refuses to know: HTTP, credentials, what is prepared.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from policies import shedding
from policies.shedding import TERMS, Backlog, Rank, Terms


@dataclass(frozen=True, slots=True)
class Caller:
    """As far as the gate knows whoever comes."""

    rank: Rank = Rank.STRANGER
    tenant: str | None = None


STRANGER = Caller()
LOOK_S = 0.02
"""So often, while somebody waits, it is looked whose turn is over."""


@dataclass(slots=True)
class _Line:
    """Of one tenant in one rank: since when each waits, and what wakes it."""

    backlog: Backlog = field(default_factory=Backlog)
    waiting: deque[tuple[float, str, asyncio.Future[None]]] = field(default_factory=deque)

    def waited_ms(self, now_ms: float) -> float:
        return now_ms - self.waiting[0][0] if self.waiting else 0.0


class Gate:
    """`clock_ms` is monotonic.  A request is its id."""

    def __init__(self, clock_ms: Callable[[], float], terms: Terms = TERMS) -> None:
        self._clock_ms = clock_ms
        self._terms = terms
        self._until_ms: dict[str, float] = {}
        self._most_ms: dict[str, float] = {}  # beyond which nothing puts it off
        self._watching: asyncio.TimerHandle | None = None
        self._lines: dict[Rank, dict[str | None, _Line]] = {rank: {} for rank in Rank}
        self._turns = 0
        self.waiting = 0

    @property
    def at_work(self) -> int:
        return len(self._until_ms)

    def holds(self, request_id: str) -> bool:
        """Whether it has a turn."""
        until_ms = self._until_ms.get(request_id)
        return until_ms is not None and self._clock_ms() < until_ms

    def open_to(self, who: Caller) -> bool:
        """Whether one more of these may come and wait."""
        line = self._lines[who.rank].get(who.tenant)
        if line is None:
            return shedding.may_wait(Backlog(), 0, self.waiting, self._terms)
        line.backlog = line.backlog.after(line.waited_ms(self._clock_ms()), self._terms)
        return shedding.may_wait(line.backlog, len(line.waiting), self.waiting, self._terms)

    async def enter(self, request_id: str, who: Caller) -> None:
        """Returns with a turn."""
        if not self.waiting:
            if len(self._until_ms) >= self._terms.at_work:
                self._look()
            if len(self._until_ms) < self._terms.at_work:
                self._begin(request_id)
                return
        line = self._lines[who.rank].setdefault(who.tenant, _Line())
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        place = (self._clock_ms(), request_id, woken)
        line.waiting.append(place)
        self.waiting += 1
        self._watch()
        try:
            await woken
        except asyncio.CancelledError:
            if woken.done() and not woken.cancelled():
                self.leave(request_id)  # its turn had come meanwhile
            elif place in line.waiting:  # and is not given to it in the same turn of the loop
                line.waiting.remove(place)
                self.waiting -= 1
                self._tidy(who.rank, who.tenant, line)
            raise

    @contextmanager
    def finishing(self, request_id: str) -> Iterator[None]:
        """What has begun is ended before anything else begins: it takes a turn and waits for none."""
        self._begin(request_id)
        try:
            yield
        finally:
            self.leave(request_id)

    def leave(self, request_id: str) -> None:
        """Its turn is over, if it still has it."""
        if self._until_ms.pop(request_id, None) is not None:
            del self._most_ms[request_id]
            self._go_on()

    def ends(self, request_id: str, in_ms: float | None = None) -> None:
        """Its turn, if it still has it, does by then; None: by when it would have without.  Never later than that, or
        a body that drips would keep it."""
        if request_id in self._until_ms:
            most_ms = self._most_ms[request_id]
            self._until_ms[request_id] = (
                most_ms if in_ms is None else min(most_ms, self._clock_ms() + in_ms)
            )

    def _begin(self, request_id: str) -> None:
        until_ms = self._clock_ms() + self._terms.turn_ms
        self._until_ms[request_id] = self._most_ms[request_id] = until_ms

    def _go_on(self) -> None:
        while self.waiting and len(self._until_ms) < self._terms.at_work:
            self._wake()

    def _watch(self) -> None:
        if self._watching is None:
            self._watching = asyncio.get_running_loop().call_later(LOOK_S, self._watched)

    def _watched(self) -> None:
        self._watching = None
        self._look()
        if self.waiting:
            self._watch()

    def _look(self) -> None:
        """Whose time is up has no turn."""
        now_ms = self._clock_ms()
        for request_id in [each for each, until in self._until_ms.items() if until <= now_ms]:
            del self._until_ms[request_id], self._most_ms[request_id]
        self._go_on()

    def _wake(self) -> None:
        now_ms = self._clock_ms()
        longest = {
            rank: max(line.waited_ms(now_ms) for line in lines.values())
            for rank, lines in self._lines.items()
            if lines
        }
        self._turns += 1
        rank = shedding.next_rank(self._turns, longest, self._terms)
        lines = self._lines[rank]
        tenant, line = next(iter(lines.items()))
        del lines[tenant]
        lines[tenant] = line  # behind the others of its rank
        _, request_id, woken = line.waiting.popleft()
        self.waiting -= 1
        self._tidy(rank, tenant, line)
        if not woken.done():  # else whoever waited has been cancelled, and has not run since
            self._begin(request_id)
            woken.set_result(None)

    def _tidy(self, rank: Rank, tenant: str | None, line: _Line) -> None:
        if not line.waiting:
            self._lines[rank].pop(tenant, None)
