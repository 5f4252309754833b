"""What is kept of prompts, gone on demand: every executor is asked, and what they say is added up.

Nothing is claimed that no executor said: one that is there and does not acknowledge is counted, and the record
that is made of it is then none of a complete purge.  One that is not there has kept nothing.
Refuses to know: HTTP, who may (`policies.access`), records, blocks.  Source: SECURITY.md §2 (Purge proof), C18.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from executor.contract import COVERS_MAX, Executor, ExecutorLost
from security.purge import Purged, PurgeReason


@dataclass(frozen=True, slots=True)
class Target:
    """`scope`: what the record calls it.  `owner`: whose (None: everybody's), by the name that executors know.
    `tags`: under which labels or covers; none: all of it."""

    scope: str
    tenant: str | None = None
    owner: str | None = None
    tags: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Heard:
    """What executors said of it.  `ended`: requests that read it.  `executors`: those that acknowledged."""

    blocks: int = 0
    blocks_read_zero: int = 0
    ended: int = 0
    executors: int = 0
    unacknowledged: int = 0

    def __add__(self, other: Heard) -> Heard:
        return Heard(
            self.blocks + other.blocks,
            self.blocks_read_zero + other.blocks_read_zero,
            self.ended + other.ended,
            self.executors + other.executors,
            self.unacknowledged + other.unacknowledged,
        )

    def purged(self, scope: str, reason: PurgeReason, *, key_destroyed: bool = False) -> Purged:
        """As it is recorded.  An executor wipes before it answers, and says whether it then read zeros."""
        return Purged(
            scope=scope,
            reason=reason,
            blocks=self.blocks,
            blocks_zeroed=self.blocks,
            blocks_read_zero=self.blocks_read_zero,
            key_destroyed=key_destroyed,
            unacknowledged=self.unacknowledged,
        )


@dataclass(slots=True)
class Purges:
    """How often what is kept of a tenant was purged since the start: what it has registered is computed anew
    after each time (`warming`)."""

    _of: Counter[str | None] = field(default_factory=Counter)

    def note(self, tenant: str | None) -> None:
        """`tenant` None: everybody's."""
        self._of[tenant] += 1

    def count(self, tenant: str | None) -> int:
        return self._of[None] + (self._of[tenant] if tenant is not None else 0)


async def purge(executors: Iterable[Executor], target: Target, *, spare: bool = False) -> Heard:
    """By all of them at once.  `spare`: who reads it goes on, and it is wiped when they have ended."""
    heard = await asyncio.gather(*(_by(each, target, spare) for each in executors))
    return sum(heard, Heard())


async def _by(executor: Executor, target: Target, spare: bool) -> Heard:
    told = Heard()
    try:
        for at in range(0, max(1, len(target.tags)), COVERS_MAX):
            tags = target.tags[at : at + COVERS_MAX]
            said = await executor.purge(target.owner, tags, spare=spare)
            told += Heard(said.entries, said.entries if said.zeroed else 0, said.ended)
    except ExecutorLost:
        # What it said before it fell silent, it had done.
        return told + (Heard() if executor.card is None else Heard(unacknowledged=1))
    return told + Heard(executors=1)
