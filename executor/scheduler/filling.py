"""A step of the fair scheduler while it is being filled: who was looked at and found no room, who may be
put out, when nobody more comes in.

Refuses to know: how room is counted, whose turn it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import Enum, auto
from heapq import heapify
from typing import Final, Generic

from executor.scheduler.lanes import Band, Entry, Order, Rank, order_of
from executor.scheduler.locality import Window
from executor.scheduler.protocol import Moment, W
from executor.scheduler.step import Draft
from policies.fairness import Flow, Turns

HEADS_MAX: Final = 32  # looked at in a step in vain, and as many of tenants of whom nothing runs
BLOCKED_MAX: Final = 3  # under their share and without room: hardly anybody behind them finds any
PASSED_MAX: Final = 16


Asks = tuple[Rank, bool, int, int]
"""Of somebody who has nothing in flight: its rank, whether it is within its share, blocks and rows."""


class Fit(Enum):
    """Whether a head can come in."""

    YES = auto()
    NO = auto()
    MAKE = auto()
    """If somebody is put out for it."""


class Filling(Generic[W]):
    """What has come of a step so far.  `blocked`: heads under their share that found no room."""

    __slots__ = (
        "_able",
        "_looked",
        "_stopped",
        "_victims",
        "aside",
        "blocked",
        "draft",
        "hopeless",
        "moment",
        "put_out",
        "window",
    )

    def __init__(
        self, draft: Draft[W], moment: Moment, victims: Callable[[], list[Entry[W]]]
    ) -> None:
        """`victims`: those who may be put out for somebody; asked once, if at all."""
        self.draft = draft
        self.moment = moment
        self.aside: list[tuple[Band[W], Flow[str]]] = []
        self.blocked: list[Entry[W]] = []
        self.put_out: list[Entry[W]] = []
        self.hopeless: list[Asks] = []
        self.window: Window[W] | None = None
        self._stopped = False
        self._looked = 0
        self._able = victims
        self._victims: list[Entry[W]] | None = None

    def begun(
        self, running: Mapping[int, Entry[W]], bands: Iterable[Band[W]]
    ) -> list[tuple[Order, float, float, int, Entry[W]]]:
        """A heap of the prompts that were begun: there may be hundreds, and a step has time for a few."""
        orders = {band: order_of(band) for band in bands}
        heap = [
            (orders[entry.band], entry.reached, entry.user.start, entry.place, entry)
            for entry in (running[seq.ticket] for seq in self.draft.begun)
        ]
        heapify(heap)
        return heap

    @property
    def admits(self) -> bool:
        """Whether anybody may still come in."""
        return not self._stopped and self.draft.open > 0

    @property
    def victims(self) -> list[Entry[W]]:
        if self._victims is None:
            self._victims = self._able()
        return self._victims

    def is_hopeless(self, asks: Asks) -> bool:
        """Whether a head with as good a claim found nobody for as little: there are no more since."""
        high, within, blocks, rows = asks
        return any(
            (high, within) == (each[0], each[1]) and blocks >= each[2] and rows >= each[3]
            for each in self.hopeless
        )

    def old(self) -> Iterator[Entry[W]]:
        """Those of them of whose prompt this step computes nothing."""
        fed = {chunk.seq.ticket for chunk in self.draft.fed}
        out = {entry.ticket for entry in self.put_out}
        return (each for each in self.victims if each.ticket not in fed and each.ticket not in out)

    def turns(self, band: Band[W]) -> Turns[str]:
        """Who of a class is looked at next: after so many in vain only tenants of whom nothing runs,
        since room is kept for them."""
        return band.tenants if self._looked < HEADS_MAX else band.resting

    def nearest(self, first: Entry[W], bands: Collection[Band[W]]) -> Entry[W]:
        """The first in order, or who goes before it for what is kept of its prompt."""
        if self.window is None or self.draft.house_full:
            return first
        return self.window.choose(first, bands)

    def set_aside(self, head: Entry[W]) -> None:
        """No other of this tenant in this class either, in this step."""
        head.band.aside(head.tenant.key)
        self.aside.append((head.band, head.tenant))
        self._looked += 1
        if self._looked == 2 * HEADS_MAX or (self.draft.house_full and not self.victims):
            self._stopped = True

    def block(self, head: Entry[W], *, drains: bool) -> None:
        """It finds no room, and nobody can be put out for it.  Who was passed too often is waited for, if
        its room comes so."""
        self.blocked.append(head)
        waited_for = drains and head.passed >= PASSED_MAX
        if waited_for or len(self.blocked) == BLOCKED_MAX:
            self._stopped = True

    def passed(self, entry: Entry[W]) -> None:
        """It was let in before those who are blocked."""
        if self.window is not None:
            self.window.let_in(entry)
        for each in self.blocked:
            each.passed += 1
            if each.passed >= PASSED_MAX:
                self._stopped = True
