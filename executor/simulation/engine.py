"""One engine, step-exact: a scheduler of `executor.scheduler` on a machine that is a formula.

Theory of operation.  As `executor.engine` does: take what came → expire → plan → run → take again, so
that what was cancelled meanwhile is known before results are looked at → charge the measured time by
fitted rates → results.  The only things that happen are `Happening`s and steps.  Time is whole
nanoseconds and goes on by what a step takes, or to the next happening.

The scheduler sees `SimWork`, fitted `Rates` and free blocks.  How long an answer will be is known here
alone.  The same requests, machine and scheduler give the same outcome, byte for byte.

Refuses to know: how requests were made, what the figures mean.  Source: SCHEDULER.md §4, L0.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import replace
from enum import IntEnum
from heapq import heappop, heappush
from random import Random
from typing import Final, NamedTuple

from executor.cost import Share, StepTimes, attribute
from executor.scheduler.lobby import Bounds, Lobby
from executor.scheduler.protocol import Chunk, Limits, Moment, Scheduler, admission_tokens
from executor.simulation.machine import Machine
from executor.simulation.metrics_requests import Ending
from executor.simulation.outcome import Outcome, Probe, Run
from executor.simulation.prefixes import Prefixes
from executor.simulation.work import Request, SimWork

_MANY: Final = 1 << 62


class Happening(IntEnum):
    """All that can happen to an engine from outside, in this order at one instant."""

    CANCEL = 0
    EXPIRE = 1
    PROBE = 2
    ARRIVE = 3


class _Life:
    """What a scheduler may not see of a request, and what is written down about it."""

    __slots__ = (
        "cached",
        "device_ns",
        "dispatched_ns",
        "lost_ns",
        "recomputed",
        "request",
        "times_ns",
        "work",
    )

    def __init__(self, request: Request, work: SimWork) -> None:
        self.request = request
        self.work = work
        self.dispatched_ns: int | None = None
        self.times_ns: list[int] = []
        self.device_ns = 0
        self.lost_ns = 0
        self.recomputed = 0
        self.cached = 0


class _Event(NamedTuple):
    """In order of time, then of `what`, then as they were planned."""

    at_ns: int
    what: Happening
    number: int
    request: Request
    ticket: int
    retry_ms: int


class Engine:
    """`offer` requests, then `run`.  `jitter`: relative spread of the true step times, by `rng`.
    `learns`: rates are fitted to what is measured; else they stay what `times` says.  `waiting_max`: more
    wait never.  `probed`: at these parts of the time that a refused one was told to wait, it is asked
    whether it would be taken.  `back`: at which part of it those who return do so.  `merge_ns`: see `Run`."""

    def __init__(
        self,
        machine: Machine,
        scheduler: Scheduler[SimWork],
        limits: Limits,
        *,
        times: StepTimes | None = None,
        learns: bool = True,
        jitter: float = 0.0,
        rng: Random | None = None,
        waiting_max: int | None = None,
        probed: tuple[float, ...] = (),
        back: float = 1.0,
        merge_ns: int | None = None,
    ) -> None:
        assert not jitter or rng is not None
        self.now_ns = 0
        self.free = limits.blocks_total
        self.seen = Run(merge_ns=merge_ns)
        self._machine = machine
        self._scheduler = scheduler
        self._limits = limits
        self._times = times or StepTimes()
        self._learns = learns
        self._jitter = jitter
        self._rng = rng
        self._lobby: Lobby[SimWork] = Lobby(Bounds(count=waiting_max or _MANY))
        self._probed = probed
        self._back = back
        self._prefixes = Prefixes(limits.block_tokens) if limits.prefixes else None
        self._tickets = 0
        self._lives: dict[int, _Life] = {}
        self._events = 0
        self._agenda: list[_Event] = []

    @property
    def here(self) -> int:
        """Requests that were filed and live."""
        return len(self._lives)

    def offer(self, request: Request) -> None:
        """It will arrive; one that comes while a step is underway is seen at its end."""
        self._plan_event(request.at_ns, Happening.ARRIVE, request)

    def run(self, until_ns: int | None = None) -> Run:
        """Step until nothing is left, or no step begins before `until_ns`.  May be called again."""
        while until_ns is None or self.now_ns < until_ns:
            self._take()
            plan = self._scheduler.plan(self._moment())
            for work in plan.preempted:
                self.free += work.release()
                work.rewind(self.now_ns)
            if plan.chunks:
                for work in plan.admitted:
                    self._admit(work)
                self._step(plan.chunks)
                continue
            assert not self._lives or plan.wake_ns is not None, "work is here and nothing runs"
            next_ns = self._next_ns(plan.wake_ns)
            if next_ns is None or (until_ns is not None and next_ns >= until_ns):
                if until_ns is not None:
                    self.now_ns = max(self.now_ns, until_ns)
                break
            self.now_ns = max(self.now_ns + 1, next_ns)
        self.seen.end_ns = self.now_ns
        return self.seen

    def _next_ns(self, wake_ns: int | None) -> int | None:
        due = [self._agenda[0].at_ns] if self._agenda else []
        if wake_ns is not None:
            due.append(wake_ns)
        return min(due, default=None)

    def _moment(self) -> Moment:
        return Moment(self.now_ns, self.free, self._times.rates)

    # What happens

    def _take(self) -> None:
        agenda, now_ns = self._agenda, self.now_ns
        while agenda and agenda[0].at_ns <= now_ns:
            event = heappop(agenda)
            match event.what:
                case Happening.ARRIVE:
                    self._file(event.request)
                case Happening.PROBE:
                    self._probe(event)
                case Happening.CANCEL:
                    if (life := self._lives.get(event.ticket)) is not None:
                        self.seen.cancel_to_free_ns.append(now_ns - event.at_ns)
                        self._end(life, Ending.CANCELLED)
                case Happening.EXPIRE:
                    life = self._lives.get(event.ticket)
                    if life is not None and life.dispatched_ns is None:
                        self._end(life, Ending.EXPIRED)

    def _plan_event(
        self, at_ns: int, what: Happening, request: Request, ticket: int = 0, retry_ms: int = 0
    ) -> None:
        self._events += 1
        heappush(self._agenda, _Event(at_ns, what, self._events, request, ticket, retry_ms))

    def _file(self, request: Request) -> None:
        """As the live engine does: refused, or somebody makes room, or in."""
        room = self._limits.blocks_total * self._limits.block_tokens
        assert request.prompt_tokens + request.output_tokens <= room, "it never fits this machine"
        work = SimWork(request, self._tickets, self.now_ns, self._prefixes)
        self._tickets += 1
        work.turn = self._scheduler.returns(work, self.now_ns)
        life = _Life(request, work)
        if work.turn is not None and self.now_ns < work.turn.next_ns:
            self._turned_away(life, -((self.now_ns - work.turn.next_ns) // 1_000_000))
            return
        goes = self._lobby.displaces(work, 0)
        if work in goes:
            self._turned_away(life, self._tells(work, self._lobby.retry_ms(work)))
            return
        refused = self._scheduler.refuses(work, self._moment())
        if refused is not None:
            self._turned_away(life, self._tells(work, refused.retry_ms))
            return
        self._lobby.enter(work, 0)
        for each in goes:
            told_ms = self._tells(each, self._lobby.retry_ms(each))
            self._end(self._lives[each.ticket], Ending.OVER_SHARE, told_ms)
        self._lives[work.ticket] = life
        self._scheduler.add(work, self.now_ns)
        for after_ns, what in (
            (request.cancel_ns, Happening.CANCEL),
            (request.queue_ns, Happening.EXPIRE),
        ):
            if after_ns is not None:
                self._plan_event(request.at_ns + after_ns, what, request, work.ticket)

    def _tells(self, work: SimWork, retry_ms: int) -> int:
        return self._scheduler.turns_away(work, retry_ms, self.now_ns)

    def _turned_away(self, life: _Life, retry_ms: int) -> None:
        self._note(life, Ending.OVER_SHARE, retry_ms)
        request = life.request
        if request.returns:
            at_ns = self.now_ns + round(self._back * retry_ms * 1e6)
            again = replace(request, at_ns=at_ns, returns=request.returns - 1)
            self._plan_event(at_ns, Happening.ARRIVE, again)
        for part in self._probed:
            at_ns = self.now_ns + round(part * retry_ms * 1e6)
            self._plan_event(at_ns, Happening.PROBE, request, self.now_ns, retry_ms)

    def _probe(self, event: _Event) -> None:
        """Would it be taken now?  `ticket`: when it was turned away."""
        work = SimWork(event.request, self._tickets, self.now_ns, self._prefixes)
        taken = self._scheduler.refuses(work, self._moment()) is None
        part = (event.at_ns - event.ticket) / (event.retry_ms * 1e6)
        probe = Probe(event.at_ns, event.request, event.retry_ms, round(part, 3), taken)
        self.seen.probes.append(probe)

    def _admit(self, work: SimWork) -> None:
        life = self._lives[work.ticket]
        self._lobby.starts(work, self.now_ns)
        work.since_ns = self.now_ns
        if life.dispatched_ns is None:
            life.dispatched_ns = self.now_ns

    # A step

    def _step(self, chunks: Seq[Chunk[SimWork]]) -> None:
        limits = self._limits
        rows: list[Share] = []
        for chunk in chunks if self._prefixes is not None else ():
            if chunk.taken:
                self._reuse(chunk.seq, chunk.taken)
        for chunk in chunks:
            work, count = chunk.seq, chunk.count
            start = work.computed
            if not work.blocks or chunk.taken:
                self.free -= work.hold(limits.blocks(admission_tokens(work, limits)))
            elif (end := start + count) > len(work.blocks) * limits.block_tokens:
                self.free -= work.hold(limits.blocks(end))
            lost = work.high_water - start
            rows.append(Share(count, start, min(count, lost) if lost > 0 else 0))
        assert self.free >= 0, "more blocks were promised than there are"
        if self._prefixes is not None:
            self._prefixes.shrink(self.free)
        took_ns = self._machine.step_ns(rows)
        if self._jitter:
            assert self._rng is not None
            took_ns = max(1, round(took_ns * self._rng.lognormvariate(0.0, self._jitter)))
        self.now_ns += took_ns
        self.seen.step(took_ns, len(rows))
        gave = self._charge(chunks, rows, took_ns)
        self._take()
        self._results(chunks, gave)
        for tenant, (device_ns, prompt, output) in gave.items():
            self.seen.serve(self.now_ns, tenant, device_ns, prompt, output)

    def _reuse(self, work: SimWork, count: int) -> None:
        """It takes what was kept of its prompt."""
        had = work.high_water
        self.free -= work.take(count, self._limits.block_tokens)
        self._lives[work.ticket].cached += max(0, work.computed - had)

    def _charge(
        self, chunks: Seq[Chunk[SimWork]], rows: Seq[Share], took_ns: int
    ) -> dict[str, list[int]]:
        """Device time and prompt tokens that each tenant got of it (the third: output tokens)."""
        parts = attribute(took_ns, rows, self._times.rates)
        if self._learns:
            self._times.observe(rows, took_ns)
        gave: dict[str, list[int]] = {}
        self._scheduler.charge(
            (chunk.seq, *part) for chunk, part in zip(chunks, parts, strict=True)
        )
        for chunk, row, (own_ns, lost_ns) in zip(chunks, rows, parts, strict=True):
            work = chunk.seq
            life = self._lives[work.ticket]
            mine = gave.get(work.tenant)
            if mine is None:
                mine = gave[work.tenant] = [0, 0, 0]
            mine[0] += own_ns
            if work.high_water < work.prompt_tokens:
                ends = min(work.computed + row.new, work.prompt_tokens)
                mine[1] += max(0, ends - work.high_water)
            work.advance(row.new)
            work.keep(self._limits.block_tokens)
            life.device_ns += own_ns
            if row.lost:
                life.lost_ns += lost_ns
                life.recomputed += row.lost
        return gave

    def _results(self, chunks: Seq[Chunk[SimWork]], gave: dict[str, list[int]]) -> None:
        now_ns, brief = self.now_ns, self.seen.merge_ns is not None
        for chunk in chunks:
            work = chunk.seq
            if work.computed != work.known:
                continue
            life = self._lives.get(work.ticket)
            if life is None:
                continue  # cancelled while it was computed
            work.known += 1
            if brief and len(life.times_ns) == 2:
                life.times_ns[1] = now_ns
            else:
                life.times_ns.append(now_ns)
            gave[work.tenant][2] += 1
            if work.known - work.prompt_tokens == life.request.output_tokens:
                self._end(life, Ending.FINISHED)

    def _end(self, life: _Life, ending: Ending, retry_ms: int | None = None) -> None:
        """The one way out for who was let in.  `retry_ms`: when who is sent away is to come back."""
        work = life.work
        del self._lives[work.ticket]
        self._lobby.leave(work)
        self._scheduler.remove(work, self.now_ns)
        self.free += work.release()
        if retry_ms is None:
            self._note(life, ending)
        else:
            self._turned_away(life, retry_ms)

    def _note(self, life: _Life, ending: Ending, retry_ms: int | None = None) -> None:
        self.seen.outcomes.append(
            Outcome(
                ticket=life.work.ticket,
                request=life.request,
                ending=ending,
                dispatched_ns=life.dispatched_ns,
                times_ns=life.times_ns,
                ended_ns=self.now_ns,
                device_ns=life.device_ns,
                lost_ns=life.lost_ns,
                preemptions=life.work.preemptions,
                recomputed_tokens=life.recomputed,
                cached_tokens=life.cached,
                generated=life.work.generated,
                retry_ms=retry_ms,
            )
        )


def simulate(engine: Engine, requests: Iterable[Request], until_ns: int | None = None) -> Run:
    """Offer them all in order of time and run."""
    for request in sorted(requests, key=lambda each: each.at_ns):
        engine.offer(request)
    return engine.run(until_ns)
