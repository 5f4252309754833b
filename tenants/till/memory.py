"""Tills in this process: the specification of the scripts `till_*.lua`.

Nobody is served by it: one process needs no till.  Tests hold the scripts against it, and break it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from policies.till import Seen
from tenants.places import Place
from tenants.till.contract import DrawAsk, Dry, Lives, Told

Key = tuple[str, Place]


@dataclass(frozen=True, slots=True)
class Till:
    """`left` may be drawn; of `issued`, which only grows within an epoch."""

    epoch: int = 0
    left: int = 0
    issued: int = 0
    until_ms: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """What a request drew; None: it has ended."""

    drawn: tuple[Seen, ...] | None
    until_ms: int


@dataclass
class MemoryTills:
    """`clock_ms` is monotonic.  All that it knows is in three tables, which a test may copy and put back."""

    clock_ms: Callable[[], int]
    lives: Lives = field(default_factory=Lives)
    tills: dict[Key, Till] = field(default_factory=dict)
    marks: dict[str, Mark] = field(default_factory=dict)
    dry: dict[Key, tuple[int, int]] = field(default_factory=dict)

    async def draw(self, ask: DrawAsk) -> tuple[Seen, ...] | Dry:
        now_ms, amount = self.clock_ms(), ask.nano_usd
        mark = self.marks.get(ask.request_id)
        if mark is not None and mark.until_ms > now_ms:
            return mark.drawn if mark.drawn is not None else tuple(Seen() for _ in ask.places)
        for place in ask.places:
            refused = self._dry((ask.tenant, place))
            if refused is not None and ask.least_nano_usd >= refused:
                return Dry(place)
        seen = []
        for place in ask.places:
            till = self._till((ask.tenant, place))
            drawn = amount if 0 < amount <= till.left else 0
            seen.append(Seen(till.epoch, till.issued, drawn))
            if drawn:
                self.tills[ask.tenant, place] = replace(till, left=till.left - drawn)
        self.marks[ask.request_id] = Mark(tuple(seen), now_ms + self.lives.mark_ms)
        return tuple(seen)

    async def give_back(self, ask: DrawAsk) -> None:
        now_ms = self.clock_ms()
        mark = self.marks.get(ask.request_id)
        self.marks[ask.request_id] = Mark(None, now_ms + self.lives.mark_ms)
        if mark is None or mark.drawn is None or mark.until_ms <= now_ms:
            return
        for place, seen in zip(ask.places, mark.drawn, strict=True):
            till = self._till((ask.tenant, place))
            if seen.drawn_nano_usd and till.epoch == seen.epoch:
                left = min(till.left + seen.drawn_nano_usd, till.issued)
                self.tills[ask.tenant, place] = replace(till, left=left)

    async def fill(self, tenant: str, told: tuple[Told, ...]) -> None:
        for each in told:
            self._fill((tenant, each.place), each)

    def _fill(self, key: Key, told: Told) -> None:
        now_ms, till = self.clock_ms(), self._till(key)
        news, present = (told.epoch, told.issued), (till.epoch, till.issued)
        if news > present:
            if told.epoch > till.epoch:
                till = Till(told.epoch, 0, min(told.since, told.issued))
            more = told.issued - till.issued
            self.tills[key] = Till(
                told.epoch, till.left + more, told.issued, now_ms + self.lives.till_ms
            )
            if more:
                self.dry.pop(key, None)
        if told.refused_nano_usd and news >= present:
            known = self._dry(key)
            if known is None or known > told.refused_nano_usd:
                self.dry[key] = (told.refused_nano_usd, now_ms + self.lives.dry_ms)

    def _till(self, key: Key) -> Till:
        till = self.tills.get(key)
        return till if till is not None and till.until_ms > self.clock_ms() else Till()

    def _dry(self, key: Key) -> int | None:
        refused, until_ms = self.dry.get(key, (0, 0))
        return refused if until_ms > self.clock_ms() else None
