"""An executor without a model, in the gateway's own process: it says the prompt back.  For tests of
the gateway and for demonstrations; it keeps the contract as faithfully as the real one, gauges and
last words included.

What it says: the prompt's tokens without the special ones, then the first of `stop_token_ids`.
Where there is none (`ignore_eos`), or before `min_tokens`, it starts over, up to `max_new_tokens`.
With a script (`says`) it says that instead, and is trusted to keep a grammar, which it else refuses.  It keeps
no prefix, revokes and purges as one that has none, and tells of hits what `found` says.
Its tokenizer is bytes and two special tokens, in a document that `tokenizers` loads (`echo_card`).

Refuses to know: torch, HTTP.  Nothing here sleeps: a test's `gate` says when a token may come.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from time import monotonic_ns
from typing import Final

import msgspec

from executor.contract import (
    GAPS_NS,
    STEP_TOKENS,
    Cause,
    DeviceTime,
    Emitted,
    Ended,
    ExecutorLost,
    Gauges,
    Listed,
    Logprob,
    ModelCard,
    Overview,
    Prefilling,
    Purged,
    Quota,
    Revoked,
    Submit,
    TokenLogprobs,
    Waiting,
    Workload,
)
from executor.echo_card import IM_START, VOCAB_SIZE, echo_card
from executor.echo_job import Job, lanes
from executor.echo_meter import Meter
from executor.overview import overview
from executor.starts import Starts
from executor.tally import Tally
from executor.turn import MailboxTurn

_FILLER: Final = ord(".")

Gate = Callable[[Submit, int], Awaitable[None]]
"""Awaited before the k-th token (from 0) of a job; its `request` is the minted number."""
Found = Callable[[Submit], tuple[int, int]]
"""What a cache would have had of a job's prompt: `Ended.cached` and `Ended.pinned`."""
Says = Callable[[Submit], Sequence[int]]
"""The tokens of a job's answer, without the one that ends it; none: the prompt's, as without a script."""
Refuses = Callable[[Submit], Ended | None]
"""Asked before a job gets in line: None, or the last word on it (its `request` is put right)."""


class EchoExecutor:
    """Implements `contract.Executor`.  `seqs_max` run at once, the others wait in line; blocks are
    counted as the real one would.  It is first come, first served: classes of work are kept and shown,
    not heeded.  With `crash_at`, each job dies before that token (from 0); `refuses` is a scheduler that
    turns away.  `displace` is what it may do later, `fail` is the death of the executor, `recover` its return."""

    def __init__(
        self,
        *,
        context_tokens: int = 4096,
        kv_blocks: int = 1024,
        seqs_max: int = 64,
        gate: Gate | None = None,
        crash_at: int | None = None,
        refuses: Refuses | None = None,
        found: Found = lambda _: (0, 0),
        says: Says | None = None,
        clock_ns: Callable[[], int] = monotonic_ns,
    ) -> None:
        self.terms: tuple[Workload, ...] = ()
        self.quotas: tuple[Quota, ...] = ()
        self._refuses = refuses
        self._found = found
        self._says = says
        self._full_card = echo_card(context_tokens=context_tokens, kv_blocks=kv_blocks)
        self._card: ModelCard | None = self._full_card
        self._seqs_max = seqs_max
        self._gate = gate
        self._crash_at = crash_at
        self._clock_ns = clock_ns
        self._numbers = count(1)
        self._waiting: list[Job] = []
        self._running: list[Job] = []
        self._starts = Starts()
        self._totals = Gauges()
        self._gaps, self._step_tokens = Tally(GAPS_NS), Tally(STEP_TOKENS)
        self._meter = Meter(clock_ns)
        self._past: list[DeviceTime] = []

    @property
    def card(self) -> ModelCard | None:
        return self._card

    @property
    def gauges(self) -> Gauges:
        total = self._full_card.kv_blocks
        device = None if self._card is None else self._meter.device()
        return msgspec.structs.replace(
            self._totals,
            gaps=self._gaps.spread(),
            step_tokens=self._step_tokens.spread(),
            step_ns=self._meter.busy_ns,
            busy_ns=self._meter.busy_ns,
            device=device,
            running=len(self._running),
            waiting=len(self._waiting),
            blocks_total=total,
            blocks_free=total - sum(job.blocks for job in self._running),
        )

    def set_terms(self, workloads: tuple[Workload, ...]) -> None:
        self.terms = workloads

    def set_quotas(self, quotas: tuple[Quota, ...]) -> None:
        self.quotas = quotas

    async def measure(self) -> Gauges:
        self._present()
        self._meter.charge(self._running)
        return self.gauges

    def take_past(self) -> tuple[DeviceTime, ...]:
        past = tuple(self._past)
        self._past.clear()
        return past

    async def revoke(self, tags: tuple[bytes, ...], snapshot: int) -> Revoked:
        """Nothing is kept here, so it is those who wait or speak."""
        self._present()
        gone = [
            job
            for job in (*self._waiting, *self._running)
            if job.job.caching is not None and job.job.caching.ended_by(frozenset(tags), snapshot)
        ]
        for job in gone:
            self._end(job, Cause.REVOKED)
        return Revoked(number=0, entries=0, ended=len(gone), zeroed=True)

    async def purge(
        self, owner: str | None = None, tags: tuple[bytes, ...] = (), *, spare: bool = False
    ) -> Purged:
        self._present()
        return Purged(number=0, entries=0, ended=0, zeroed=True)

    async def list_kept(self, owner: str | None = None, *, by_label: bool = False) -> Listed:
        self._present()
        return Listed(number=0, rows=())

    async def look(self, tenant: str | None = None) -> Overview:
        self._present()
        return overview(lanes(self._running, self._waiting, self._clock_ns()), tenant)

    def _present(self) -> ModelCard:
        if self._card is None:
            raise ExecutorLost("no executor is ready; try again in a few seconds")
        return self._card

    @property
    def open_turns(self) -> int:
        return len(self._running) + len(self._waiting)

    def fail(self, detail: str = "the executor died under this request") -> None:
        """Every open turn ends CRASHED and nobody gets in, until `recover`."""
        if self._card is not None:
            self._meter.charge(self._running)
            self._past.append(self._meter.device())
        self._card = None
        for job in [*self._waiting, *self._running]:
            job.turn.lose(Cause.CRASHED, detail)
            self._drop(job)

    def displace(self) -> None:
        """The newest in line makes room for others."""
        self._end(self._waiting[-1], Cause.BACKLOG, displaced=True)

    def recover(self) -> None:
        self._meter = Meter(self._clock_ns)
        self._card = self._full_card

    @asynccontextmanager
    async def turn(self, job: Submit) -> AsyncIterator[MailboxTurn]:
        card = self._present()
        room = min(card.context_tokens, card.kv_blocks * card.block_tokens)
        longest = max(1, min(job.max_new_tokens, room - len(job.prompt)))
        numbered = msgspec.structs.replace(job, request=next(self._numbers), max_new_tokens=longest)
        turn = MailboxTurn(numbered, clock_ns=self._clock_ns, start=self._meter.start)
        mine = Job(numbered, turn, self._clock_ns())
        if not job.prompt or len(job.prompt) + 1 > room:
            detail = f"a prompt of {len(job.prompt)} tokens and one more do not fit in {room}"
            turn.push(Ended(request=turn.request, cause=Cause.REFUSED, detail=detail))
        elif job.grammar is not None and self._says is None:
            detail = "the echo says the prompt back and cannot be constrained"
            turn.push(Ended(request=turn.request, cause=Cause.GRAMMAR, detail=detail))
        elif self._refuses is not None and (word := self._refuses(numbered)) is not None:
            turn.push(msgspec.structs.replace(word, request=turn.request))
        else:
            self._waiting.append(mine)
            self._admit()
        try:
            yield turn
        finally:
            if turn.ended is None:
                self._end(mine, Cause.ABORTED)
            self._drop(mine)

    # In line

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._seqs_max:
            if self._waiting[0].blocks > self.gauges.blocks_free:
                break
            self._meter.charge(self._running)
            job = self._waiting.pop(0)
            self._running.append(job)
            job.started_ns = self._clock_ns()
            if job.place is not None:
                self._starts.began(job.tenant, job.submitted_ns, job.started_ns)
            job.cancel_timer()
            job.task = asyncio.create_task(self._play(job), name=f"echo-{job.turn.request}")
        ahead: dict[str, int] = {}
        for job in self._waiting:
            place = ahead.get(job.tenant, 0)
            ahead[job.tenant] = place + 1
            if job.place != place:
                job.place = place
                eta_ms = self._starts.eta_ms(job.tenant, place, self._clock_ns())
                job.turn.push(Waiting(request=job.turn.request, position=place, eta_ms=eta_ms))
            if job.timer is None and job.job.queue_ms_max is not None:
                job.timer = asyncio.get_running_loop().call_later(
                    job.job.queue_ms_max / 1000, self._expire, job
                )

    def _expire(self, job: Job) -> None:
        if job in self._waiting:
            self._end(job, Cause.QUEUE_DEADLINE)

    def _drop(self, job: Job) -> None:
        """Out of every list, its task too.  Again is fine."""
        job.cancel_timer()
        if job.task is not None and job.task is not asyncio.current_task():
            job.task.cancel()
        self._leave(job)
        if job in self._waiting:
            self._waiting.remove(job)
        if self._card is not None:
            self._admit()

    def _leave(self, job: Job) -> None:
        """It speaks no more, and is charged for nothing from here on."""
        if job in self._running:
            self._meter.charge(self._running)
            self._running.remove(job)

    def _end(self, job: Job, cause: Cause, detail: str = "", *, displaced: bool = False) -> None:
        self._leave(job)
        now_ns = self._clock_ns()
        marks = [job.submitted_ns, job.started_ns, job.first_ns, now_ns]
        known = [mark if mark is not None else now_ns for mark in marks]
        queued_ns, prefill_ns, decode_ns = (known[i + 1] - known[i] for i in range(3))
        job.turn.push(
            Ended(
                request=job.turn.request,
                cause=cause,
                prefilled=job.prefilled,
                generated=job.generated,
                queued_ns=queued_ns,
                prefill_ns=prefill_ns,
                decode_ns=decode_ns,
                device_ns=job.device_ns,
                detail=detail,
                displaced=displaced,
                cached=job.cached,
                pinned=job.pinned,
            )
        )
        self._drop(job)

    # Speaking

    async def _play(self, job: Job) -> None:
        """Say it all; a gate that raises is a crash."""
        try:
            cause = await self._speak(job)
        except Exception as fault:  # noqa: BLE001 — a scripted fault of any kind
            self._end(job, Cause.CRASHED, f"the echo failed: {type(fault).__name__}")
        else:
            self._end(job, cause)

    async def _speak(self, job: Job) -> Cause:
        submit, turn = job.job, job.turn
        total = len(submit.prompt)
        job.cached, job.pinned = self._found(submit)
        job.prefilled = total - job.cached
        self._add(prompt_tokens=total)
        turn.push(Prefilling(request=turn.request, done_tokens=total, total_tokens=total))
        if submit.warm:
            return Cause.STOP
        scripted = () if self._says is None else self._says(submit)
        said = scripted or [token for token in submit.prompt if token < IM_START] or [_FILLER]
        for k in range(submit.max_new_tokens):
            if self._gate is None:
                await asyncio.sleep(0)  # as a step would: others run, aborts are heard
            else:
                await self._gate(submit, k)
            if k == self._crash_at:
                raise ExecutorLost
            stops = submit.stop_token_ids if k >= submit.min_tokens else ()
            token = stops[0] if stops and k >= len(said) else said[k % len(said)]
            job.generated += 1
            now_ns = self._clock_ns()
            job.first_ns = job.first_ns or now_ns
            if job.said_ns is not None:
                self._gaps.add(now_ns - job.said_ns)
            job.said_ns = now_ns
            self._add(generated_tokens=1)
            turn.push(
                Emitted(request=turn.request, tokens=(token,), logprobs=_logprobs(submit, token))
            )
            if token in stops:
                return Cause.STOP
        return Cause.LENGTH

    def _add(self, *, prompt_tokens: int = 0, generated_tokens: int = 0) -> None:
        self._step_tokens.add(prompt_tokens + generated_tokens)
        self._totals = msgspec.structs.replace(
            self._totals,
            steps=self._totals.steps + 1,
            prompt_tokens=self._totals.prompt_tokens + prompt_tokens,
            generated_tokens=self._totals.generated_tokens + generated_tokens,
        )


def _logprobs(job: Submit, token: int) -> tuple[TokenLogprobs, ...]:
    """Certain of itself: the chosen token at −0.125, the others (next ids) one less each."""
    top = job.sampling.top_logprobs
    if top is None:
        return ()
    best = tuple(Logprob((token + i) % VOCAB_SIZE, -0.125 - i) for i in range(top))
    return (TokenLogprobs(Logprob(token, -0.125), best),)
