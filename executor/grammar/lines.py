"""Who has a grammar compiled next: tenants take turns, in each its users, in these the oldest.

A process is held from its compiling to the end of its answer, so that who compiles much ahead of its turn
would keep the others out.  A tenant may therefore hold no more than `AHEAD` times what is free: alone two
thirds of all, each of many as much as each other, and something is always left for who comes with nothing
(Choudhury and Hahne, "Dynamic queue length thresholds", 1998).  Few compile at once, one of a user.

Pure.  Refuses to know: processes, sockets, time.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from executor.grammar.protocol import Key, User

COMPILING_A_TENANT: Final = 2
AHEAD: Final = 2


class Job(Protocol):
    @property
    def key(self) -> Key: ...

    @property
    def user(self) -> User: ...

    @property
    def compiled(self) -> bool: ...


J = TypeVar("J", bound=Job)


@dataclass(frozen=True, slots=True)
class Room:
    """Processes at most, and at most so many of them at their grammar."""

    processes: int
    compiling: int


class Lines(Generic[J]):
    """Those without a process."""

    __slots__ = ("_jobs", "_room", "_tenants")

    def __init__(self, room: Room) -> None:
        self._room = room
        self._jobs: dict[Key, J] = {}
        self._tenants: dict[User, dict[User, OrderedDict[Key, None]]] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def join(self, job: J, *, first: bool = False) -> None:
        """Behind its user's others, or before them."""
        self._jobs[job.key] = job
        line = self._tenants.setdefault(job.user[:1], {}).setdefault(job.user, OrderedDict())
        line[job.key] = None
        line.move_to_end(job.key, last=not first)

    def leave(self, key: Key) -> None:
        """Nothing if it stands in no line."""
        job = self._jobs.pop(key, None)
        if job is None:
            return
        users = self._tenants[job.user[:1]]
        del users[job.user][key]
        if not users[job.user]:
            del users[job.user]
        if not users:
            del self._tenants[job.user[:1]]

    def clear(self) -> list[J]:
        jobs = list(self._jobs.values())
        self._jobs, self._tenants = {}, {}
        return jobs

    def next(self, holding: Collection[J]) -> J | None:
        """Whose turn it is, if anybody's; it stands in line no longer.  `holding`: those with a process."""
        free = self._room.processes - len(holding)
        compiling = [job.user for job in holding if not job.compiled]
        if not self._jobs or free <= 0 or len(compiling) >= self._room.compiling:
            return None
        held = Counter(job.user[:1] for job in holding)
        busy = Counter(user[:1] for user in compiling)
        for tenant, users in self._tenants.items():
            if busy[tenant] >= COMPILING_A_TENANT or held[tenant] >= AHEAD * free:
                continue
            for user, line in users.items():
                if user not in compiling:
                    return self._call(tenant, user, next(iter(line)))
        return None

    def _call(self, tenant: User, user: User, key: Key) -> J:
        """Whoever is called goes behind the others."""
        job = self._jobs[key]
        self.leave(key)
        if (users := self._tenants.pop(tenant, None)) is not None:
            self._tenants[tenant] = users
            if (line := users.pop(user, None)) is not None:
                users[user] = line
        return job
