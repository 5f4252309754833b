"""Who waits: a band for each class of work, in it tenants, in these users, in these requests in the order in which they first came.

Refuses to know: what is running, costs, room.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from enum import IntEnum
from math import inf
from operator import attrgetter
from typing import Final, Generic

from executor.contract import Workload
from executor.scheduler.protocol import W
from policies.fairness import Flow, Turns

_place: Final = attrgetter("place")


class Rank(IntEnum):
    """Whose work is put out for whose: only ever for a lower number."""

    RESERVED = 0
    WEIGHTED = 1
    BACKFILL = 2


def rank_of(terms: Workload) -> Rank:
    if terms.reserved > 0:
        return Rank.RESERVED
    return Rank.BACKFILL if terms.weight is None else Rank.WEIGHTED


class Order(IntEnum):
    """Which class comes first in a step."""

    RESERVED = 0
    OWED = 1
    WEIGHTED = 2
    BACKFILL = 3


Place = tuple[Order, float, float, int]
"""Order, start of the tenant, of the user, place in the order of that."""


@dataclass(frozen=True, slots=True, eq=False)
class Seat:
    """Where a request is charged: its tenant, and its user in that."""

    tenant: Flow[str]
    user: Flow[str]

    def charge(self, entry: Entry[W], cost_ns: float) -> None:
        """By the weights that it came with: a refund gives back what was charged, whatever was renewed."""
        cost_ns /= entry.weight
        self.tenant.charge(cost_ns, entry.work.tenant_weight)
        self.user.charge(cost_ns, entry.work.user_weight)


@dataclass(slots=True, eq=False)
class Entry(Generic[W]):
    """A request inside a fair scheduler.  `place`: see `Work`; by it requests of one user stand, and all of
    which all else is equal.  `charged_ns` is what its flows were charged for it: at first
    what it will probably cost, later what it has cost if that is more.  `seat` (`tenant` and `user`) is
    where it has its turn; backfill is charged at `main` too."""

    work: W
    ticket: int
    place: int
    band: Band[W]
    weight: float  # of its class when it came
    tenant: Flow[str]
    user: Flow[str]
    seat: Seat
    main: Seat | None = None
    expected_tokens: int = 0
    shared_blocks: int = 0  # that others hold, or a pool: they take no memory
    committed_blocks: int = 0
    charged_ns: float = 0.0
    measured_ns: int = 0
    began: float = 0.0  # the start time at which it was let in, less what it had had before
    passed: int = 0  # times that another went before it though it was at the head
    outrun: int = 0  # of them for the sake of what was kept of the other's prompt

    @property
    def reached(self) -> float:
        """Where its prompt stands, once begun: what was charged ahead is not held against it, nor against
        what of its tenant is over by now."""
        had = self.measured_ns / (self.weight * self.work.tenant_weight)
        reached, start = self.began + had, self.tenant.start
        if reached > start:
            return start
        return reached


class Works(Collection[W]):
    """The requests of some entries, without a list of them: thousands may wait."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Mapping[int, Entry[W]]) -> None:
        self._entries = entries

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[W]:
        return (entry.work for entry in self._entries.values())

    def __contains__(self, work: object) -> bool:
        return any(each is work for each in self)


class Band(Generic[W]):
    """The waiting of one class.  `resting`: its tenants of whom nothing runs.  `credit_ns`: of a reserved or floored class, the time that it may still
    have before others."""

    __slots__ = ("_queues", "_users", "count", "credit_ns", "rank", "resting", "tenants", "terms")

    def __init__(self, terms: Workload) -> None:
        self.renew(terms)
        self.credit_ns = 0.0
        self.count = 0
        self.tenants: Turns[str] = Turns()
        self.resting: Turns[str] = Turns()
        self._users: dict[str, Turns[str]] = {}
        self._queues: dict[tuple[str, str], list[Entry[W]]] = {}

    def renew(self, terms: Workload) -> None:
        self.terms = terms
        self.rank = rank_of(terms)

    @property
    def is_backfill(self) -> bool:
        return self.rank is Rank.BACKFILL

    @property
    def weight(self) -> float:
        return 1.0 if self.terms.weight is None else self.terms.weight

    def push(self, entry: Entry[W]) -> None:
        tenant, user = entry.tenant.key, entry.user.key
        queue = self._queues.setdefault((tenant, user), [])
        insort(queue, entry, key=_place)
        self.count += 1
        self._users.setdefault(tenant, Turns()).add(entry.user)
        self.tenants.add(entry.tenant)

    def remove(self, entry: Entry[W]) -> None:
        tenant, user = entry.tenant.key, entry.user.key
        queue = self._queues[tenant, user]
        at = bisect_left(queue, entry.place, key=_place)
        assert queue[at] is entry, "removed twice"
        del queue[at]
        self.count -= 1
        if queue:
            return
        del self._queues[tenant, user]
        users = self._users[tenant]
        users.drop(user)
        if not users:
            del self._users[tenant]
            self.aside(tenant)

    def aside(self, tenant: str) -> None:
        """Nobody looks at it for now."""
        self.tenants.drop(tenant)
        self.resting.drop(tenant)

    def put_back(self, flow: Flow[str], *, rests: bool) -> None:
        self.tenants.add(flow)
        if rests:
            self.resting.add(flow)

    def rest(self, tenant: str) -> None:
        """Nothing of it runs any more.  One that was set aside is told so when it is put back: else it
        were looked at, and let in, and put back though nothing of it waits."""
        if tenant in self.tenants:
            self.resting.add(self.head(tenant).tenant)

    def head(self, tenant: str) -> Entry[W]:
        """The next of a tenant that waits here."""
        user = self._users[tenant].first()
        assert user is not None
        return self._queues[tenant, user.key][0]

    def near(
        self, tenants: Seq[Flow[str]], slack: Callable[[str], float], most: int
    ) -> Iterator[Entry[W]]:
        """`most` of what these have waiting, in order: half of them the first tenant's, of the rest half the
        next one's; of its users no further than its `slack` behind the first, of each as many."""
        spare = most - len(tenants)
        for tenant in tenants:
            each = 1 + (spare + 1) // 2
            spare -= each - 1
            if each == 1:
                yield self.head(tenant.key)
                continue
            users = self._users[tenant.key]
            first = users.first()
            assert first is not None
            close = users.within(first.start + slack(tenant.key), each)
            for user in close:
                yield from self._queues[tenant.key, user.key][: max(1, each // len(close))]

    def user_start(self, tenant: str) -> float:
        """The least of its users who wait here; infinite if none does."""
        users = self._users.get(tenant)
        first = None if users is None else users.first()
        return inf if first is None else first.start

    def refresh(self, seat: Seat) -> None:
        """The start times of its flows fell."""
        users = self._users.get(seat.tenant.key)
        if users is not None:
            self.tenants.refresh(seat.tenant)
            self.resting.refresh(seat.tenant)
            users.refresh(seat.user)

    def entries(self) -> Iterator[Entry[W]]:
        for queue in self._queues.values():
            yield from queue


def order_of(band: Band[W]) -> Order:
    if (band.terms.reserved or band.terms.floor) and band.credit_ns > 0:
        return Order.RESERVED if band.terms.reserved else Order.OWED
    return Order.BACKFILL if band.rank is Rank.BACKFILL else Order.WEIGHTED
