"""Who goes before the first in order because more of its prompt is kept: a bounded window.

Theory of operation.  The first of an order and those close behind it are looked at; of those that have
room as things are, the one of which most is found goes.  Close is what the tenants that share could make
up in `lead_ns` of the device, all of them together: so nobody waits longer than that for the sake of
others' prompts, beside a request of each, however many there are and whatever their weights.  A start
time leads the least by no more than lead_ns / W and its own largest request, where W is the weight of all
that are here; between two backlogged tenants that adds 2·lead_ns / W to the gap over any interval (for
two of weight 1: `lead_ns`).  Inside a tenant its users by the same rule, inside a user the first few.
Nobody is passed so more than `PASSED_MAX` times, and not at all who has nothing in flight: the first
token of those is what a house can promise.  Nobody is put out or waited for so.

Refuses to know: blocks, what is kept for whom, classes.  Source: DLPM; SCHEDULER.md §2, step 6, and §5
(longest prefix first without a window starves those who have none).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, Generic

from executor.scheduler.accounts import Accounts
from executor.scheduler.lanes import Band, Entry, Place, order_of
from executor.scheduler.protocol import W
from policies.fairness import Turns

LOOKED_MAX: Final = 32
PASSED_MAX: Final = 16


class Window(Generic[W]):
    """Of one step; those that are near are gathered again where the first is none of them.  `found`: how much is kept of its prompt.  `fits`: whether it can come in as things
    are.  `turns`: of a class, the tenants that are looked at."""

    __slots__ = ("_accounts", "_fits", "_found", "_lead_ns", "_near", "_passed", "_place", "_turns")

    def __init__(
        self,
        lead_ns: float,
        accounts: Accounts[W],
        *,
        place: Callable[[Entry[W]], Place],
        turns: Callable[[Band[W]], Turns[str]],
        found: Callable[[Entry[W]], int],
        fits: Callable[[Entry[W]], bool],
    ) -> None:
        self._lead_ns = lead_ns
        self._accounts = accounts
        self._place = place
        self._turns = turns
        self._found = found
        self._fits = fits
        self._near: list[Entry[W]] = []
        self._passed: list[Entry[W]] = []

    def choose(self, first: Entry[W], bands: Collection[Band[W]]) -> Entry[W]:
        """`first` in order of all `bands`, or who goes before it."""
        until = first.tenant.start + self._accounts.lead(first, self._lead_ns)
        if first not in self._near:
            self._near = self._gather(first, until, bands)
        self._near.sort(key=self._place)
        chosen, most = first, self._found(first)
        before: list[Entry[W]] = []
        self._passed = []
        for entry in self._near[self._near.index(first) :]:
            if entry.tenant.start > until:
                break  # one of it was let in meanwhile
            if self._found(entry) > most and self._is_near(entry) and self._fits(entry):
                chosen, most = entry, self._found(entry)
                self._passed = before.copy()
            if entry.outrun >= PASSED_MAX or entry.tenant.key in entry.band.resting:
                break
            before.append(entry)
        return chosen

    def let_in(self, entry: Entry[W]) -> None:
        """The chosen one, or one that was begun before."""
        for each in self._passed:
            each.outrun += 1
        self._passed = []
        if entry in self._near:
            self._near.remove(entry)

    def _is_near(self, entry: Entry[W]) -> bool:
        """In its class and among the users of its tenant."""
        tenant = entry.tenant.key
        lead = self._accounts.user_lead(entry, tenant, self._lead_ns)
        return (
            tenant in self._turns(entry.band)
            and entry.user.start <= entry.band.user_start(tenant) + lead
        )

    def _gather(self, first: Entry[W], until: float, bands: Collection[Band[W]]) -> list[Entry[W]]:
        """Those that are near, in order of their place: half of them of several tenants."""

        def slack(tenant: str) -> float:
            return self._accounts.user_lead(first, tenant, self._lead_ns)

        near: list[Entry[W]] = []
        for band in bands:
            if (order_of(band), band.is_backfill) == (order_of(first.band), first.band.is_backfill):
                tenants = self._turns(band).within(until, LOOKED_MAX // 2)
                near += band.near(tenants, slack, LOOKED_MAX)
        near.sort(key=self._place)
        near = near[:LOOKED_MAX]
        return (
            near if first in near else [*near[:-1], first]
        )  # of those with one start time it may be the last
