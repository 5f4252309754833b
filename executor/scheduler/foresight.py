"""What waits of each tenant in each class, and when a newcomer's first token would come.

Keeps the queues that `promises` predicts from, and learns from each first token how the prediction was.
Refuses to know: order between tenants, room, accounts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Generic, NamedTuple

from executor.scheduler.lanes import Entry
from executor.scheduler.promises import (
    Ahead,
    Experience,
    Refusal,
    Room,
    can_promise,
    first_token_ns,
    left_to_say,
    refusal,
)
from executor.scheduler.protocol import Moment, W, Work, uncached_tokens

Key = tuple[str, str]  # class, tenant


class _Guess(NamedTuple):
    at_ns: int
    predicted_ns: float


class Foresight(Generic[W]):
    __slots__ = ("_asked", "_block_tokens", "_experience", "_guesses", "_waiting", "step_ns")

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self.step_ns = 0.0  # what the last step took
        self._waiting: defaultdict[Key, dict[int, Ahead]] = defaultdict(dict)  # by ticket
        self._experience: defaultdict[str, Experience] = defaultdict(Experience)
        self._guesses: dict[int, _Guess] = {}  # of those who have not said a word
        self._asked: tuple[int, _Guess] | None = None  # the last newcomer, who may come in or not

    def waits(self, entry: Entry[W], answer_tokens: int) -> None:
        if self._asked is not None and self._asked[0] == entry.ticket:
            self._guesses[entry.ticket] = self._asked[1]
            self._asked = None
        self._waiting[_key(entry.work)][entry.ticket] = Ahead(
            uncached_tokens(entry.work, self._block_tokens), answer_tokens
        )

    def starts(self, entry: Entry[W]) -> None:
        """It waits no longer."""
        key = _key(entry.work)
        self._waiting[key].pop(entry.ticket, None)
        if not self._waiting[key]:
            del self._waiting[key]

    def ends(self, entry: Entry[W]) -> None:
        self._guesses.pop(entry.ticket, None)
        self.starts(entry)

    def hears(self, running: Iterable[W], now_ns: int) -> None:
        """Some of them may have said their first word since the last time."""
        for work in running if self._guesses else ():
            if work.generated and (guess := self._guesses.pop(work.ticket, None)) is not None:
                self._experience[work.workload].saw(
                    guess.predicted_ns, now_ns - guess.at_ns, now_ns
                )

    def refuses(
        self, work: W, promised_ms: int, running: Iterable[Entry[W]], room: Room, moment: Moment
    ) -> Refusal | None:
        """`running`: its tenant's.  Who is not refused is watched."""
        tokens = uncached_tokens(work, self._block_tokens)
        if not can_promise(tokens, promised_ms, moment.rates):
            return None
        own = list(running)
        waiting = self._waiting.get(_key(work), {})
        predicted_ns = first_token_ns(
            tokens,
            left_to_say([(one.expected_tokens, one.work.known) for one in own]),
            waiting.values(),
            sum(one.work.todo for one in own if one.work.todo > 1),
            room,
            moment.rates,
        )
        refused = refusal(
            predicted_ns,
            self._experience[work.workload].factor(moment.now_ns),
            promised_ms * 1e6,
            has_backlog=bool(own or waiting),
        )
        if refused is None:
            self._asked = work.ticket, _Guess(moment.now_ns, predicted_ns)
        return refused


def _key(work: Work) -> Key:
    return work.workload, work.tenant
