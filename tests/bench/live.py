"""The simulator's requests on the real engine: the same workload in, the same kind of record out, so
that experiments, figures and bars are the same for both.

In one process, driven as the executor process drives it, by wall clock: what arrives while a step runs
is seen in the middle of it.  How long an answer will be is known here alone: a request may say more, and
is aborted when it has said enough, as a client that hangs up would.
Refuses to know: what is being compared, bars, printing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random

from executor.batch import Runner
from executor.contract import (
    Abort,
    Cause,
    Command,
    Emitted,
    Ended,
    Sampling,
    Submit,
    Terms,
    Workload,
)
from executor.cost import StepTimes
from executor.engine import Engine
from executor.inbox import Gone
from executor.scheduler.promises import Refusal
from executor.scheduler.protocol import Charge, Moment, Plan, Scheduler, Turn
from executor.sequence import Sequence as Seq
from executor.settings import Settings
from executor.simulation.metrics_requests import Ending
from executor.simulation.outcome import Outcome, Run, Served
from executor.simulation.work import NS, Request

_ENDINGS = {
    Cause.BACKLOG: Ending.OVER_SHARE,
    Cause.OVERLOADED: Ending.NO_ROOM,
    Cause.QUEUE_DEADLINE: Ending.EXPIRED,
}


@dataclass(slots=True)
class Life:
    """One request while it is here.  `cancelled_step`: in which it was aborted, not having said all."""

    request: Request
    times_ns: list[int] = field(default_factory=list)
    aborted: bool = False
    cancelled_step: int | None = None


class Recorder:
    """A scheduler, and what it was charged."""

    def __init__(self, inner: Scheduler[Seq], log: Callable[[Seq, int], None]) -> None:
        self._inner = inner
        self._log = log

    @property
    def running(self) -> Sequence[Seq]:
        return self._inner.running

    @property
    def waiting(self) -> Collection[Seq]:
        return self._inner.waiting

    @property
    def running_count(self) -> int:
        return self._inner.running_count

    @property
    def waiting_count(self) -> int:
        return self._inner.waiting_count

    def add(self, seq: Seq, now_ns: int) -> None:
        self._inner.add(seq, now_ns)

    def refuses(self, seq: Seq, moment: Moment) -> Refusal | None:
        return self._inner.refuses(seq, moment)

    def returns(self, seq: Seq, now_ns: int) -> Turn | None:
        return self._inner.returns(seq, now_ns)

    def turns_away(self, seq: Seq, retry_ms: int, now_ns: int) -> int:
        return self._inner.turns_away(seq, retry_ms, now_ns)

    def remove(self, seq: Seq, now_ns: int) -> None:
        self._inner.remove(seq, now_ns)

    def renew(self, limits: object) -> None:
        self._inner.renew(limits)  # type: ignore[arg-type]  # handed on as it came

    def plan(self, moment: Moment) -> Plan[Seq]:
        return self._inner.plan(moment)

    def charge(self, bill: Iterable[Charge[Seq]]) -> None:
        bill = list(bill)
        for seq, device_ns, _ in bill:
            self._log(seq, device_ns)
        self._inner.charge(bill)


class Live:
    """`play` requests once."""

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler[Seq],
        settings: Settings,
        workloads: tuple[Workload, ...] = (),
        *,
        times: StepTimes | None = None,
        seed: int = 0,
    ) -> None:
        self.seen = Run()
        self.cancel_steps: list[int] = []  # from hearing a cancel to the end of its request
        self._random = Random(seed)
        self._vocabulary = runner.vocab_size
        self._agenda: list[tuple[int, Command]] = [(0, Terms(workloads=workloads))]
        self._next = 0
        self._lives: dict[int, Life] = {}
        self._charged: list[tuple[str, int]] = []
        self._begin_ns = 0
        self._steps = 0
        self._engine = Engine(
            runner,
            self._take,
            clock_ns=time.monotonic_ns,
            settings=settings,
            policy=lambda _: Recorder(
                scheduler, lambda seq, ns: self._charged.append((seq.tenant, ns))
            ),
            times=times,
        )

    def play(self, requests: Sequence[Request], until_s: float) -> Run:
        """Until all have ended, or those that are left are dropped."""
        for number, request in enumerate(sorted(requests, key=lambda each: each.at_ns), 1):
            self._lives[number] = Life(request)
            self._agenda.append((request.at_ns, self._submit(number, request)))
            if request.cancel_ns is not None:
                self._agenda.append((request.at_ns + request.cancel_ns, Abort(request=number)))
        self._agenda.sort(key=lambda each: each[0])
        self._begin_ns = time.monotonic_ns()
        while self._next < len(self._agenda) or self._engine.busy:
            if self._now_ns() > until_s * NS:
                break
            self._turn()
        self._drop()
        self.seen.end_ns = self._now_ns()
        return self.seen

    def _turn(self) -> None:
        if not self._engine.busy:
            wake_ns = self._engine.wake_ns
            ahead = self._agenda[self._next][0] if self._next < len(self._agenda) else None
            due = [
                each for each in (ahead, wake_ns and wake_ns - self._begin_ns) if each is not None
            ]
            wait_ns = min(due, default=0) - self._now_ns()
            if wait_ns > 0:
                time.sleep(wait_ns / NS)
        begin_ns, steps = self._now_ns(), self._engine.gauges.steps
        reports = self._engine.step()
        now_ns = self._now_ns()
        self._steps += 1
        if self._engine.gauges.steps > steps:
            self.seen.step(now_ns - begin_ns, len(self._charged))
        for report in reports.values():
            for update in report.updates:
                if isinstance(update, Emitted):
                    self._said(update, now_ns)
                elif isinstance(update, Ended):
                    self._ended(update, now_ns)
        for tenant, device_ns in self._charged:
            self.seen.service.append(Served(now_ns, tenant, device_ns, 0, 0))
        self._charged.clear()

    def _said(self, update: Emitted, now_ns: int) -> None:
        life = self._lives[update.request]
        request = life.request
        room = request.output_tokens - len(life.times_ns)
        life.times_ns += [now_ns] * min(room, len(update.tokens))
        self.seen.service.append(Served(now_ns, request.tenant, 0, 0, len(update.tokens)))
        if len(life.times_ns) == request.output_tokens and not life.aborted:
            life.aborted = True
            self._agenda.insert(self._next, (now_ns, Abort(request=update.request)))

    def _ended(self, update: Ended, now_ns: int) -> None:
        life = self._lives.pop(update.request)
        request = life.request
        whole = len(life.times_ns) == request.output_tokens
        if life.cancelled_step is not None:
            self.cancel_steps.append(self._steps - life.cancelled_step)
        self.seen.service.append(Served(now_ns, request.tenant, 0, update.prefilled, 0))
        self.seen.outcomes.append(
            Outcome(
                ticket=update.request,
                request=request,
                ending=Ending.FINISHED if whole else _ENDINGS.get(update.cause, Ending.CANCELLED),
                dispatched_ns=request.at_ns + update.queued_ns if update.prefilled else None,
                times_ns=life.times_ns,
                ended_ns=now_ns,
                device_ns=update.device_ns,
                lost_ns=update.recomputed_ns,
                preemptions=update.preemptions,
            )
        )

    def _take(self) -> list[tuple[int, Command | Gone]]:
        now_ns = self._now_ns()
        first = self._next
        while self._next < len(self._agenda) and self._agenda[self._next][0] <= now_ns:
            command = self._agenda[self._next][1]
            self._next += 1
            if isinstance(command, Abort):
                life = self._lives.get(command.request)
                if life is not None and not life.aborted:
                    life.aborted = True
                    life.cancelled_step = self._steps
        return [(0, command) for _, command in self._agenda[first : self._next]]

    def _drop(self) -> None:
        """Whatever is left hangs up; what never came is forgotten."""
        self._agenda = self._agenda[: self._next]
        late = [number for number, life in self._lives.items() if not life.aborted]
        self._agenda += [(0, Abort(request=number)) for number in late]
        while self._engine.busy or self._next < len(self._agenda):
            self._turn()
        assert self._engine.blocks.free == self._engine.blocks.total, "blocks are left"

    def _submit(self, number: int, request: Request) -> Submit:
        prompt = tuple(
            self._random.randrange(100, self._vocabulary) for _ in range(request.prompt_tokens)
        )
        return Submit(
            request=number,
            prompt=prompt,
            max_new_tokens=request.max_new_tokens,
            sampling=Sampling(temperature=0.0),
            share=((request.tenant, request.weight), (request.user, request.user_weight)),
            workload=request.workload,
        )

    def _now_ns(self) -> int:
        return time.monotonic_ns() - self._begin_ns
