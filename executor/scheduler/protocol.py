"""What a scheduler decides, and what it must be told for it: counts and times, no block ids, no clock,
no model.  The engine and the simulator stand on the other side of the same lines.

Refuses to know: tokens' values, where times come from.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from executor.contract import Workload
from executor.cost import Rates
from executor.scheduler.batching import ALWAYS, BatchRule
from executor.scheduler.promises import Ahead, Refusal


class Found(NamedTuple):
    """Leading blocks of its prompt that a request can take instead of computing them.  `resting`: those
    of them that nobody holds, which count as free until they are taken."""

    blocks: int
    resting: int = 0

    @property
    def held(self) -> int:
        """By others: taking them takes no memory."""
        return self.blocks - self.resting


NOTHING: Final = Found(0)


class Turn(NamedTuple):
    """Of one that was refused.  Its place: `due_ns`, the time that it was told at first, and `ticket`, of its
    first coming.  Kept until `until_ns`.  `next_ns`: the time that it was told last."""

    due_ns: int
    ticket: int
    user: str
    user_weight: float
    ahead: Ahead
    until_ns: int
    next_ns: int


class Work(Protocol):
    """One request as schedulers see it.  `known` tokens, of which `computed` have keys and values."""

    @property
    def ticket(self) -> int:
        """Of its arrival; kept for life."""
        ...

    @property
    def turn(self) -> Turn | None:
        """What `returns` said of it when it came."""
        ...

    @property
    def place(self) -> int:
        """In the order of first comings: the ticket of its turn, or its own."""
        ...

    @property
    def workload(self) -> str: ...

    @property
    def tenant(self) -> str: ...

    @property
    def tenant_weight(self) -> float: ...

    @property
    def user(self) -> str: ...

    @property
    def user_weight(self) -> float: ...

    @property
    def retry_key(self) -> bytes | None:
        """By which it is known when it comes back after a refusal."""
        ...

    @property
    def since_ns(self) -> int:
        """When it last began to wait, or to run."""
        ...

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def max_new_tokens(self) -> int: ...

    @property
    def known(self) -> int: ...

    @property
    def computed(self) -> int: ...

    @property
    def preemptions(self) -> int: ...

    @property
    def blocks(self) -> Collection[int]: ...

    @property
    def pooled(self) -> int:
        """Of its blocks the first so many, which belong to a pool beside this memory: no memory comes free
        with them, nor was any taken for them."""
        ...

    @property
    def todo(self) -> int:
        """Known, not computed.  0 while it waits for something else than this model."""
        ...

    @property
    def generated(self) -> int: ...

    def found(self, block_tokens: int) -> Found:
        """As of now: of a sibling that leads it, of what is kept of its owner's own, or of what is pinned
        for it; never what is there by another's doing, since what is found orders and is charged less.
        Fewer tokens than it knows.  It is asked of those only that are looked at in a step."""
        ...


W = TypeVar("W", bound=Work)

Charge = tuple[W, int, int]
"""Of a row of a step: its own nanoseconds, and those in which it was computed a second time."""


@dataclass(frozen=True, slots=True)
class Limits:
    """`watermark_blocks` stay free when a newcomer is admitted beside others: room to grow.
    A step with prompts in it should take `step_ms_max`; `chunk_tokens_min` of them run all the same (`step.step_budget`).
    `prefixes`: what was computed of prompts is kept after their end (`Work.found`)."""

    seqs: int
    block_tokens: int
    blocks_total: int
    watermark_blocks: int
    step_ms_max: int = 200
    chunk_tokens_min: int = 64
    step_tokens_max: int = 2048
    workloads: tuple[Workload, ...] = ()
    batching: BatchRule = ALWAYS
    prefixes: bool = False

    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)


@dataclass(frozen=True, slots=True)
class Moment:
    """The machine when a step is planned.  `free_blocks` of KV memory; `rates` as fitted so far."""

    now_ns: int
    free_blocks: int
    rates: Rates


class Chunk(msgspec.Struct, Generic[W], frozen=True):
    """Hundreds are made in a step: a frozen dataclass takes ten times as long."""

    seq: W
    count: int
    taken: int = 0  # blocks that it takes first; `count` comes after them


@dataclass(frozen=True, slots=True)
class Plan(Generic[W]):
    """`chunks`: decodes first.  `admitted` leave the queue and own blocks for all they know and one
    token more (`admission_tokens`), `taken` ones included.  `preempted` lose their blocks first, then all
    that is taken is taken, then the rest is allocated: so nothing that was found is overwritten.  `wake_ns`: nothing to do now, but perhaps then."""

    chunks: Seq[Chunk[W]]
    admitted: Seq[W] = ()
    preempted: Seq[W] = ()
    wake_ns: int | None = None


class Scheduler(Protocol[W]):
    """Keeps the running and the waiting; it is told what came, went and was measured."""

    @property
    def running(self) -> Seq[W]: ...

    @property
    def waiting(self) -> Collection[W]: ...

    @property
    def running_count(self) -> int: ...

    @property
    def waiting_count(self) -> int:
        """As `len(waiting)`, which may have to be made."""
        ...

    def add(self, seq: W, now_ns: int) -> None: ...

    def refuses(self, seq: W, moment: Moment) -> Refusal | None:
        """Whether a newcomer's promise cannot be kept.  Asked before `add`; a question, and no more."""
        ...

    def returns(self, seq: W, now_ns: int) -> Turn | None:
        """Asked first of all of a newcomer: what it was told when it was refused before.  It takes its place
        with it; one that comes before `next_ns` does not, and is to be refused with nothing else done."""
        ...

    def turns_away(self, seq: W, retry_ms: int, now_ns: int) -> int:
        """A newcomer, or one that makes room for another and is not removed yet, is told to come back then; in
        how many milliseconds after all."""
        ...

    def remove(self, seq: W, now_ns: int) -> None:
        """It ended, wherever it stood."""
        ...

    def renew(self, limits: Limits) -> None:
        """Other terms for the classes of work from now on."""
        ...

    def plan(self, moment: Moment) -> Plan[W]:
        """Decide the next step and move sequences between the queues accordingly."""
        ...

    def charge(self, bill: Iterable[Charge[W]]) -> None:
        """What a step cost, as measured: each of its rows once."""
        ...


def uncached_tokens(seq: Work, block_tokens: int) -> int:
    """Of what it knows: what would have to be computed, were it let in now or if it is in."""
    return seq.todo if seq.computed else seq.todo - seq.found(block_tokens).blocks * block_tokens


def admission_tokens(seq: Work, limits: Limits) -> int:
    """Room a sequence must find before it starts: all it knows and one token more.  One that was
    preempted in the last block of the memory has no room for one more and needs none yet."""
    return min(seq.known + 1, limits.blocks_total * limits.block_tokens)
