"""Whose running work is put out, and how much of that may happen.

Work that is put out is computed again later: lost time.  Reclaiming for the sake of fairness is
therefore rationed (`Allowance`), only from those who hold more than their share, or from a strictly
lower class; making room for decodes that could not grow cannot be rationed, and is debited.

Refuses to know: what waits, whose turn it is.  Source: SCHEDULER.md §2, steps 4 and 6.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from heapq import heapify, heappop
from typing import Final

from executor.cost import Rates
from executor.scheduler.filling import Filling
from executor.scheduler.lanes import Entry, Rank
from executor.scheduler.protocol import W
from executor.scheduler.residency import Residency

PREEMPTIONS_MAX: Final = 2
_SAVED_NS: Final = 1e9


class Allowance:
    """Nanoseconds that may be computed twice: `part` of what is measured, saved up to a second."""

    __slots__ = ("_part", "left_ns")

    def __init__(self, part: float) -> None:
        self._part = part
        self.left_ns = _SAVED_NS if part else 0.0

    def earn(self, measured_ns: int) -> None:
        self.left_ns = min(_SAVED_NS, self.left_ns + self._part * measured_ns)

    def spend(self, lost_ns: float) -> None:
        self.left_ns -= lost_ns


def lost_ns(entry: Entry[W], rates: Rates) -> float:
    """What putting it out throws away."""
    computed = entry.work.computed
    return rates.row_ns(computed, 0) if computed else 0.0


def for_growth(entries: Iterable[Entry[W]], over: Collection[str]) -> Entry[W]:
    """Somebody must go: the lowest class first, of a tenant that holds more than its share, whose loss
    costs least; not the same one again and again."""
    return min(
        entries,
        key=lambda one: (
            one.work.preemptions >= PREEMPTIONS_MAX,
            -one.band.rank,
            one.tenant.key not in over,
            one.work.computed,
            -one.tenant.start,
            -one.place,
        ),
    )


def able(
    running: Iterable[Entry[W]], least: Rank, over: Callable[[Collection[Entry[W]]], set[str]]
) -> list[Entry[W]]:
    """Those who may be put out for somebody of a class from `least` on; of the same class only tenants
    that are `over` their share."""
    lower: list[Entry[W]] = []
    equal: list[Entry[W]] = []
    for one in running:
        rank = one.band.rank
        if rank is not Rank.RESERVED and one.work.preemptions < PREEMPTIONS_MAX:
            (lower if rank > least else equal).append(one)
    tenants = over(equal) if equal else ()
    return lower + [one for one in equal if one.tenant.key in tenants]


def for_the_head(
    head: Entry[W], able: Iterable[Entry[W]], could_be: Callable[[Entry[W]], bool]
) -> Iterator[Entry[W]]:
    """Those of them who may be put out for `head`, the lowest class first, then the cheapest: a lower
    class's, or another tenant's that `could_be` over its share, of which the caller must see that it is.
    Start times decide between equals only: a head that has something in flight was charged ahead for it,
    and would never be behind."""
    own = head.band.rank
    found = [
        (-rank, one.work.computed, -one.tenant.start, -one.place, one)
        for one in able
        if (rank := one.band.rank) > own
        or (rank == own and one.tenant is not head.tenant and could_be(one))
    ]
    heapify(found)
    while found:
        yield heappop(found)[-1]


def who_makes_room(
    head: Entry[W],
    filling: Filling[W],
    residency: Residency[W],
    all_weight: float,
    left_ns: float,
) -> list[Entry[W]] | None:
    """Who is to be put out so that `head` can come in: no more than is needed, perhaps nobody; None if it
    cannot be done, by the rules or within `left_ns`.  `all_weight`: of the tenants that are here."""
    draft, rates = filling.draft, filling.moment.rates
    if not draft.has_time(head.work) or not filling.victims:
        return None
    short_blocks, short_rows = residency.short(head, over=False)
    need_blocks, need_rows = draft.short(head.work)
    chosen: list[Entry[W]] = []
    gone: dict[str, tuple[int, int]] = {}  # by tenant: blocks and rows
    within = residency.is_within(head, residency.share(head.tenant.weight, all_weight))
    asks = (
        head.band.rank,
        within,
        max(short_blocks, need_blocks),
        max(short_rows, need_rows),
    )
    if filling.is_hopeless(asks):
        return None

    def is_over(entry: Entry[W]) -> bool:
        """Also without this one, else the two would put each other out by turns; a last one only
        if it is large itself."""
        tenant = entry.tenant
        blocks, rows = gone.get(tenant.key, (0, 0))
        if residency.runs(tenant.key) - rows == 1:
            return within and residency.is_large(entry, all_weight)
        share = residency.share(tenant.weight, all_weight)
        blocks += entry.committed_blocks
        return residency.is_over(tenant.key, share, -blocks, -rows - 1)

    spent_ns = 0.0
    spared = {head.tenant.key} if draft.found(head.work).blocks else set()
    spared |= draft.takers  # what is taken may be a victim's

    def could_be(entry: Entry[W]) -> bool:
        return residency.runs(entry.tenant.key) > 1 or is_over(entry)

    for entry in for_the_head(head, filling.old(), could_be):
        if max(short_blocks, short_rows, need_blocks, need_rows) <= 0:
            break
        if entry.tenant.key in spared:
            continue
        if entry.band.rank == head.band.rank and not is_over(entry):
            continue
        cost_ns = lost_ns(entry, rates)
        if spent_ns + cost_ns > left_ns:
            continue
        chosen.append(entry)
        spent_ns += cost_ns
        blocks, rows = gone.get(entry.tenant.key, (0, 0))
        gone[entry.tenant.key] = blocks + entry.committed_blocks, rows + 1
        short_blocks, short_rows = residency.short(head, over=False, without=chosen)
        need_rows -= 1
        need_blocks -= draft.freed(entry.work)
    if max(short_blocks, short_rows, need_blocks, need_rows) > 0:
        if not residency.runs(head.tenant.key):  # none of the others is its own
            filling.hopeless.append(asks)
        return None
    return chosen
