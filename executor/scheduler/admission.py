"""Who comes in: the answer to a newcomer, and what is kept of those who were turned away.

A newcomer is taken if one of two things holds.
- It will be in time by what its tenant is *sure of*: its weight's part of the machine, with all of the
  tenant's own work and own earlier tickets ahead of it.  Others enter by one number, the weight of all
  who share, which rises when somebody comes who was not here, falls by half in `HALF_NS` at most, and is
  taken up to the next of few notches.
- There is *room in the house*: it, and all that waits, fit beside what runs and the headroom.  Only who
  asks for more than its part is ever judged by that.
So who is within its part is taken whatever others do; who is over it gets what they leave, and in that
learns that they leave it: work is not conserved otherwise.

Refuses to know: order, start times, blocks by id, how a refusal is worded.
Source: SCHEDULER.md §2, "Admission" and "Retries"; README.md, decisions.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from math import exp2, frexp, inf
from typing import Final, Generic
from zlib import crc32

from executor.cost import Rates
from executor.scheduler.accounts import terms_of
from executor.scheduler.foresight import KEPT, Foresight, Key, key_of
from executor.scheduler.lanes import Entry
from executor.scheduler.peak import Peak
from executor.scheduler.promises import (
    Ahead,
    Own,
    Refusal,
    Room,
    can_promise,
    first_token_ns,
    late_by_ns,
    told_ms,
)
from executor.scheduler.protocol import Limits, Moment, Turn, W, uncached_tokens
from executor.scheduler.step import aim_ns
from executor.scheduler.tickets import Tickets

HALF_NS: Final = 10e9


@dataclass(frozen=True, slots=True)
class Held:
    """What is taken of the house: rows, and the most that will be held.  `weight`: of all tenants that are
    here, the newcomer's counted."""

    rows: int
    peak: Callable[[], Peak]
    weight: float


class Crowd:
    """The weight of all who share."""

    __slots__ = ("_at_ns", "_weight")

    def __init__(self) -> None:
        self._weight = 0.0
        self._at_ns = 0

    def sees(self, weight: float, now_ns: int) -> float:
        """`weight` of those who are here now."""
        self._weight = max(weight, self.weight(now_ns))
        self._at_ns = max(now_ns, self._at_ns)
        return self._weight

    def weight(self, now_ns: int) -> float:
        return self._weight * exp2(-max(0, now_ns - self._at_ns) / HALF_NS)


def part_of(weight: float, all_weight: float) -> float:
    """Of the machine, a tenant's: 1, 2/3, 1/2, 1/3, 1/4, 1/6 …, never more than its weight's part."""
    half, power = frexp(max(1.0, all_weight / weight - 1e-9))
    octave = 2.0 ** (power - 1)
    if half == 0.5:
        return 1 / octave
    return 1 / (1.5 * octave) if half <= 0.75 else 1 / (2 * octave)


class Admission(Generic[W]):
    """`answer`: tokens that a request will probably say.  `headroom`: kept for those under their share."""

    __slots__ = ("_answer", "_headroom", "_refused", "_tickets", "crowd", "foresight", "limits")

    def __init__(self, limits: Limits, headroom: float, answer: Callable[[W], int]) -> None:
        self.limits = limits
        self.foresight: Foresight[W] = Foresight(limits.block_tokens)
        self._headroom = headroom
        self._answer = answer
        self.crowd = Crowd()
        self._refused: OrderedDict[Key, int] = OrderedDict()
        self._tickets = Tickets()

    def refuses(self, work: W, held: Held, moment: Moment) -> Refusal | None:
        """Changes nothing that another could notice."""
        promised_ms = terms_of(self.limits.workloads, work.workload).ttft_ms
        if promised_ms is None or not can_promise(
            self._ahead(work).prompt_tokens, promised_ms, moment.rates
        ):
            return None
        seen = self.foresight
        promised_ns, factor = promised_ms * 1e6, seen.factor(work, moment.now_ns)
        absent = self._absent(work, moment.now_ns)
        predicted_ns = self._sure_ns(work, absent, held, moment)
        late_ns = late_by_ns(predicted_ns, factor, promised_ns)
        if late_ns > 0 and seen.has(work):
            predicted_ns = self._room_ns(work, absent, held, moment)
            if late_by_ns(predicted_ns, factor, promised_ns) > 0:
                return Refusal(told_ms(late_ns, self._seed(work)))
        seen.watches(work, predicted_ns, moment.now_ns)
        return None

    def returns(self, work: W, now_ns: int) -> Turn | None:
        return self._tickets.take(key_of(work), work.retry_key, now_ns)

    def turns_away(self, work: W, retry_ms: int, now_ns: int, *, came_in: bool) -> int:
        """It is told to come back then, perhaps after it `came_in` and waited; when after all."""
        self._refused[key_of(work)] = self._refused.pop(key_of(work), 0) + 1
        if len(self._refused) > KEPT:
            self._refused.popitem(last=False)
        return self._tickets.keep(
            key_of(work),
            work,
            self._ahead(work),
            retry_ms=retry_ms,
            now_ns=now_ns,
            came_in=came_in,
        )

    def waits(self, entry: Entry[W]) -> None:
        self.foresight.waits(entry, self._answer(entry.work))

    def _seed(self, work: W) -> int:
        """Of the jitter: of its tenant's own refusals so far.  A ticket would tell, to who looks closely, how
        many requests there were of all."""
        return crc32(work.tenant.encode()) + self._refused.get(key_of(work), 0)

    # The two predictions

    def _absent(self, work: W, now_ns: int) -> list[Ahead]:
        """Who is to come before it, in order."""
        own = self.foresight.waiting_of(work)
        return [each.ahead for each in self._tickets.before(key_of(work), work, own, now_ns)]

    def _sure_ns(self, work: W, absent: list[Ahead], held: Held, moment: Moment) -> float:
        """By what its tenant may count on, whatever others do."""
        own = self.foresight.own(work, work.place, absent)
        weight = max(held.weight, self.crowd.weight(moment.now_ns))
        reserved = terms_of(self.limits.workloads, work.workload).reserved
        part = max(part_of(work.tenant_weight, weight), reserved, 1 / self.limits.seqs)
        room = self._room(work, own, part, moment.rates)
        return first_token_ns(self._ahead(work), own, room, moment.rates)

    def _room_ns(self, work: W, absent: list[Ahead], held: Held, moment: Moment) -> float:
        """If it, all who wait and all who come before it are let in at once; infinite if they do not fit."""
        limits, whole, new = self.limits, self.foresight.whole, self._ahead(work)
        kept = self._headroom if held.weight > work.tenant_weight else 0.0
        kept += sum(each.reserved for each in limits.workloads if each.name != work.workload)
        rows = len(whole) + len(absent) + 1
        if held.rows + rows > int((1 - kept) * self._rows(work, moment.rates)):
            return inf
        tokens = held.peak().tokens_with(new.answer_tokens, work.known)
        tokens += whole.prompts + whole.answers + sum(map(sum, absent))
        if limits.blocks(tokens) + rows > (1 - kept) * limits.blocks_total:
            return inf
        here = Own(begun_tokens=self.foresight.begun_tokens + whole.prompts)
        room = self._room(work, here, 1.0, moment.rates)
        return first_token_ns(new, here, room, moment.rates)

    def _room(self, work: W, own: Own, part: float, rates: Rates) -> Room:
        """In a house full of what its tenant has here, each with its prompt and half of its answer on average.
        Where others are, the headroom is nobody's."""
        limits, free = self.limits, 1.0 if part >= 1 else 1 - self._headroom
        here = [self._ahead(work), *own.waiting]
        held = [each.prompt_tokens + each.answer_tokens / 2 for each in here]
        held += [known + left / 2 for left, known in own.running]
        mean = sum(held) / len(held)
        memory = limits.blocks_total * limits.block_tokens
        rows = free * min(self._rows(work, rates), memory / mean)
        step_ns = rates.step_ns + rows * rates.row_ns(1, round(mean))
        return Room(part, max(1.0, part * rows), part * free * memory, step_ns)

    def _rows(self, work: W, rates: Rates) -> float:
        """That may speak at once: all, or what its class's promise between tokens leaves."""
        itl_ms = terms_of(self.limits.workloads, work.workload).itl_ms
        if itl_ms is None:
            return self.limits.seqs
        left_ns = aim_ns(itl_ms, rates) - rates.step_ns
        row_ns = max(1.0, rates.row_ns(1, work.prompt_tokens + self._answer(work) // 2))
        return max(1.0, min(self.limits.seqs, left_ns / row_ns))

    def _ahead(self, work: W) -> Ahead:
        return Ahead(uncached_tokens(work, self.limits.block_tokens), self._answer(work))
