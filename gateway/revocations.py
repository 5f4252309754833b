"""Rights that have ended, until every executor has given its word that nothing is read by them.

Each ending is asked for by itself, by its own snapshot: whoever was decided later is not struck by it, and
what one tenant's executor owes is no other's trouble.  What is not acknowledged stays owed, in memory
alone: an executor ends with the process that started it, and the keys of all that it kept with both, so
a process that starts owes nothing.  The list grows only while an executor is there and does not answer.

Refuses to know: what a right was to, SQL, the audit log.  Source: SECURITY.md §2 (Authorization at read
time), P6.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from executor.contract import COVERS_MAX
from gateway.live import LiveRequest
from tenants.documents import Record


class Revoker(Protocol):
    """One executor's side of a revocation."""

    async def revoke(self, tags: tuple[bytes, ...], snapshot: int) -> None:
        """Returns when no look-up can hit what rests on one of `tags` and was decided by an older
        snapshot, no such request runs, and what was kept is zeroed.  One that is down keeps nothing,
        and returns at once.  Raises where it does not know; ask again."""


@dataclass(frozen=True, slots=True, eq=False)
class Ending:
    """Rights that ended with one change: to `records` as they were, or to all that is `tenant`'s.
    `struck`: the requests that were interrupted for it."""

    tags: tuple[bytes, ...] = field(repr=False)
    snapshot: int
    records: tuple[Record, ...] = ()
    tenant: str | None = None
    struck: tuple[LiveRequest, ...] = ()


@dataclass(slots=True)
class Revocations:
    revokers: Sequence[Revoker]
    log: Callable[..., None]
    _owed: dict[Ending, None] = field(default_factory=dict, repr=False)
    _asking: set[Ending] = field(default_factory=set, repr=False)

    def owe(self, ending: Ending, instead: Ending | None = None) -> Ending:
        """From now on, until `ask` or `ask_again` has every executor's word."""
        if instead is not None:
            self._owed.pop(instead, None)
        self._owed[ending] = None
        return ending

    async def ask(self, ending: Ending) -> bool:
        """Whether all have given it."""
        self._asking.add(ending)
        try:
            heard = await asyncio.gather(
                *(
                    each.revoke(tags, ending.snapshot)
                    for each in self.revokers
                    for tags in _chunks(ending.tags)
                ),
                return_exceptions=True,
            )
        finally:
            self._asking.discard(ending)
        if failed := [why for why in heard if isinstance(why, BaseException)]:
            self.log("revocation.owed", count=len(ending.tags), error=failed[0])
            return False
        self._owed.pop(ending, None)
        return True

    async def ask_again(self) -> tuple[Ending, ...]:
        """For all that is owed and is not being asked for: of which it is over now."""
        owed = [each for each in self._owed if each not in self._asking]
        given = await asyncio.gather(*map(self.ask, owed))
        return tuple(each for each, word in zip(owed, given, strict=True) if word)


def _chunks(tags: Sequence[bytes]) -> Iterable[tuple[bytes, ...]]:
    return (tuple(tags[at : at + COVERS_MAX]) for at in range(0, len(tags), COVERS_MAX))
