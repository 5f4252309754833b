"""What a gateway does with tills: draws before a hold, and tells them afterwards what SQL made of it.

Refuses to know: how tills are kept, what SQL decides.  Source: MONEY.md §1.

Theory of operation.  Whoever cannot draw is decided by SQL alone: a till that does not answer, or answers
nonsense, costs its deadline and after a few failures nothing (`policies.outage`).  What is told after a
commit may be lost, since a later word says it too; of several words for one till, the last is sent.  A draw
that nobody held is given back where that is known; else it stays set aside until it is recalled.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from policies.outage import Breaker, Trouble, due, failed, worked
from policies.price import worst_case
from policies.till import NANO_USD_BELOW
from policies.verdict import Deny, Reason
from tenants.asks import Drawn, HoldAsk, Word, Worded
from tenants.places import Place
from tenants.tempo.link import Failed, Untaken
from tenants.till.contract import DrawAsk, Dry, Tills, Told


@dataclass
class Front:
    """`clock_ms` is monotonic.  `heard` hears what is wrong when tills are given up, None when they are back.
    `outcomes` of requests under tills: drawn from all, short in one, refused as dry, or unasked."""

    tills: Tills
    clock_ms: Callable[[], int]
    heard: Callable[[Trouble | None], None] = lambda _: None
    failures: Counter[Trouble] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    _breaker: Breaker = field(default_factory=Breaker)
    _trying: bool = False
    _untold: dict[tuple[str, Place], Told] = field(default_factory=dict)
    _telling: asyncio.Task[None] | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def trouble(self) -> Trouble | None:
        """Why SQL decides alone; else None."""
        return self._breaker.trouble

    async def draw(self, ask: HoldAsk) -> HoldAsk | Deny:
        """What is to be asked of SQL, or a refusal that SQL has just given somebody."""
        wanted = _wanted(ask)
        if wanted is None:
            return ask
        if not self._may_ask():
            self.outcomes["unasked"] += 1
            return ask
        tried = self._breaker.trouble is not None
        try:
            found = await self.tills.draw(wanted)
        except (Failed, asyncio.CancelledError) as why:
            if not isinstance(why, Untaken):  # it may have been drawn, or be drawn yet
                self._begin(self.tills.give_back(wanted))
            if not isinstance(why, Failed):
                raise
            self.outcomes["unasked"] += 1
            self._fail(why)
            return ask
        finally:
            self._trying = self._trying and not tried
        self._see(worked(self._breaker, tried=tried))
        if isinstance(found, Dry):
            self.outcomes["dry"] += 1
            scope, account = found.place
            return Deny(Reason.BUDGET_SPENT, scope=scope, limit_name="budget", account=account)
        self.outcomes["drawn" if all(each.drawn_nano_usd for each in found) else "short"] += 1
        pairs = zip(wanted.places, found, strict=True)
        return replace(
            ask, till=tuple(Drawn(place.scope, place.account, seen) for place, seen in pairs)
        )

    def hear(self, ask: HoldAsk, answer: Worded) -> None:
        """What SQL said of it."""
        if isinstance(answer.verdict, Deny):
            self.give_back(ask)
        self.tell(ask, answer.words)

    def give_back(self, ask: HoldAsk) -> None:
        """Nothing was held."""
        wanted = _wanted(ask)
        if wanted is not None and any(each.seen.drawn_nano_usd for each in ask.till):
            self._begin(self.tills.give_back(wanted))

    def tell(self, ask: HoldAsk, words: Iterable[Word]) -> None:
        """After the commit; nobody waits for it."""
        for word in words:
            place = Place(word.scope, word.account)
            refused = _least(ask) if word.spent else 0
            told = Told(place, word.epoch, word.since, word.issued, refused)
            key = ask.dims.tenant, place
            self._untold[key] = _together(self._untold.get(key), told)
        if self._untold and (self._telling is None or self._telling.done()):
            self._telling = self._begin(self._tell())

    async def aclose(self) -> None:
        """When everything that was begun has ended."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _may_ask(self) -> bool:
        if self._breaker.trouble is None:
            return True
        if self._trying or not due(self._breaker, self.clock_ms()):
            return False
        self._trying = True  # one for all
        return True

    async def _tell(self) -> None:
        while self._untold:
            tenant = next(iter(self._untold))[0]
            keys = [key for key in self._untold if key[0] == tenant]
            await self.tills.fill(tenant, tuple(self._untold.pop(key) for key in keys))

    def _begin(self, call: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._quietly(call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _quietly(self, call: Coroutine[Any, Any, None]) -> None:
        try:
            await call
        except Failed as why:  # what it was to say is recalled, or said by the next
            self._fail(why)

    def _fail(self, why: Failed) -> None:
        if not isinstance(why, Untaken):
            self.failures[why.trouble] += 1
            self._see(failed(self._breaker, why.trouble, self.clock_ms()))

    def _see(self, now: Breaker) -> None:
        before, self._breaker = self._breaker, now
        if (before.trouble is None) is not (now.trouble is None):
            self.heard(now.trouble)


def _wanted(ask: HoldAsk) -> DrawAsk | None:
    """All that may be held, from each till; None where there is none, or no till could count it."""
    places = tuple(Place(each.scope, each.id) for each in ask.budgets if each.budget.till)
    amount = worst_case(ask.price, ask.prompt_tokens, ask.output_tokens, ask.n) if places else 0
    if not places or amount >= NANO_USD_BELOW:
        return None
    return DrawAsk(ask.request_id, ask.dims.tenant, places, amount, _least(ask))


def _least(ask: HoldAsk) -> int:
    """What it takes for the request not to be refused."""
    least = min(ask.output_tokens_least, ask.output_tokens)
    return worst_case(ask.price, ask.prompt_tokens, least, ask.n)


def _together(one: Told | None, other: Told) -> Told:
    """What two words for one till come to."""
    if one is None or one.epoch < other.epoch:
        return other
    if one.epoch > other.epoch:
        return one
    later, earlier = (other, one) if one.issued < other.issued else (one, other)
    refused = [later.refused_nano_usd]
    if one.issued == other.issued:
        refused.append(earlier.refused_nano_usd)
    since = min(one.since, other.since)
    return replace(later, since=since, refused_nano_usd=min(filter(None, refused), default=0))
