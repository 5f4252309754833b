"""The engine: commands in, one step of the model, reports out.  All the executor's effects on
requests happen in `step`, and the only I/O it does is the model.

Theory of operation.  Each step: take commands → expire → plan → run the model → take commands
again, so that what was aborted meanwhile is known *before* results are looked at → sample → charge
the measured time → end the aborted → hand out results → wipe freed blocks → report.  Results are
matched by a generation number, so they never land on a sequence that ended or lost its blocks.

A step that raises ends the requests in it as CRASHED and gives their blocks back; a scheduler that raises
(`wall`) ends all that it knew, and begins anew; the engine lives on.  After `FAILURES_MAX` in a row `failed` is true: the process should be replaced.

Refuses to know: sockets, threads, text, tenants by name.  Source: ENGINE.md §1 (vLLM 3, 9), §5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Final

import structlog

from executor.batch import Batch, Runner
from executor.block_manager import BlockManager
from executor.books import Books
from executor.checks import check
from executor.choice import Choice
from executor.contract import (
    Abort,
    Cause,
    Gauges,
    Lane,
    ListKept,
    Look,
    Measure,
    Purge,
    Quotas,
    Report,
    Revoke,
    Submit,
    Terms,
    Waiting,
    Word,
)
from executor.cost import StepTimes
from executor.deadlines import Deadlines
from executor.failure import where
from executor.foyer import Foyer
from executor.grammar.protocol import Grammars
from executor.grammar.seats import Seats, gone
from executor.guesses import Guesser, Planned, choose
from executor.inbox import Gone, Inbox
from executor.keeper import Keeper
from executor.last_words import LastWords
from executor.life import Life
from executor.outbox import Outbox
from executor.positions import Positions
from executor.reception import Reception
from executor.scheduler.accounts import terms_of
from executor.scheduler.protocol import Chunk, Limits, Moment, Scheduler, admission_tokens
from executor.sequence import Key, Phase, Sequence
from executor.settings import Settings, engine_limits, scheduler_of
from executor.starts import Starts
from executor.teller import Teller
from executor.wall import Idle, Walled
from policies.scope.context import Context

FAILURES_MAX: Final = 3
_log = structlog.get_logger()


class Engine:
    """Owned by one thread.  `owner` numbers connections; a request is known by (owner, number)."""

    def __init__(
        self,
        runner: Runner,
        inbox: Inbox,
        *,
        clock_ns: Callable[[], int],
        settings: Settings | None = None,
        policy: Callable[[Limits], Scheduler[Sequence]] | None = None,
        times: StepTimes | None = None,
        grammars: Grammars | None = None,
        computes: Context | None = None,
        life: Life | None = None,
    ) -> None:
        self._runner = runner
        self._inbox = inbox
        self._clock_ns = clock_ns
        self._settings = settings or Settings()
        self._limits = engine_limits(runner, self._settings)
        pool = runner.kv_blocks - self._limits.blocks_total
        size = runner.block_tokens
        self.blocks = BlockManager(runner.kv_blocks, size, runner.zero_blocks, pool)
        self.keeper = Keeper(self.blocks, computes, runner.are_zero)
        policy = policy or partial(scheduler_of, self._settings.policy)
        self._scheduler: Walled[Sequence] = Walled(policy, self._limits)
        self._seqs: dict[Key, Sequence] = {}
        self._out = Outbox()
        self._last_words = LastWords()
        self._seats = Seats(grammars)
        self._foyer = Foyer(self._seats, runner.block_tokens, self._settings.bounds)
        on = self._settings.speculation
        self._guesser = Guesser(runner.block_tokens, runner.context_tokens, on=on)
        self._books = Books(times or StepTimes(), self._guesser, self._scheduler.charge)
        self._books.totals.life = life
        self._teller = Teller(
            self._out,
            self._seats,
            self._books.totals,
            context_tokens=runner.context_tokens,
            kv_tokens=self.blocks.tokens,
        )
        self._stalled = False
        self.wake_ns: int | None = None  # a step may do something then, with no new command
        self._failures = 0
        self._positions = Positions()
        self._starts = Starts()
        self._deadlines = Deadlines(self._seqs)
        self._reception = Reception(
            self._seqs,
            runner.vocab_size,
            runner.context_tokens,
            self.blocks,
            self.keeper,
            self._foyer,
            self._scheduler,
            self._positions,
            self._deadlines,
            self._out,
            self._moment,
            self._end,
        )

    @property
    def busy(self) -> bool:
        """Whether a step would do anything without a new command, or word of a grammar."""
        return bool(self._seqs) and not self._stalled

    def step(self) -> dict[int, Report]:
        """One iteration; what each owner is to hear."""
        now_ns = self._books.totals.now_ns = self._clock_ns()
        self.keeper.begin(now_ns)
        for key in self._take(now_ns):
            self._end(key, Cause.ABORTED, now_ns)
        for key in self._deadlines.passed(now_ns):
            self._end(key, Cause.QUEUE_DEADLINE, now_ns)
        self._obey(now_ns)
        self._hear_grammars(now_ns)
        for seq in self._foyer.ready():
            self._reception.enqueue(seq, now_ns)
        plan = self._scheduler.plan(self._moment(now_ns))
        woken = self._seats.waited_for or plan.wake_ns is not None
        if self._seqs and not (plan.chunks or woken):
            self._scheduler.condemn(Idle())
        self._stalled = not plan.chunks
        self.wake_ns = plan.wake_ns
        self._mend()
        self._preempt(plan.preempted, now_ns)
        if plan.chunks:
            for seq in plan.admitted:
                if seq.position is not None:
                    self._starts.began(seq.tenant, seq.since_ns, now_ns)
                seq.enter(Phase.PREFILL, now_ns)
                self._foyer.began(seq, now_ns)
                self._positions.leave(seq)
            self._run(plan.chunks)
            self._mend()
        for seq, place in self._positions.news(now_ns):
            eta_ms = self._eta_ms(seq, place, now_ns)
            self._out.say(seq.key[0], Waiting(request=seq.key[1], position=place, eta_ms=eta_ms))
        self.blocks.scrub()
        if self._settings.check_invariants:
            check(
                self._seqs,
                self._foyer.outside,
                self.blocks,
                self._scheduler,
                self._foyer,
                self._positions,
            )
            self.keeper.check()
        return self._out.reports(self.gauges, self._lanes)

    @property
    def gauges(self) -> Gauges:
        waiting = self._scheduler.waiting_count + self._foyer.outside_count
        running = self._scheduler.running_count
        rates = self._books.times.rates
        return self.keeper.gauges(self._books.totals.gauges(running, waiting, self.blocks, rates))

    @property
    def _waiting(self) -> Iterator[Sequence]:
        return chain(self._scheduler.waiting, self._foyer.outside)

    # Commands

    def _take(self, now_ns: int) -> list[Key]:
        """File new requests; return which of the known ones are to be aborted."""
        aborted: list[Key] = []
        for owner, command in self._inbox():
            match command:
                case Submit():
                    self._reception.submit(owner, command, now_ns)
                case Abort(request=request):
                    if (owner, request) in self._seqs:
                        aborted.append((owner, request))
                case Terms(workloads=workloads):
                    self._limits = replace(self._limits, workloads=workloads)
                    self._reception.workloads = workloads
                    self._scheduler.renew(self._limits)
                case Look(tenant=tenant):
                    self._out.look(owner, tenant)
                case Measure():
                    self._out.measure(owner)
                case Revoke() | Purge() | ListKept() | Quotas():
                    self.keeper.order(owner, command)
                case Gone():
                    aborted += [key for key in self._seqs if key[0] == owner]
        return aborted

    def _moment(self, now_ns: int) -> Moment:
        return Moment(now_ns, self.blocks.free, self._books.times.rates)

    def _obey(self, now_ns: int) -> None:
        """What was ordered of kept prefixes; and what is to be pinned, as far as that is known by then."""
        for owner, answer in self.keeper.obey(
            self._seqs.values(), lambda key: self._end(key, Cause.REVOKED, now_ns)
        ):
            self._out.answer(owner, answer)
        for key, cause in self.keeper.foreseen():
            self._end(key, cause, now_ns)

    def _hear_grammars(self, now_ns: int) -> None:
        """Compiled ones join the queue, refused ones end, and who waited for a mask goes on."""
        for told in self._seats.news():
            if isinstance(told, Sequence):
                self._reception.enqueue(told, now_ns)
            else:
                key, cause, detail = gone(told)
                self._end(key, cause, now_ns, detail)
        for seq, choice in self._seats.late():
            self._result(seq, (choice,), now_ns)

    def _eta_ms(self, seq: Sequence, place: int, now_ns: int) -> int | None:
        """None for backfill: it starts when others leave room, which no pace of its own foretells."""
        if terms_of(self._limits.workloads, seq.workload).weight is None:
            return None
        return self._starts.eta_ms(seq.tenant, place, now_ns)

    # Before the model

    def _preempt(self, victims: Seq[Sequence], now_ns: int) -> None:
        for seq in victims:
            self.keeper.release(seq)
            seq.rewind(now_ns)
            self._positions.join(seq)
            self._books.totals.preemptions += 1
        if victims:
            self.blocks.scrub()

    # The model

    def _run(self, chunks: Seq[Chunk[Sequence]]) -> None:
        """Run the planned rows and deal with what came out.  What was planned is done or CRASHED."""
        begin_ns = self._clock_ns()
        aborted: list[Key] = []
        found: dict[Key, list[Choice]] = {}
        failure: Exception | None = None
        planned = self._planned(chunks)
        rows = [row.row() for row in planned if row.runs]
        try:
            logits = self._runner.run(Batch(rows)) if rows else None
            aborted = self._take(self._clock_ns())
            if logits is not None:
                sift, sample = self._seats.sift, self._runner.sample
                found = choose(planned, set(aborted), logits, sift, sample)
        except Exception as caught:  # noqa: BLE001 — whatever the model raises is this step's end
            failure = caught
        now_ns = self._books.totals.now_ns = self._clock_ns()
        self._books.totals.steps += 1
        self._books.totals.step_ns += now_ns - begin_ns
        if failure is not None:
            self._books.totals.failed_steps_ns += now_ns - begin_ns
            self._failed(failure, [row.seq for row in planned], aborted, now_ns)
            self._obey(now_ns)
            return
        self._failures = 0
        self._books.enter(planned, found, now_ns - begin_ns, now_ns)
        for key in aborted:
            self._end(key, Cause.ABORTED, now_ns)
        self._obey(now_ns)
        for row in planned:
            if row.seq.generation == row.generation:
                self.keeper.computed(row.seq)
                self._result(row.seq, found.get(row.seq.key, ()), now_ns)
        self._books.totals.stepped()

    def _planned(self, chunks: Seq[Chunk[Sequence]]) -> list[Planned]:
        """Give out the blocks, then add guesses where there is room for them."""
        for chunk in chunks:
            seq = chunk.seq
            if seq.blocks:
                self.blocks.allocate(seq, seq.computed + chunk.count)
                continue
            self.keeper.take(chunk)
            self.blocks.allocate(seq, admission_tokens(seq, self._limits))
        return self._guesser.plan(chunks, self._books.times.rates)

    def _result(self, seq: Sequence, choices: Seq[Choice], now_ns: int) -> None:
        over = self._teller.tell(seq, choices, now_ns)
        if over is not None:
            cause = self.keeper.last_word(seq, over[0])
            self._end(seq.key, cause, now_ns, over[1])

    def _failed(
        self, failure: Exception, involved: Seq[Sequence], aborted: Seq[Key], now_ns: int
    ) -> None:
        """Its rows are lost, and what the model half wrote with them.  The message may hold parts
        of a prompt, so the log names only the kind of failure and where."""
        self._failures += 1
        _log.error(
            "step_failed", kind=type(failure).__name__, at=where(failure), rows=len(involved)
        )
        for key in aborted:
            self._end(key, Cause.ABORTED, now_ns)
        for seq in involved:
            if seq.key in self._seqs:
                self._end(seq.key, Cause.CRASHED, now_ns, "the model failed in this step")

    def _mend(self) -> None:
        """What a scheduler knew that raised is lost, so those whom it knew end.  Who stands outside does not."""
        fault = self._scheduler.fault
        if fault is None:
            return
        now_ns = self._clock_ns()
        outside = {seq.key for seq in self._foyer.outside}
        known = [key for key in self._seqs if key not in outside]
        _log.error(
            "scheduler_failed", kind=type(fault).__name__, at=where(fault), requests=len(known)
        )
        self._scheduler.begin(self._limits)
        for key in known:
            self._end(key, Cause.CRASHED, now_ns, "the scheduler failed", queued=False)
        self._stalled = False  # those who were held up by one of them may go on

    # After the model

    def _end(
        self,
        key: Key,
        cause: Cause,
        now_ns: int,
        detail: str = "",
        retry_ms: int | None = None,
        *,
        queued: bool = True,
        displaced: bool = False,
    ) -> None:
        """The one way out for a request that was filed.  Nothing if it has ended already.  `queued`: the
        scheduler knows it, unless it waits outside."""
        seq = self._seqs.pop(key, None)
        if seq is None:
            return
        seq.generation += 1
        seq.enter(seq.phase, now_ns)
        outside = self._foyer.forget(seq)
        if queued and not outside:
            self._scheduler.remove(seq, now_ns)
        self.keeper.release(seq, cause)
        self._guesser.forget(key)
        self._positions.leave(seq)
        ended = seq.ended(cause, detail, retry_ms, displaced=displaced)
        self._last_words.ended(seq, ended)
        self._out.say(key[0], ended)

    def last_words(self) -> list[Word]:
        """For the next gateway, where this one is lost."""
        device = self.gauges.device
        return self._last_words.said(self._seqs.values(), "" if device is None else device.start)

    def _lanes(self) -> list[Lane]:
        scheduler = self._scheduler
        return self._books.watch.lanes(
            lambda: scheduler.running, lambda: self._waiting, self._clock_ns
        )

    @property
    def failed(self) -> bool:
        """Step after step failed, or one scheduler after the other: whoever drives the engine delivers the
        reports, then gives up."""
        return max(self._failures, self._scheduler.failures) >= FAILURES_MAX
