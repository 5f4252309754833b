"""What waits and what runs of each tenant in each class, and when a newcomer's first token would come.

Keeps the queues that `promises` predicts from, and learns from each first token how the prediction was, and from who left too late for it.
Refuses to know: order between tenants, room, accounts, who was refused before.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import Final, Generic, NamedTuple

from executor.scheduler.lanes import Entry
from executor.scheduler.promises import FACTOR_AT_FIRST, NOTHING, Ahead, Experience, Own
from executor.scheduler.protocol import W, Work, uncached_tokens

AHEAD_MAX: Final = 256  # of those who wait are looked at one by one
KEPT: Final = 4096  # tenants whose predictions are remembered

_LONGER: Final = 4
_place: Final = attrgetter("place")

Key = tuple[str, str]  # class, tenant


class Waiter(NamedTuple):
    place: int
    user: str
    ahead: Ahead


class _Guess(NamedTuple):
    at_ns: int
    predicted_ns: float


class Queue:
    """Of a tenant in a class, in order of place.  Sums are kept, so that a long one need not be walked."""

    __slots__ = ("_line", "_waiters", "answers", "prompts")

    def __init__(self) -> None:
        self._waiters: dict[int, Waiter] = {}  # by ticket
        self._line: list[Waiter] = []
        self.prompts = 0
        self.answers = 0

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[Waiter]:
        return iter(self._line)

    def push(self, ticket: int, waiter: Waiter) -> None:
        self._waiters[ticket] = waiter
        insort(self._line, waiter)
        self._count(waiter.ahead, 1)

    def pop(self, ticket: int) -> None:
        waiter = self._waiters.pop(ticket, None)
        if waiter is not None:
            del self._line[bisect_left(self._line, waiter)]
            self._count(waiter.ahead, -1)

    def before(self, place: int) -> tuple[Sequence[Ahead], Ahead]:
        """Those before `place`: the first `AHEAD_MAX` one by one, the others in sum; of what is behind the first,
        as large a part as of their number, so exactly all for a newcomer.  O(`AHEAD_MAX`)."""
        count = bisect_left(self._line, place, key=_place)
        near = [each.ahead for each in self._line[: min(count, AHEAD_MAX)]]
        if count == len(near):
            return near, NOTHING
        part = (count - len(near)) / (len(self._line) - len(near))
        prompts = self.prompts - sum(each.prompt_tokens for each in near)
        answers = self.answers - sum(each.answer_tokens for each in near)
        return near, Ahead(round(part * prompts), round(part * answers))

    def _count(self, ahead: Ahead, sign: int) -> None:
        self.prompts += sign * ahead.prompt_tokens
        self.answers += sign * ahead.answer_tokens


class Foresight(Generic[W]):
    __slots__ = (
        "_asked",
        "_block_tokens",
        "_experience",
        "_guesses",
        "_running",
        "_waiting",
        "whole",
    )

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self.whole = Queue()  # all that wait, of all tenants
        self._waiting: defaultdict[Key, Queue] = defaultdict(Queue)
        self._running: defaultdict[str, dict[int, Entry[W]]] = defaultdict(dict)
        self._experience: OrderedDict[Key, Experience] = OrderedDict()
        self._guesses: dict[int, _Guess] = {}  # of those who have not said a word
        self._asked: tuple[int, _Guess] | None = None  # the last newcomer, who may come in or not

    def waits(self, entry: Entry[W], answer_tokens: int) -> None:
        if self._asked is not None and self._asked[0] == entry.ticket:
            self._guesses[entry.ticket] = self._asked[1]
            self._asked = None
        self._leaves(entry)
        ahead = Ahead(uncached_tokens(entry.work, self._block_tokens), answer_tokens)
        waiter = Waiter(entry.place, entry.user.key, ahead)
        self.whole.push(entry.ticket, waiter)
        self._waiting[key_of(entry.work)].push(entry.ticket, waiter)

    def starts(self, entry: Entry[W]) -> None:
        """It waits no longer."""
        self._goes(entry)
        self._running[entry.work.tenant][entry.ticket] = entry

    def ends(self, entry: Entry[W], now_ns: int) -> None:
        """Its first word may have been its last.  Who left without one waited that long at least, which says
        something where it is longer than was predicted, and nothing where it is not."""
        guess = self._guesses.pop(entry.ticket, None)
        if guess is not None:
            predicted_ns = guess.predicted_ns * self.factor(entry.work, now_ns)
            if entry.work.generated or now_ns - guess.at_ns > predicted_ns:
                self._learns(entry.work, guess, now_ns)
        self._goes(entry)
        self._leaves(entry)

    def _goes(self, entry: Entry[W]) -> None:
        key = key_of(entry.work)
        self.whole.pop(entry.ticket)
        self._waiting[key].pop(entry.ticket)
        if not self._waiting[key]:
            del self._waiting[key]

    def _leaves(self, entry: Entry[W]) -> None:
        tenant = entry.work.tenant
        self._running[tenant].pop(entry.ticket, None)
        if not self._running[tenant]:
            del self._running[tenant]

    def hears(self, running: Iterable[W], now_ns: int) -> None:
        """Some of them may have said their first word since the last time."""
        for work in running if self._guesses else ():
            if work.generated and (guess := self._guesses.pop(work.ticket, None)) is not None:
                self._learns(work, guess, now_ns)

    def _learns(self, work: W, guess: _Guess, now_ns: int) -> None:
        experience = self._experience.pop(key_of(work), None) or Experience()
        experience.saw(guess.predicted_ns, now_ns - guess.at_ns, now_ns)
        self._experience[key_of(work)] = experience
        if len(self._experience) > KEPT:
            self._experience.popitem(last=False)

    @property
    def begun_tokens(self) -> int:
        """Of all prompts that are being computed."""
        return sum(
            one.work.todo
            for own in self._running.values()
            for one in own.values()
            if one.work.todo > 1
        )

    def has(self, work: Work) -> bool:
        """Whether anything of its tenant is here, running or waiting in its class."""
        return work.tenant in self._running or key_of(work) in self._waiting

    def factor(self, work: Work, now_ns: int) -> float:
        experience = self._experience.get(key_of(work))
        return FACTOR_AT_FIRST if experience is None else experience.factor(now_ns)

    def waiting_of(self, work: Work) -> int:
        """How many of the same user wait in its class."""
        queue = self._waiting.get(key_of(work), ())
        return sum(each.user == work.user for each in islice(queue, AHEAD_MAX))

    def own(self, work: W, place: int, absent: Sequence[Ahead]) -> Own:
        """What its tenant has here that matters to `work` at `place`, and who is `absent` and comes before it.
        O(`AHEAD_MAX`)."""
        running = self._running.get(work.tenant, {}).values()
        near, rest = self._waiting.get(key_of(work), Queue()).before(place)
        return Own(
            [(left(one), one.work.known) for one in running],
            [*near, *absent],
            sum(one.work.todo for one in running if one.work.todo > 1),
            rest,
        )

    def watches(self, work: W, predicted_ns: float, now_ns: int) -> None:
        """It was told that it would be in time."""
        self._asked = work.ticket, _Guess(now_ns, predicted_ns)


def key_of(work: Work) -> Key:
    return work.workload, work.tenant


def left(entry: Entry[W]) -> int:
    """Tokens that it will probably say yet.  Who has said all that was expected of it has no reason to end
    at once."""
    whole = entry.expected_tokens - entry.work.prompt_tokens
    return max(1, whole // _LONGER, entry.expected_tokens - entry.work.known)
