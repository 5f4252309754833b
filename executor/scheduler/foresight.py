"""What waits of each tenant in each class, and when a newcomer's first token would come.

Keeps the sums that `promises` decides by, and learns from each first token how the prediction was.
Refuses to know: order, room, accounts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic

from executor.scheduler.lanes import Entry
from executor.scheduler.promises import Experience, Load, Refusal, first_token_ns, refusal
from executor.scheduler.protocol import Moment, W, Work

Key = tuple[str, str]  # class, tenant
NOTHING = Load()


@dataclass(frozen=True, slots=True)
class Room:
    """What a tenant may count on: its part of the time, and rows that it may still have."""

    share: float
    free_rows: int
    rows: int  # that run


@dataclass(frozen=True, slots=True)
class _Guess:
    at_ns: int
    predicted_ns: float


class Foresight(Generic[W]):
    __slots__ = ("_experience", "_guesses", "_loads", "_waiting", "step_ns")

    def __init__(self) -> None:
        self.step_ns = 0.0  # what the last step took
        self._waiting: dict[Key, Load] = {}
        self._loads: dict[int, Load] = {}
        self._experience: defaultdict[str, Experience] = defaultdict(Experience)
        self._guesses: dict[int, _Guess] = {}  # of those who have not said a word

    def waits(self, entry: Entry[W], answer_tokens: int) -> None:
        load = self._loads[entry.ticket] = load_of(entry.work, answer_tokens)
        key = _key(entry.work)
        self._waiting[key] = self._waiting.get(key, NOTHING) + load

    def starts(self, entry: Entry[W]) -> None:
        """It waits no longer."""
        key = _key(entry.work)
        left = self._waiting[key] - self._loads.pop(entry.ticket)
        if left.count:
            self._waiting[key] = left
        else:
            del self._waiting[key]

    def ends(self, entry: Entry[W]) -> None:
        self._guesses.pop(entry.ticket, None)
        if entry.ticket in self._loads:
            self.starts(entry)

    def hears(self, running: Iterable[W], now_ns: int) -> None:
        """Some of them may have said their first word since the last time."""
        for work in running if self._guesses else ():
            if work.generated and (guess := self._guesses.pop(work.ticket, None)) is not None:
                self._experience[work.workload].saw(guess.predicted_ns, now_ns - guess.at_ns)

    def refuses(
        self,
        work: W,
        answer_tokens: int,
        promised_ms: int,
        begun: Iterable[W],
        room: Room,
        moment: Moment,
    ) -> Refusal | None:
        """`begun`: those at their prompts.  Who is not refused is watched."""
        key, own = _key(work), load_of(work, answer_tokens)
        ahead = self._waiting.get(key, NOTHING)
        for each in begun:
            if _key(each) == key:
                ahead += load_of(each, 0)
        predicted_ns = first_token_ns(
            own,
            ahead,
            share=room.share,
            free_rows=room.free_rows,
            rows=room.rows,
            step_ns=self.step_ns,
            rates=moment.rates,
        )
        alone_ns = own.prompts_ns(moment.rates) + moment.rates.step_ns
        refused = refusal(
            predicted_ns * self._experience[work.workload].factor,
            promised_ms * 1e6,
            alone_ns,
            has_backlog=ahead.count > 0,
            ticket=work.ticket,
        )
        if refused is None:
            self._guesses[work.ticket] = _Guess(moment.now_ns, predicted_ns)
        return refused

    def waiting(self) -> dict[str, Load]:
        """By tenant, all classes together."""
        sums: dict[str, Load] = {}
        for (_, tenant), load in self._waiting.items():
            sums[tenant] = sums.get(tenant, NOTHING) + load
        return sums


def load_of(work: Work, answer_tokens: int) -> Load:
    return Load(1, work.todo, answer_tokens)


def _key(work: Work) -> Key:
    return work.workload, work.tenant
