"""Who computes what in the next step: a decision over counts, no block, clock or model in it.

`plan` is the pure rule, `Fcfs` the queues around it: first come, first served.  The fair scheduler
will stand behind the same `Scheduler`.  Sources: Orca (iteration level), Sarathi-Serve (all decodes
first, then chunks of prompts within a budget), vLLM (whole-prompt admission with a watermark,
preemption by recompute); STYLE.md §4.

Refuses to know: block ids, tokens' values, time, who a tenant is.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from operator import attrgetter
from typing import Protocol

from executor.sequence import Sequence

_ticket = attrgetter("ticket")


class Budget(Protocol):
    """What is left of this step for prompts.  `cost.TimeBudget` measures it in time."""

    def take(self, start: int, wanted: int) -> int:
        """Grant (and spend) up to `wanted` tokens of a chunk that begins at `start`."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """`watermark_blocks` stay free when a newcomer is admitted beside others: room to grow."""

    seqs: int
    block_tokens: int
    blocks_total: int
    watermark_blocks: int

    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)


@dataclass(frozen=True, slots=True)
class Chunk:
    seq: Sequence
    count: int
    lent: int = 0  # blocks of its leader that it takes first


@dataclass(frozen=True, slots=True)
class Plan:
    """`chunks`: decodes first.  `admitted` leave the queue and own blocks for all they know and one
    token more (`admission_tokens`), less what their leader lends.  `preempted` lose their blocks, before anything is allocated."""

    chunks: Seq[Chunk]
    admitted: Seq[Sequence] = ()
    preempted: Seq[Sequence] = ()


class Scheduler(Protocol):
    """Keeps the running and the waiting; the engine tells it what came, went and was measured."""

    @property
    def running(self) -> Seq[Sequence]: ...

    @property
    def waiting(self) -> Seq[Sequence]:
        """In the order in which they would be admitted, as far as that is known."""
        ...

    def add(self, seq: Sequence) -> None: ...

    def remove(self, seq: Sequence) -> None:
        """It ended, wherever it stood."""
        ...

    def plan(self, free_blocks: int, budget: Budget) -> Plan:
        """Decide the next step and move sequences between the queues accordingly."""
        ...

    def charge(self, seq: Sequence, device_ns: int) -> None:
        """What a step cost it, as measured."""
        ...


def admission_tokens(seq: Sequence, limits: Limits) -> int:
    """Room a sequence must find before it starts: all it knows and one token more.  One that was
    preempted in the last block of the memory has no room for one more and needs none yet."""
    return min(len(seq.tokens) + 1, limits.blocks_total * limits.block_tokens)


def plan(
    running: Seq[Sequence], waiting: Iterable[Sequence], free: int, limits: Limits, budget: Budget
) -> Plan:
    """Decode all that run, go on with the prompts begun, then admit.  `free` counts KV blocks.

    Only a decode can need a block (a prompt got all of its own on admission).  If they do not
    suffice, the cheapest victim goes: fewest computed tokens, youngest on a tie.  A sequence that
    could not grow with the whole memory to itself has ended before (`Sequence.verdict`), so the
    last one standing always can."""
    assert len(running) <= limits.seqs
    alive, preempted = list(running), []
    need = sum(_growth(seq, limits) for seq in alive)
    holders = Counter(block for seq in alive for block in seq.blocks) if need > free else Counter()
    while need > free:
        victim = min(alive, key=lambda seq: (seq.computed, -seq.ticket))
        assert len(alive) > 1, "the last survivor could not grow: verdict should have ended it"
        alive.remove(victim)
        preempted.append(victim)
        need -= _growth(victim, limits)
        holders.subtract(victim.blocks)
        free += sum(holders[block] == 0 for block in victim.blocks)
    free -= need
    chunks = [Chunk(seq, 1) for seq in alive if seq.todo == 1]
    begun = [seq for seq in alive if seq.todo > 1]
    chunks += [Chunk(s, n) for s in begun if (n := budget.take(s.computed, s.todo)) > 0]
    admitted: list[Sequence] = []
    for seq in () if preempted else waiting:  # nobody comes in while somebody is put out
        lent = seq.lent(limits.block_tokens)
        need = limits.blocks(admission_tokens(seq, limits)) - lent
        spare = limits.watermark_blocks if alive else 0
        if len(alive) >= limits.seqs or need + spare > free:
            break  # first come, first served: nobody overtakes
        skip = lent * limits.block_tokens
        if (count := budget.take(skip, seq.todo - skip)) <= 0:
            break
        free -= need
        alive.append(seq)
        admitted.append(seq)
        chunks.append(Chunk(seq, count, lent))
    chunks.sort(key=lambda chunk: chunk.count > 1)  # stable: rows of one token first, as a Batch is
    return Plan(chunks, admitted, preempted)


def places(waiting: Iterable[Sequence]) -> Iterator[tuple[Sequence, int]]:
    """Each with its place within its tenant (0 = next); a global place would leak load."""
    ahead: dict[str, int] = {}
    for seq in waiting:
        place = ahead.get(seq.tenant, 0)
        ahead[seq.tenant] = place + 1
        yield seq, place


class Fcfs:
    """Both queues in order of arrival; a preempted sequence returns to its old place."""

    __slots__ = ("_running", "_waiting", "limits")

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._running: list[Sequence] = []
        self._waiting: list[Sequence] = []

    @property
    def running(self) -> Seq[Sequence]:
        return self._running

    @property
    def waiting(self) -> Seq[Sequence]:
        return self._waiting

    def add(self, seq: Sequence) -> None:
        insort(self._waiting, seq, key=_ticket)

    def remove(self, seq: Sequence) -> None:
        if not _take(self._running, seq):
            found = _take(self._waiting, seq)
            assert found, "removed twice"

    def plan(self, free_blocks: int, budget: Budget) -> Plan:
        decided = plan(self._running, self._waiting, free_blocks, self.limits, budget)
        for seq in decided.preempted:
            self.remove(seq)
            self.add(seq)
        for seq in decided.admitted:
            self.remove(seq)
            insort(self._running, seq, key=_ticket)
        return decided

    def charge(self, seq: Sequence, device_ns: int) -> None:
        """First come, first served owes nobody."""


def _growth(seq: Sequence, limits: Limits) -> int:
    """Blocks its next decode needs beyond those it has.  One that waits for its grammar's word on
    the next token (all it knows is computed) needs none yet."""
    if not seq.todo:
        return 0
    return max(0, limits.blocks(seq.computed + 1) - len(seq.blocks))


def _take(queue: list[Sequence], seq: Sequence) -> bool:
    at = bisect_left(queue, seq.ticket, key=_ticket)
    if at == len(queue) or queue[at] is not seq:
        return False
    del queue[at]
    return True
