"""A step while it is being planned: what every policy may do, and what none may get wrong.

A `Draft` begins with all that run.  A policy makes room if decodes cannot grow, lets the decodes in
(all of them, always), then gives what is left of the step to prompts: those begun and newcomers, in
whatever order it finds right.  The draft counts rows, blocks and time.

Sources: Orca (iteration level), Sarathi-Serve (all decodes first, then chunks of prompts within a
budget), vLLM (whole-prompt admission with a watermark, preemption by recompute); STYLE.md §4.
Refuses to know: who should be served.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from collections.abc import Sequence as Seq
from itertools import chain, islice
from math import inf
from typing import Final, Generic

from executor.cost import Rates, TimeBudget
from executor.scheduler.batching import Gate
from executor.scheduler.protocol import (
    Chunk,
    Found,
    Limits,
    Moment,
    Plan,
    W,
    Work,
    admission_tokens,
)

_AIM: Final = 0.97
"""Of what is promised between tokens: there is a little time between steps, too."""


class Draft(Generic[W]):
    """One step of one policy.  `open`: how many newcomers may still come in.  `begun`: prompts that
    were begun before, as long as they are `alive`."""

    __slots__ = (
        "_budget",
        "_decoding",
        "_found",
        "_gate",
        "_limits",
        "_pace",
        "_rates",
        "_readers",
        "_time_left",
        "_wake_ns",
        "admitted",
        "alive",
        "begun",
        "fed",
        "free",
        "open",
        "preempted",
        "takers",
    )

    def __init__(
        self,
        running: Seq[W],
        waiting: Collection[W],
        moment: Moment,
        limits: Limits,
        gate: Gate,
    ) -> None:
        assert len(running) <= limits.seqs
        self._gate = gate
        self._time_left = True
        self.open, self._wake_ns = gate.opens(len(running), waiting, limits.seqs, moment.now_ns)
        self.alive = list(running)
        self.begun: list[W] = []
        self._decoding: list[W] = []
        for seq in running:
            todo = seq.todo
            if todo == 1:
                self._decoding.append(seq)
            elif todo:
                self.begun.append(seq)
        self.free = moment.free_blocks
        self._limits = limits
        self._budget = step_budget(self._decoding, moment.rates, limits)
        self._rates = moment.rates
        self._pace: tuple[float, float] | None = None  # a step of decodes alone; what was promised
        self._readers: Counter[int] | None = None  # of each block, if it was asked for
        self._found: dict[
            int, Found
        ] = {}  # by ticket: what is found stays so while a step is planned
        self.takers: set[str] = set()  # tenants of whom something is taken in this step
        self.fed: list[Chunk[W]] = []
        self.admitted: list[W] = []
        self.preempted: list[W] = []

    def grow(self, victim: Callable[[Seq[W]], W]) -> None:
        """See that every decode has its next block: only decodes can need one, since a prompt got all of
        its own on admission.  One that could not grow with the whole memory to itself has ended before
        (`Sequence.verdict`), so the last one standing always can."""
        need = sum(growth(self._decoding, self._limits))
        while need > self.free:
            assert len(self.alive) > 1, "the last survivor could not grow: it should have ended"
            chosen = victim(self.alive)
            if chosen in self._decoding:
                need -= sum(growth((chosen,), self._limits))
            self.preempt(chosen)
            self.open = 0  # nobody comes in while somebody is put out
        self.free -= need

    def preempt(self, seq: W) -> None:
        """Put `seq`, of whose prompt this step computes nothing, back into the queue."""
        self.free += self.freed(seq)
        assert self._readers is not None
        self._readers.subtract(_own(seq))
        for rows in (self.alive, self.begun, self._decoding):
            if seq in rows:
                rows.remove(seq)
        self._pace = None
        self.preempted.append(seq)

    def freed(self, seq: W) -> int:
        """Blocks that would come free with it: those that nobody else reads."""
        if self._readers is None:
            self._readers = Counter(chain.from_iterable(map(_own, self.alive)))
        readers = self._readers
        return sum(readers[block] == 1 for block in _own(seq))

    def found(self, seq: W) -> Found:
        found = self._found.get(seq.ticket)
        if found is None:
            found = self._found[seq.ticket] = seq.found(self._limits.block_tokens)
        return found

    def uncached(self, seq: W) -> tuple[int, int]:
        """Of what it knows: after how many tokens computing begins, and how many are to be computed."""
        start = seq.computed or self.found(seq).blocks * self._limits.block_tokens
        return start, seq.known - start

    def go_on(self, seq: W) -> bool:
        """Compute more of a prompt that was begun.  False: the step is full."""
        count = self._budget.take(seq.computed, seq.todo)
        if count > 0:
            self.fed.append(Chunk(seq, count))
        else:
            self._time_left = False
        return count > 0

    def invites(self, seq: W) -> bool:
        """Whether it may come in now as far as batches are concerned."""
        return self.open > 0 and self._gate.invites(seq.ticket)

    @property
    def spent(self) -> bool:
        """No time is left for anybody's prompt."""
        return self._budget.spent

    @property
    def house_full(self) -> bool:
        """Every row is taken."""
        return len(self.alive) >= self._limits.seqs

    def has_time(self, seq: W) -> bool:
        """Whether anything of its prompt could still be computed in this step."""
        return self._budget.would_take(*self.uncached(seq)) > 0

    def keeps_pace(self, seq: W) -> bool:
        """Whether, with it, a step of decodes alone still keeps the strictest promise between tokens of
        those who would be in it that one alone could keep: no other is worth waiting for."""
        if all(each.itl_ms is None for each in self._limits.workloads):
            return True
        if self._pace is None:
            decodes_ns = sum(self._rates.decodes_ns([each.known for each in self.alive]))
            self._pace = self._rates.step_ns + decodes_ns, self._strictest_ns(self.alive)
        decodes_ns, promised_ns = self._paced(seq)
        return decodes_ns <= promised_ns

    def _paced(self, seq: W) -> tuple[float, float]:
        """With it: what a step of decodes takes, what is promised between tokens."""
        assert self._pace is not None
        decodes_ns, promised_ns = self._pace
        row_ns = self._rates.row_ns(1, seq.known)
        return decodes_ns + row_ns, min(promised_ns, self._strictest_ns((seq,)))

    def _strictest_ns(self, seqs: Seq[W]) -> float:
        least_ns = self._rates.step_ns + self._rates.row_ns(1, 0)
        return strictest_ns(seqs, self._limits, self._rates, least_ns)

    def fits(self, seq: W) -> bool:
        """Whether there is a row and the memory for all that `seq` knows and one token more."""
        blocks, rows = self.short(seq)
        return blocks <= 0 and rows <= 0

    def short(self, seq: W) -> tuple[int, int]:
        """Blocks and rows that are missing for that."""
        spare = self._limits.watermark_blocks if self.alive else 0
        blocks = self._admission_blocks(seq) + spare - self.free
        return blocks, len(self.alive) + 1 - self._limits.seqs

    def admit(self, seq: W) -> bool:
        """Begin one that fits.  False: the step is full."""
        count = self._budget.take(*self.uncached(seq))
        if count > 0:
            taken = self.found(seq).blocks
            self.free -= self._admission_blocks(seq)
            self.alive.append(seq)
            if self._pace is not None:
                self._pace = self._paced(seq)
            self.admitted.append(seq)
            self.open -= 1
            self._gate.let_in(seq.ticket)
            self.fed.append(Chunk(seq, count, taken))
            if taken:
                self.takers.add(seq.tenant)
        else:
            self._time_left = False
        return count > 0

    def _admission_blocks(self, seq: W) -> int:
        """Free ones that it takes; what two of one step find resting counts for both."""
        return self._limits.blocks(admission_tokens(seq, self._limits)) - self.found(seq).held

    def plan(self) -> Plan[W]:
        """Rows of one token first, as a Batch is."""
        self._gate.settle(time_left=self._time_left and not self.spent)
        fed = sorted(self.fed, key=lambda chunk: chunk.count > 1)
        chunks = [Chunk(seq, 1) for seq in self._decoding]
        chunks += fed
        return Plan(chunks, self.admitted, self.preempted, None if chunks else self._wake_ns)


def cheapest(running: Seq[W]) -> W:
    """Whose loss costs least: fewest computed tokens, youngest on a tie."""
    return min(running, key=lambda seq: (seq.computed, -seq.ticket))


def growth(decoding: Seq[Work], limits: Limits) -> Iterator[int]:
    """Blocks that they need beyond those they have, of each that needs any."""
    size = limits.block_tokens
    for seq in decoding:
        if seq.computed >= (held := len(seq.blocks)) * size:
            yield limits.blocks(seq.computed + 1) - held


def _own(seq: Work) -> Iterator[int]:
    return islice(seq.blocks, seq.pooled, None)


def strictest_ns(seqs: Seq[Work], limits: Limits, rates: Rates, least_ns: float = 0.0) -> float:
    """What to aim at between tokens for the strictest promise among them, of those that come to
    `least_ns`; infinite if there is none."""
    promised = [each for each in limits.workloads if each.itl_ms is not None]
    classes = {seq.workload for seq in seqs} if promised else ()
    aims = [
        aim_ns(each.itl_ms, rates)
        for each in limits.workloads
        if each.itl_ms is not None and each.name in classes
    ]
    return min((aim for aim in aims if aim >= least_ns), default=inf)


def aim_ns(itl_ms: float, rates: Rates) -> float:
    """What a step is filled up to for this promise: what it takes at worst must keep it."""
    return _AIM * itl_ms * 1e6 / rates.late


def step_budget(decoding: Seq[Work], rates: Rates, limits: Limits) -> TimeBudget:
    """What prompts may take of the next step beside the decodes: until the strictest promise between
    tokens among those who decode, or `step_ms_max`.  SCHEDULER.md §2, step 5.

    Prompts get `chunk_tokens_min` whatever it takes, or else decodes could starve them; half of it where a
    promise would be broken by that: behind 1,500 tokens, 64 more took a CPU 100 of 80 ms."""
    promised_ns = strictest_ns(decoding, limits, rates)
    floor_tokens = limits.chunk_tokens_min
    if promised_ns < inf:
        floor_tokens = max(1, floor_tokens // 2)
    whole_ns = min(limits.step_ms_max * 1e6, promised_ns)
    decodes_ns = sum(rates.decodes_ns([seq.computed for seq in decoding]))
    return TimeBudget(
        rates,
        whole_ns - rates.step_ns - decodes_ns,
        floor_tokens=floor_tokens,
        tokens_max=limits.step_tokens_max,
    )
