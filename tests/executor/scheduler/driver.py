"""A machine of counts for schedulers: true costs that they cannot see, memory as a number, requests
without tokens.  After every step it checks what no policy may get wrong; what a policy decided it keeps
for whoever asks.

Refuses to know: which policy it drives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from executor.contract import Workload
from executor.cost import Rates, Share, StepTimes, attribute
from executor.scheduler.fair import Fair
from executor.scheduler.protocol import (
    Found,
    Limits,
    Moment,
    Plan,
    Scheduler,
    Turn,
    admission_tokens,
)
from executor.scheduler.step import step_budget

TRUE = Rates(step_ns=8e6, token_ns=2e5, token_context_ns=20.0, sequence_ns=1e6)
CLASSES = (
    Workload(name="critical", reserved=0.2),
    Workload(name="heavy", weight=0.5),
    Workload(name="batch", weight=None, floor=0.05),
)
LIMITS = Limits(seqs=16, block_tokens=16, blocks_total=256, watermark_blocks=2, workloads=CLASSES)
_NAMES = 1 << 24


@dataclass(slots=True, eq=False)
class Job:
    """`length`: what it will say, which no scheduler may know."""

    ticket: int
    tenant: str = "a"
    prompt_tokens: int = 32
    length: int = 8
    max_new_tokens: int = 64
    workload: str = ""
    tenant_weight: float = 1.0
    user: str = "u"
    user_weight: float = 1.0
    retry_key: bytes | None = None
    turn: Turn | None = None
    since_ns: int = 0
    known: int = 0
    computed: int = 0
    high_water: int = 0
    preemptions: int = 0
    kept_tokens: int = 0
    pool: bool = False
    pooled: int = 0
    blocks: range = range(0)
    began_step: int | None = None
    came_step: int = 0
    ends: int = 0

    def __post_init__(self) -> None:
        assert 1 <= self.length <= self.max_new_tokens
        self.known = self.known or self.prompt_tokens

    @property
    def place(self) -> int:
        return self.ticket if self.turn is None else self.turn.ticket

    @property
    def todo(self) -> int:
        return self.known - self.computed

    @property
    def generated(self) -> int:
        return self.known - self.prompt_tokens

    def found(self, block_tokens: int) -> Found:
        """Kept in a pool, or in its own blocks, which rest until it is let in."""
        kept = min(self.kept_tokens, self.known - 1) // block_tokens
        return Found(kept, 0 if self.pool else kept)

    def let_go(self) -> int:
        """Hold nothing; how much memory that is."""
        held = len(self.blocks) - self.pooled
        self.blocks, self.pooled = range(0), 0
        return held

    def hold(self, count: int) -> int:
        """Own `count` blocks from now on; how many more that is."""
        more = count - len(self.blocks)
        self.blocks = range(self.ticket * _NAMES, self.ticket * _NAMES + count)
        return more


@dataclass
class House:
    """`noise` of (step) times the true cost is what is measured.  `fitted`: rates are learnt."""

    limits: Limits = LIMITS
    scheduler: Scheduler[Job] | None = None
    true: Rates = TRUE
    fitted: bool = False
    noise: Callable[[int], float] = lambda _: 1.0
    now_ns: int = 0
    steps: int = 0
    measured_ns: int = 0
    lost_ns: int = 0
    alive: dict[int, Job] = field(default_factory=dict)
    served_ns: Counter[str] = field(default_factory=Counter)
    by_job_ns: Counter[int] = field(default_factory=Counter)
    plans: list[tuple[tuple[int, ...], ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.made: list[Job] = []
        self.free = self.limits.blocks_total
        self.queue: Scheduler[Job] = self.scheduler or Fair(self.limits)
        self.times = StepTimes() if self.fitted else StepTimes(self.true)
        self.full = False  # the last step had no time left
        self.watch: Callable[[str, Job | None], None] = lambda op, job: (
            None
        )  # before "x", after "/x"

    @property
    def fair(self) -> Fair[Job]:
        assert isinstance(self.queue, Fair)
        return self.queue

    def add(self, **fields: object) -> Job:
        job = Job(len(self.made), since_ns=self.now_ns, came_step=self.steps, **fields)  # type: ignore[arg-type]
        assert job.prompt_tokens + job.length <= self.room_tokens
        self.made.append(job)
        self.alive[job.ticket] = job
        if job.turn is None:
            job.turn = self.queue.returns(job, self.now_ns)
        self.watch("add", job)
        self.queue.add(job, self.now_ns)
        self.watch("/add", job)
        return job

    def keep(self, count: int, tenant: str, **fields: object) -> None:
        """So many of a tenant wait."""
        waiting = sum(job.tenant == tenant for job in self.queue.waiting)
        for _ in range(count - waiting):
            self.add(tenant=tenant, **fields)

    @property
    def room_tokens(self) -> int:
        return self.limits.blocks_total * self.limits.block_tokens

    def end(self, job: Job) -> None:
        """It is over, finished or aborted."""
        del self.alive[job.ticket]
        job.ends += 1
        self.watch("remove", job)
        self.queue.remove(job, self.now_ns)
        self.watch("/remove", job)
        self.free += job.let_go()

    def step(self) -> Plan[Job]:
        rates = self.times.rates
        before = [job for job in self.queue.running if job.todo == 1]
        self.watch("plan", None)
        plan = self.queue.plan(Moment(self.now_ns, self.free, rates))
        self._judge(plan, before, rates)
        self.plans.append(
            (
                tuple(chunk.seq.ticket for chunk in plan.chunks),
                tuple(chunk.count for chunk in plan.chunks),
                tuple(job.ticket for job in plan.preempted),
            )
        )
        self.plan = plan
        self.watch("/plan", None)
        for job in plan.preempted:
            self.free += job.let_go()
            job.computed, job.since_ns = 0, self.now_ns
            job.preemptions += 1
        for job in plan.admitted:
            assert not job.blocks
            self.free -= job.hold(self.limits.blocks(admission_tokens(job, self.limits)))
            if job.began_step is None:
                job.began_step = self.steps
        for chunk in plan.chunks:
            if chunk.taken:
                assert not chunk.seq.computed
                chunk.seq.computed = chunk.taken * self.limits.block_tokens
                chunk.seq.high_water = max(chunk.seq.high_water, chunk.seq.computed)
                self._pool(chunk.seq)
        if plan.chunks:
            self._run(plan)
        self.steps += 1
        self._check()
        return plan

    def run(self, steps_max: int = 20_000) -> None:
        """Until nothing is left."""
        for _ in range(steps_max):
            if not self.alive:
                return
            self.step()
        raise AssertionError(f"{len(self.alive)} requests never end")

    def _run(self, plan: Plan[Job]) -> None:
        rows = []
        for chunk in plan.chunks:
            job, count = chunk.seq, chunk.count
            assert job.blocks, "fed without memory"
            need = self.limits.blocks(job.computed + count)
            if need > len(job.blocks):
                self.free -= job.hold(need)
            again = max(0, min(count, job.high_water - job.computed))
            rows.append(Share(count, job.computed, again))
        assert self.free >= 0, "more memory was given out than there is"
        true_ns = self.true.step_ns + sum(self.true.row_ns(row.new, row.start) for row in rows)
        took_ns = max(1, round(true_ns * self.noise(self.steps)))
        parts = attribute(took_ns, rows, self.times.rates)
        if self.fitted:
            self.times.observe(rows, took_ns)
        self.now_ns += took_ns
        self.measured_ns += took_ns
        self.queue.charge((c.seq, *part) for c, part in zip(plan.chunks, parts, strict=True))
        for chunk, (own_ns, lost_ns) in zip(plan.chunks, parts, strict=True):
            job = chunk.seq
            job.computed += chunk.count
            job.high_water = max(job.high_water, job.computed)
            self._pool(job)
            self.served_ns[job.tenant] += own_ns
            self.by_job_ns[job.ticket] += own_ns
            self.lost_ns += lost_ns
        self.watch("/charge", None)
        for chunk in plan.chunks:
            job = chunk.seq
            if job.todo:
                continue
            job.known += 1
            if job.generated == job.length or job.known > self.room_tokens:
                self.end(job)

    def _pool(self, job: Job) -> None:
        """What is computed of its prompt belongs to the pool, if there is one."""
        if job.pool:
            job.kept_tokens = max(job.kept_tokens, min(job.computed, job.prompt_tokens))
            pooled = min(job.computed, job.kept_tokens) // self.limits.block_tokens
            self.free += pooled - job.pooled
            job.pooled = pooled

    def _judge(self, plan: Plan[Job], decodes: list[Job], rates: Rates) -> None:
        """Invariants 10 and 11, and what a plan must be at all."""
        fed = [chunk.seq.ticket for chunk in plan.chunks]
        assert len(set(fed)) == len(fed), "fed twice in a step"
        out = {job.ticket for job in plan.preempted}
        assert not out & set(fed), "put out and fed in one step"
        assert plan.chunks or not self.alive, "nothing runs though somebody is here"
        if not self.alive:
            return
        got = {chunk.seq.ticket: chunk.count for chunk in plan.chunks}
        for job in decodes:
            assert job.ticket in out or got[job.ticket] == 1, "a decode was skipped"
        decoding = {job.ticket for job in decodes}
        staying = [job for job in decodes if job.ticket not in out]
        budget = step_budget(staying, rates, self.limits)
        for chunk in plan.chunks:
            assert 1 <= chunk.count <= chunk.seq.todo
        for chunk in (c for c in plan.chunks if c.seq.ticket not in decoding):
            start = chunk.seq.computed + chunk.taken * self.limits.block_tokens
            budget._tokens_left -= chunk.count
            budget._left_ns -= rates.row_ns(chunk.count, start)
            budget._floor = max(0, budget._floor - chunk.count)
        assert budget._tokens_left >= 0, "more of prompts than a step may have"
        # a prompt far on costs more a token: when that one has no time left, a step ends
        self.full = budget.take(max(job.computed for job in self.alive.values()), 1) == 0

    def _check(self) -> None:
        running, waiting = list(self.queue.running), list(self.queue.waiting)
        here = sorted(job.ticket for job in (*running, *waiting))
        assert here == sorted(self.alive), "somebody was lost, or is there twice"
        held = sum(len(job.blocks) - job.pooled for job in running)
        assert self.free == self.limits.blocks_total - held, "blocks were lost"
        assert not any(job.blocks for job in waiting)
        assert len(running) <= self.limits.seqs


def limits(**fields: object) -> Limits:
    return replace(LIMITS, **fields)  # type: ignore[arg-type]
