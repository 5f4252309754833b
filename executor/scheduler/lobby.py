"""Who waits and has not run, wherever it stands (in the queue, for a grammar, for a sibling), and who goes
when there are too many: so that nobody fills what all share.

Bounded are their number and the memory that they hold.  A full house sends away the newest (the last in place) of whoever has
most by weight, of tenants and then of that tenant's users, each one's first request not counted; the
newcomer itself where that is who it belongs to.  So a tenant with nothing here finds a place unless there
are more tenants than places, and two that have as much do not put each other out by turns.  Who has run
once is not in here any more, and is never sent away.

Refuses to know: queues, time promised, what happens to who goes.  Source: SCHEDULER.md §2, Admission.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Final, Generic
from zlib import crc32

from executor.scheduler.promises import told_ms
from executor.scheduler.protocol import W

_FIRST_GAP_NS: Final = 1e9  # between two that start, before it is known
_PACE: Final = 0.05


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of all that wait together."""

    count: int = 4096
    held_bytes: int = 512 * 2**20

    def __post_init__(self) -> None:
        assert self.count >= 1
        assert self.held_bytes >= 1


def _place(guest: tuple[W, int]) -> int:
    return guest[0].place


class _Name:
    """A tenant, or a user of one."""

    __slots__ = ("count", "held_bytes", "name", "weight")

    def __init__(self, name: str) -> None:
        self.name = name
        self.weight = 1.0
        self.count = 0
        self.held_bytes = 0

    def add(self, count: int, size: int) -> None:
        self.count += count
        self.held_bytes += size

    def most(self, *, of_bytes: bool) -> float:
        """By weight, one of them not counted."""
        much = self.held_bytes / self.count if of_bytes else 1
        return much * (self.count - 1) / self.weight


class _User(_Name, Generic[W]):
    """`guests`: what waits of it and its size, in order of place."""

    __slots__ = ("guests",)

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.guests: list[tuple[W, int]] = []

    def find(self, work: W) -> int | None:
        at = bisect_left(self.guests, work.place, key=_place)
        return at if at < len(self.guests) and self.guests[at][0] is work else None


class _Tenant(_Name, Generic[W]):
    __slots__ = ("users",)

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.users: dict[str, _User[W]] = {}


class Lobby(Generic[W]):
    """A pick on a full house takes O(tenants and users of one of them), all else O(log of what one user has)."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._tenants: dict[str, _Tenant[W]] = {}
        self._count = 0
        self._bytes = 0
        self._weight = 0.0
        self._gap_ns = _FIRST_GAP_NS
        self._started_ns: int | None = None

    @property
    def count(self) -> int:
        return self._count

    def knows(self, tenant: str) -> bool:
        """Whether anything of it waits here."""
        return tenant in self._tenants

    def displaces(self, newcomer: W, size: int) -> list[W]:
        """Who goes so that a newcomer that holds `size` bytes can come in; it alone if it is the one.
        Nothing changes."""
        if self._count < self._bounds.count and self._bytes + size <= self._bounds.held_bytes:
            return []
        gone: list[tuple[W, int]] = []
        self.enter(newcomer, size)
        while self._is_over:
            one = self._newest_of_the_most(newcomer)
            if one is newcomer:
                break
            gone.append((one, self._take(one)))
        displaced = [newcomer] if self._is_over else [one for one, _ in gone]
        self._take(newcomer)
        for one, held in gone:
            self.enter(one, held)
        return displaced

    def enter(self, work: W, size: int) -> None:
        tenant = self._tenants.get(work.tenant)
        if tenant is None:
            tenant = self._tenants[work.tenant] = _Tenant(work.tenant)
            tenant.weight = 0.0
        user = tenant.users.get(work.user)
        if user is None:
            user = tenant.users[work.user] = _User(work.user)
        self._weight += work.tenant_weight - tenant.weight
        tenant.weight, user.weight = work.tenant_weight, work.user_weight
        insort(user.guests, (work, size), key=_place)
        self._book(tenant, user, 1, size)

    def starts(self, work: W, now_ns: int) -> None:
        """It runs; nothing if it did before.  These are the places that come free for others: one that ends
        here was sent away, refused or left, and in a flood that says nothing of the machine."""
        last_ns = self._started_ns
        if self.leave(work):
            if last_ns is not None:
                self._gap_ns += _PACE * (now_ns - last_ns - self._gap_ns)
            self._started_ns = now_ns if self._count else None

    def leave(self, work: W) -> bool:
        """It has ended.  False, and nothing, if it was not here any more."""
        tenant = self._tenants.get(work.tenant)
        user = None if tenant is None else tenant.users.get(work.user)
        if user is None or user.find(work) is None:
            return False
        self._take(work)
        if not self._count:
            self._started_ns = None  # an empty house has no pace
        return True

    def retry_ms(self, work: W) -> int:
        """When a place will be free for one of its tenant: its part by weight of those that start, as they have
        started of late.  The pace is the house's, since what a tenant gets of it is its part whoever else
        waits; a tenant whose requests are longer than others' starts fewer, and may be told too little.  What
        it tells of the house is one of ten numbers a decade, jittered."""
        tenant = self._tenants.get(work.tenant)
        others = max(0.0, self._weight - (0.0 if tenant is None else tenant.weight))
        part = work.tenant_weight / (others + work.tenant_weight)
        own = 0 if tenant is None else tenant.count
        return told_ms(self._gap_ns / part, crc32(f"{own} {work.tenant}".encode()))

    @property
    def _is_over(self) -> bool:
        return self._count > self._bounds.count or self._bytes > self._bounds.held_bytes

    def _newest_of_the_most(self, newcomer: W) -> W:
        """The newcomer where no other has more than it."""
        of_bytes = self._count <= self._bounds.count
        tenant = max(
            self._tenants.values(),
            key=lambda one: (one.most(of_bytes=of_bytes), one.name == newcomer.tenant),
        )
        its_own = tenant.name == newcomer.tenant
        user = max(
            tenant.users.values(),
            key=lambda one: (
                one.most(of_bytes=of_bytes),
                its_own and one.name == newcomer.user,
                _place(one.guests[-1]),
            ),
        )
        return user.guests[-1][0]

    def _take(self, work: W) -> int:
        tenant = self._tenants[work.tenant]
        user = tenant.users[work.user]
        at = user.find(work)
        assert at is not None
        _, size = user.guests.pop(at)
        self._book(tenant, user, -1, -size)
        if not user.count:
            del tenant.users[work.user]
        if not tenant.count:
            del self._tenants[work.tenant]
            self._weight = self._weight - tenant.weight if self._tenants else 0.0
        return size

    def _book(self, tenant: _Tenant[W], user: _User[W], count: int, size: int) -> None:
        tenant.add(count, size)
        user.add(count, size)
        self._count += count
        self._bytes += size
