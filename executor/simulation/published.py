"""The published fair scheduler and its baseline as their authors ran them: twins for validation only.

S-LoRA's loop: a step prefills whole prompts or decodes, never both; newcomers are looked at when nothing
runs or ten decode steps have passed; one is let in if the batch's peak of memory, with every answer as
long as its client allows, stays within it.  So nothing is ever preempted, and whoever replays the
authors' runs must allow exactly what was said (`max_new_tokens = output_tokens`), which they did.
Order: of arrival, or by virtual token counters (`executor.scheduler.vtc` says how they work).

Refuses to know: measured time, classes, users.  Source: Sheng et al., OSDI 2024, and its artifact.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterable
from collections.abc import Sequence as Seq
from operator import attrgetter
from typing import Final, Generic

from executor.scheduler.promises import Refusal
from executor.scheduler.protocol import Charge, Chunk, Limits, Moment, Plan, Turn, W

_DECODES_BETWEEN: Final = 10
_PREFILL_TOKENS_MAX: Final = 3072
_OUTPUT_WEIGHT: Final = 2.0
_ticket = attrgetter("ticket")


class Counters:
    """A tenant's virtual tokens by weight."""

    def __init__(self) -> None:
        self.of: dict[str, float] = {}
        self.last: str | None = None

    def lift(self, tenant: str, waiting: Iterable[str]) -> None:
        others = [self.of[each] for each in waiting]
        floor = min(others) if others else 0.0 if self.last is None else self.of[self.last]
        self.of[tenant] = max(self.of.get(tenant, 0.0), floor)


class Published(Generic[W]):
    """`counters`: none is first come, first served."""

    def __init__(self, limits: Limits, counters: Counters | None) -> None:
        self._room = limits.blocks_total * limits.block_tokens
        self._counters = counters
        self._queues: dict[str, list[W]] = {}
        self._running: list[W] = []
        self._decodes = 0

    @property
    def running(self) -> Seq[W]:
        return self._running

    @property
    def waiting(self) -> Collection[W]:
        return [seq for queue in self._queues.values() for seq in queue]

    @property
    def running_count(self) -> int:
        return len(self.running)

    @property
    def waiting_count(self) -> int:
        return len(self.waiting)

    def add(self, seq: W, now_ns: int) -> None:
        if self._counters is not None and seq.tenant not in self._queues:
            self._counters.lift(seq.tenant, self._queues)
        insort(self._queues.setdefault(self._line(seq), []), seq, key=_ticket)

    def refuses(self, seq: W, moment: Moment) -> Refusal | None:
        """It promises nothing."""
        return None

    def returns(self, seq: W, now_ns: int) -> Turn | None:
        """It keeps no places."""
        return None

    def turns_away(self, seq: W, retry_ms: int, now_ns: int) -> int:
        return retry_ms

    def remove(self, seq: W, now_ns: int) -> None:
        if seq in self._running:
            self._running.remove(seq)
        else:
            self._leave(seq)

    def renew(self, limits: Limits) -> None:
        """It knows no classes."""

    def charge(self, bill: Iterable[Charge[W]]) -> None:
        """Tokens count here."""

    def plan(self, moment: Moment) -> Plan[W]:
        if not self._running or self._decodes >= _DECODES_BETWEEN:
            admitted = self._newcomers()
            if admitted:
                self._decodes = 0
                self._running += admitted
                self._pay_outputs(admitted)
                return Plan([Chunk(seq, seq.todo) for seq in admitted], admitted)
        self._decodes += 1
        self._pay_outputs(self._running)
        return Plan([Chunk(seq, 1) for seq in self._running])

    def _newcomers(self) -> list[W]:
        found: list[W] = []
        tokens = 0
        while self._queues:
            line = min(self._queues, key=self._turn)
            seq = self._queues[line][0]
            tokens += seq.prompt_tokens
            if not self._fits([*self._running, *found, seq]):
                break
            if found and tokens > _PREFILL_TOKENS_MAX:
                break
            self._leave(seq)
            found.append(seq)
            self._pay(seq, seq.prompt_tokens)
        return found

    def _fits(self, seqs: Seq[W]) -> bool:
        """The most that these will hold at any time, one token each a step, each leaving at its end."""
        ahead = sorted(((s.max_new_tokens - s.generated, s.known) for s in seqs), reverse=True)
        held = most = 0
        for count, (left, known) in enumerate(ahead, start=1):
            held += known
            most = max(most, left * count + held)
        return most < self._room

    def _line(self, seq: W) -> str:
        return seq.tenant if self._counters is not None else ""

    def _turn(self, line: str) -> tuple[float, str]:
        return (self._counters.of[line] if self._counters is not None else 0.0, line)

    def _pay_outputs(self, seqs: Iterable[W]) -> None:
        """Each of them says a token in this step."""
        for seq in seqs:
            self._pay(seq, _OUTPUT_WEIGHT)

    def _pay(self, seq: W, tokens: float) -> None:
        if self._counters is not None:
            self._counters.of[seq.tenant] += tokens / seq.tenant_weight

    def _leave(self, seq: W) -> None:
        queue = self._queues[self._line(seq)]
        queue.remove(seq)
        if not queue:
            del self._queues[self._line(seq)]
            if self._counters is not None:
                self._counters.last = seq.tenant
