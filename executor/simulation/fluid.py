"""One replica as a fluid: between two decisions all who run on it decode at the rate that the machine
gives for so many rows and so much context, and prompts take their time in the part that chunks get.

Theory of operation.  `steps` is the replica's own clock: it counts decode steps, whole and broken.  Alone,
d rows take a step of t(c) = fixed + sequence·d + kv·c, and c grows by d a step; beside prompts a step is as
long as chunks make it, and so many tokens of the prompt at the head are computed in it.  So a row ends at a
reading of that clock that is known when it begins, and only the first to end and the first prompt to be
done need to be looked for.  What a step costs is shared by those in it; the parts add up to the time
that the replica was busy.  Costs are settled, and the scheduler asked, when somebody waits or memory is
short.  The scheduler is the one that runs live, reclaim and all.

What a fluid does not know: where a step begins.  A first token is therefore told later by what is left of
the step underway (half of one) and of the prompt's last chunk, on average.

Refuses to know: other replicas, clients, promises (nothing is refused).  Source: SCHEDULER.md §4, L2.
"""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush
from itertools import count
from math import ceil, sqrt
from random import Random
from typing import Final

from executor.cost import Rates, Share, StepTimes, TimeBudget
from executor.scheduler.protocol import Charge, Limits, Moment, Scheduler
from executor.simulation.machine import Machine
from executor.simulation.work import SimWork

_NEAR: Final = 1e-6  # of a step, or of a token: what rounding leaves
_SHORT: Final = 0.95  # of memory in use: from there on growth is looked after at every event


class Row:
    """A request at a replica.  `starts`, `ends`: readings of the replica's clock at its first token and
    at its last.  `left`: tokens of its prompt that are not computed."""

    __slots__ = (
        "charged_ns",
        "context",
        "cost_ns",
        "ends",
        "first_ns",
        "known",
        "left",
        "lost",
        "lost_ns",
        "output_tokens",
        "read",
        "shared_ns",
        "starts",
        "waits",
        "work",
    )

    def __init__(self, work: SimWork, output_tokens: int) -> None:
        self.work = work
        self.output_tokens = output_tokens
        self.waits = True
        self.first_ns: int | None = None
        self.cost_ns = self.lost_ns = 0.0
        self.charged_ns = self.lost = 0
        self.left = self.starts = self.ends = 0.0
        self.read = self.shared_ns = self.context = 0.0
        self.known = 0


class Replica:
    """`advance` it to a time, change what is there, `decide`, ask for `next_ns`."""

    def __init__(
        self,
        machine: Machine,
        limits: Limits,
        scheduler: Scheduler[SimWork],
        rates: Rates,
        now_ns: int = 0,
    ) -> None:
        self.scheduler = scheduler
        self.now_ns = now_ns
        self.had: Counter[str] = Counter()  # device ns by tenant, until somebody takes it
        self.busy_ns = self.lost_ns = 0.0
        self.preemptions = 0
        self.rows: dict[int, Row] = {}
        self._machine = machine
        self._limits = limits
        self._rates = rates
        self._free = limits.blocks_total
        self._steps = 0.0
        self._shared_ns = 0.0  # what a row has had of what is shared alike, since the beginning
        self._context = 0.0  # of all that decode
        self._decoding = 0
        self._ends: list[tuple[float, int, Row]] = []
        self._order = count()
        self._prompts: list[Row] = []
        self._bill: list[Charge[SimWork]] = []

    @property
    def here(self) -> int:
        return len(self.rows)

    # What happens to it

    def add(self, work: SimWork, output_tokens: int) -> Row:
        room = self._limits.blocks_total * self._limits.block_tokens
        assert work.prompt_tokens + output_tokens <= room, "it never fits this machine"
        row = self.rows[work.ticket] = Row(work, output_tokens)
        self.scheduler.add(work, self.now_ns)
        return row

    def drop(self, row: Row) -> None:
        """It goes, wherever it stands."""
        work = row.work
        del self.rows[work.ticket]
        self._stop(row)
        self._pay()
        self.scheduler.remove(work, self.now_ns)
        self._free += work.release()

    def advance(self, now_ns: int) -> list[Row]:
        """Those who ended at `now_ns`; of those whose prompt was done, `first_ns` is known."""
        past_ns = now_ns - self.now_ns
        assert past_ns >= 0
        self.now_ns = now_ns
        if past_ns and (self._decoding or self._prompts):
            self._flow(past_ns)
        while self._prompts and self._prompts[0].left <= _NEAR:
            self._speak(self._prompts.pop(0))
        ended = []
        while self._ends and self._ends[0][0] <= self._steps + _NEAR:
            ends, _, row = heappop(self._ends)
            if self._lives(ends, 0, row):
                ended.append(row)
        for row in ended:
            self._settle(row)
            self.drop(row)
        return ended

    def decide(self) -> list[Row]:
        """Ask the scheduler, if that could change anything: who began or was put out."""
        if not self.rows or not (self.scheduler.waiting_count or self._is_short()):
            return []
        self.settle()
        plan = self.scheduler.plan(Moment(self.now_ns, self._free, self._rates))
        for work in plan.preempted:
            row = self.rows[work.ticket]
            self._stop(row)
            self._free += work.release()
            work.rewind(self.now_ns)
            row.waits = True
            self.preemptions += 1
        for work in plan.admitted:
            self._begin(self.rows[work.ticket])
        assert self._prompts or self._decoding, "work is here and nothing runs"
        return [self.rows[work.ticket] for work in (*plan.preempted, *plan.admitted)]

    def settle(self) -> None:
        """Charge all who run for what they had until now."""
        for entry in self._ends:
            if self._lives(*entry):
                self._settle(entry[2])
        for row in self._prompts:
            self._settle_prompt(row)
        self._pay()

    def next_ns(self) -> int | None:
        """When something happens by itself: a row ends or a prompt is done."""
        while self._ends and not self._lives(*self._ends[0]):
            heappop(self._ends)
        after = []  # steps
        if self._prompts:
            after.append(self._prompts[0].left / self._chunk())
        if self._ends:
            after.append(self._ends[0][0] - self._steps)
        if not after:
            return None
        steps, growth_ns = min(after), self._machine.kv_token_ns * self._decoding
        return self.now_ns + max(1, ceil(steps * (self._step_ns() + growth_ns * steps / 2)))

    # The fluid

    def _flow(self, past_ns: float) -> None:
        machine, rows = self._machine, self._decoding
        self.busy_ns += past_ns
        step_ns, growth_ns = self._step_ns(), machine.kv_token_ns * rows
        root_ns = sqrt(step_ns * step_ns + 2 * growth_ns * past_ns)
        steps = 2 * past_ns / (step_ns + root_ns)  # no cancellation where growth is tiny
        fed = 1 if self._prompts else 0
        shared_ns = steps * (machine.fixed_ns / (rows + fed) + machine.sequence_ns)
        self._shared_ns += shared_ns
        if fed:
            self._feed(self._prompts[0], steps * self._chunk(), shared_ns)
        self._steps += steps
        self._context += rows * steps

    def _feed(self, head: Row, tokens: float, shared_ns: float) -> None:
        cost_ns = shared_ns + tokens * self._token_ns(head)
        again = head.work.high_water - (head.work.known - head.left)  # of it, computed before
        lost_ns = cost_ns * min(1.0, max(0.0, again / tokens)) if tokens else 0.0
        head.left -= tokens
        head.cost_ns += cost_ns - lost_ns
        head.lost_ns += lost_ns
        self.lost_ns += lost_ns

    def _step_ns(self) -> float:
        """What a step takes now: of all that decode, and a chunk of the prompt at the head."""
        if not self._prompts:
            return self._alone_ns(self._decoding)
        return self._alone_ns(self._decoding + 1) + self._chunk() * self._token_ns(self._prompts[0])

    def _alone_ns(self, rows: int) -> float:
        machine = self._machine
        return machine.fixed_ns + machine.sequence_ns * rows + machine.kv_token_ns * self._context

    def _token_ns(self, row: Row) -> float:
        """A prompt's token in the middle of it, its context read once a chunk left out."""
        return self._machine.token_ns + self._machine.pair_ns * row.work.known / 2

    def _chunk(self) -> int:
        """As `step.step_budget` has it, by the same rates."""
        limits, rates, rows = self._limits, self._rates, self._decoding
        decodes_ns = rows * rates.row_ns(1, 0) + rates.token_context_ns * self._context
        budget = TimeBudget(
            rates,
            limits.step_ms_max * 1e6 - rates.step_ns - decodes_ns,
            floor_tokens=limits.chunk_tokens_min,
            tokens_max=limits.step_tokens_max,
        )
        return budget.take(0, limits.step_tokens_max)

    # Rows

    def _begin(self, row: Row) -> None:
        work = row.work
        work.since_ns = self.now_ns
        self._free -= work.hold(self._limits.blocks(work.known + 1))
        row.left, row.waits = float(work.todo), False
        self._prompts.append(row)

    def _speak(self, row: Row) -> None:
        """Its prompt is done: it decodes from now on, after what is left of a step."""
        work = row.work
        row.left = 0.0
        self._settle_prompt(row)
        chunks = work.known / self._chunk()
        lag = (0.5 if self._decoding else 0.0) + ceil(chunks) - chunks
        work.known += 1
        self._decoding += 1
        self._context += work.known
        row.known, row.starts = work.known, self._steps + lag
        row.ends = row.starts + row.output_tokens - work.generated
        row.read, row.shared_ns, row.context = self._steps, self._shared_ns, float(work.known)
        if row.first_ns is None:
            row.first_ns = self.now_ns + round(lag * self._alone_ns(self._decoding))
        heappush(self._ends, (row.ends, next(self._order), row))

    def _stop(self, row: Row) -> None:
        """It runs no longer, if it did; its entry among the ends is stale."""
        if row.ends:
            self._settle(row)
            self._decoding -= 1
            self._context = self._context - row.context if self._decoding else 0.0
            row.ends = 0.0
        elif row in self._prompts:
            self._settle_prompt(row)
            self._prompts.remove(row)

    def _lives(self, ends: float, _: int, row: Row) -> bool:
        return row.ends == ends and self.rows.get(row.work.ticket) is row

    def _settle(self, row: Row) -> None:
        steps = self._steps - row.read
        if not row.ends or steps <= 0:
            return
        kv_ns = self._machine.kv_token_ns * steps * (row.context + steps / 2)
        row.cost_ns += self._shared_ns - row.shared_ns + kv_ns
        row.read, row.shared_ns = self._steps, self._shared_ns
        row.context += steps
        work = row.work
        said = row.known + max(0, int(self._steps - row.starts + _NEAR))
        if said > work.known:
            more, work.known = said - work.known, said
            work.advance(more)
            self._free -= work.hold(self._limits.blocks(said))
        self._charge(row)

    def _settle_prompt(self, row: Row) -> None:
        work = row.work
        done = work.known - ceil(row.left - _NEAR)
        if done > work.computed:
            work.advance(done - work.computed)
        self._charge(row)

    def _charge(self, row: Row) -> None:
        own_ns, lost_ns = int(row.cost_ns) - row.charged_ns, int(row.lost_ns) - row.lost
        if own_ns or lost_ns:
            row.charged_ns += own_ns
            row.lost += lost_ns
            self.had[row.work.tenant] += own_ns
            self._bill.append((row.work, own_ns, lost_ns))

    def _pay(self) -> None:
        """Before anybody is asked or leaves."""
        if self._bill:
            self.scheduler.charge(self._bill)
            self._bill.clear()

    def _is_short(self) -> bool:
        """Whether somebody might have to make room."""
        held = self._context + self._decoding * self._limits.block_tokens
        held += sum(row.work.known for row in self._prompts)
        return held > _SHORT * self._limits.blocks_total * self._limits.block_tokens


def fitted(machine: Machine, limits: Limits, rng: Random) -> Rates:
    """What a scheduler would have learnt of `machine`: from steps of any number of rows, every other one
    with a prompt in it."""
    times = StepTimes()
    room = limits.blocks_total * limits.block_tokens
    for number in range(400):
        rows = rng.randint(1, min(limits.seqs, 32))
        shares = [Share(1, rng.randint(1, room // rows)) for _ in range(rows)]
        if number % 2:
            shares.append(
                Share(rng.randint(limits.chunk_tokens_min, limits.step_tokens_max // 4), 0)
            )
        times.observe(shares, machine.step_ns(shares))
    return times.rates
