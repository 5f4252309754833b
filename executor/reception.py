"""Who comes in: a new request is refused, or files, and stands in the queue once nothing else holds it up.

Nothing is held for who is refused here; what it costs to refuse is what it costs to look.
Refuses to know: the model, what runs, how a request ends (`End`, the engine's one way out).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from executor.block_manager import BlockManager
from executor.caching import fault as caching_fault
from executor.contract import Cause, Ended, Submit, Workload
from executor.deadlines import Deadlines
from executor.foyer import Foyer
from executor.keeper import Keeper
from executor.outbox import Outbox
from executor.positions import Positions
from executor.scheduler.accounts import terms_of
from executor.scheduler.promises import can_promise
from executor.scheduler.protocol import Moment, Scheduler, uncached_tokens
from executor.sequence import Key, Sequence, fault

_LATE: Final = "it would not start in the time that its class is promised"


_EARLY: Final = "it was told to come later"


class End(Protocol):
    def __call__(
        self,
        key: Key,
        cause: Cause,
        now_ns: int,
        detail: str = "",
        retry_ms: int | None = None,
        *,
        queued: bool = True,
        displaced: bool = False,
    ) -> None: ...


@dataclass(slots=True)
class Reception:
    """Owned by the engine, whose `living` requests these are, with all else that is named here."""

    living: dict[Key, Sequence]
    vocab_size: int
    context_tokens: int
    blocks: BlockManager
    keeper: Keeper
    foyer: Foyer
    scheduler: Scheduler[Sequence]
    positions: Positions
    deadlines: Deadlines
    out: Outbox
    moment: Callable[[int], Moment]
    end: End
    workloads: tuple[Workload, ...] = ()
    tickets: int = 0

    def submit(self, owner: int, job: Submit, now_ns: int) -> None:
        key = (owner, job.request)
        assert key not in self.living, "the server lets no number pass twice"
        why = fault(
            job,
            vocab_size=self.vocab_size,
            context_tokens=self.context_tokens,
            kv_tokens=self.blocks.tokens,
        ) or caching_fault(job)
        if why is not None:
            self.out.say(owner, Ended(request=job.request, cause=Cause.REFUSED, detail=why))
            return
        if self.keeper.refuses(job):
            self.out.say(owner, Ended(request=job.request, cause=Cause.REVOKED))
            return
        seq = Sequence(key, job, self.tickets, now_ns)
        seq.turn = self.scheduler.returns(seq, now_ns)
        if seq.turn is not None and now_ns < seq.turn.next_ns:
            left_ms = -((now_ns - seq.turn.next_ns) // 1_000_000)
            self.out.say(owner, seq.ended(Cause.BACKLOG, _EARLY, left_ms))
            return
        self.tickets += 1
        self.keeper.file(seq)
        goes = self.foyer.displaces(seq)
        if seq in goes:
            cause, why, retry_ms = self.foyer.refused(seq)
            retry_ms = self.scheduler.turns_away(seq, retry_ms, now_ns)
            self.out.say(owner, seq.ended(cause, why, retry_ms))
            return
        self.living[key] = seq
        if self.foyer.file(seq, self.living):
            self.enqueue(seq, now_ns)
        if key not in self.living:  # refused at the door: nobody makes room for it
            return
        self.deadlines.file(seq)
        for each in goes:
            cause, why, retry_ms = self.foyer.refused(each)
            retry_ms = self.scheduler.turns_away(each, retry_ms, now_ns)
            self.end(each.key, cause, now_ns, why, retry_ms, displaced=True)

    def enqueue(self, seq: Sequence, now_ns: int) -> None:
        """Nothing holds it up, but perhaps its sibling."""
        if self.foyer.hold(seq):
            return
        moment = self.moment(now_ns)
        promised_ms = terms_of(self.workloads, seq.workload).ttft_ms
        tokens = uncached_tokens(seq, self.blocks.block_tokens)
        seq.promised = promised_ms is None or can_promise(tokens, promised_ms, moment.rates)
        if not seq.job.part:
            refused = self.scheduler.refuses(seq, moment)
            if refused is not None:
                retry_ms = self.scheduler.turns_away(seq, refused.retry_ms, now_ns)
                self.end(seq.key, Cause.BACKLOG, now_ns, _LATE, retry_ms, queued=False)
                return
        self.scheduler.add(seq, now_ns)
        self.positions.join(seq)
