"""One tempo for many gateways: Redis while it answers, this process's part of each limit while it does not.

Refuses to know: scripts, connections.  Source: MONEY.md §1 (Outages), §5, §6 (28, 29).

Theory of operation.  A call that fails is *unknown*.  So an admission that failed is decided here, and its
refund is owed to Redis by its id, which there makes it impossible even if it arrives later.  What is owed
is paid when Redis is back, or dropped when its lease has lapsed there.  A request ends where it was
admitted.  `policies.outage` says when Redis is given up; then nobody waits for it, one try is made now and
then (`tend`), and it comes back by itself.  An outage may let through one more burst: local buckets are full
where they were not used, and what was seated before is not counted here.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from policies.admission import admit
from policies.outage import Breaker, Trouble, due, failed, opened, share, worked
from policies.rate import Bucket
from policies.verdict import Allow, Deny
from tenants.scopes import ScopeLimits
from tenants.tempo.contract import Cost, Headroom, TempoAsk, costs, seat, seated, unused
from tenants.tempo.link import Failed, Untaken
from tenants.tempo.memory import MemoryTempo
from tenants.tempo.redis import RedisTempo

T = TypeVar("T")
OWED_MOST: Final = 10_000
PAID_AT_ONCE: Final = 100


@dataclass(slots=True)
class _Taken:
    ask: TempoAsk
    answer: Allow[Headroom]
    until_ms: int
    alone: bool


@dataclass(frozen=True, slots=True)
class _Owed:
    ask: TempoAsk
    back: tuple[Cost, ...]
    until_ms: int


class SharedTempo:
    """`processes` share `redis`, of which this is one.  `clock_ms` is monotonic.  `told` hears what is wrong
    with Redis when it is given up, and None when it is back."""

    def __init__(
        self,
        redis: RedisTempo,
        *,
        clock_ms: Callable[[], int],
        processes: int,
        told: Callable[[Trouble | None], None] = lambda _: None,
    ) -> None:
        self._redis = redis
        self._alone = MemoryTempo(clock_ms, lease_ms=redis.lease_ms)
        self._clock_ms = clock_ms
        self._processes = processes
        self._told = told
        self._breaker = Breaker()
        self._live: OrderedDict[str, _Taken] = OrderedDict()  # by the time their lease lapses
        self._owed: OrderedDict[str, _Owed] = OrderedDict()
        self.failures: Counter[Trouble] = Counter()
        self.decided_alone = 0

    @property
    def leases(self) -> int:
        return len(self._live)

    @property
    def trouble(self) -> Trouble | None:
        return self._breaker.trouble

    @property
    def owed(self) -> int:
        """What Redis has yet to hear."""
        return len(self._owed)

    async def admit(self, ask: TempoAsk) -> Allow[Headroom] | Deny:
        now_ms = self._tidy()
        if known := self._live.get(ask.request_id):
            return known.answer
        alone = self._breaker.trouble is not None
        verdict: Allow[Headroom] | Deny
        if not alone:
            try:
                verdict = await self._asked(self._redis.admit(ask))
            except (Failed, asyncio.CancelledError) as why:
                if not isinstance(why, Untaken):
                    self._owe(ask, costs(ask.scopes, ask))
                if not isinstance(why, Failed):
                    raise
                alone = True
        if alone:
            self.decided_alone += 1
            verdict = _never_fits(ask) or await self._alone.admit(self._part(ask))
        if isinstance(verdict, Allow):
            until_ms = now_ms + self._redis.lease_ms
            self._live[ask.request_id] = _Taken(ask, verdict, until_ms, alone)
        return verdict

    async def refund(self, request_id: str) -> None:
        if taken := self._leave(request_id):
            if taken.alone:
                await self._alone.refund(request_id)
            else:
                await self._give(taken.ask, costs(taken.ask.scopes, taken.ask))

    async def release(self, request_id: str, output_tokens_used: int) -> None:
        if taken := self._leave(request_id):
            if taken.alone:
                await self._alone.release(request_id, output_tokens_used)
            else:
                await self._give(taken.ask, unused(taken.ask, output_tokens_used))

    async def renew(self, request_ids: Iterable[str]) -> tuple[str, ...]:
        now_ms = self._tidy()
        wanted = tuple(request_ids)
        mine = {each: taken for each in wanted if (taken := self._live.get(each))}
        lost = set(wanted) - set(mine)
        lost.update(await self._alone.renew(each for each, taken in mine.items() if taken.alone))
        there = [taken.ask for taken in mine.values() if not taken.alone]
        if there and self._breaker.trouble is None:
            try:
                lost.update(await self._asked(self._redis.renew(there)))
            except Failed:
                pass  # kept here; what Redis loses meanwhile, the next renewal puts back
        for each in mine:
            if each in lost:
                self._live.pop(each, None)
            elif each in self._live:  # it may have ended while we asked
                self._live[each].until_ms = now_ms + self._redis.lease_ms
                self._live.move_to_end(each)
        return tuple(each for each in wanted if each in lost)

    async def headroom(self, tenant: str, scopes: tuple[ScopeLimits, ...]) -> Headroom:
        if self._breaker.trouble is None:
            try:
                return await self._asked(self._redis.headroom(tenant, scopes))
            except Failed:
                pass
        return await self._alone.headroom(tenant, self._parts(scopes))

    async def begin(self) -> None:
        """Before anybody asks: a server that is not there is given up at once."""
        try:
            await self._redis.attempt()
        except Failed as why:
            self.failures[why.trouble] += 1
            self._see(opened(why.trouble, self._clock_ms()))

    async def tend(self) -> None:
        """Again and again, several times a second: try what was given up, pay what is owed."""
        now_ms = self._tidy()
        if due(self._breaker, now_ms):
            try:
                await self._redis.attempt()
            except Failed as why:
                self._fail(why.trouble)
            else:
                self._see(worked(self._breaker, tried=True))
        for each in list(self._owed.values())[:PAID_AT_ONCE]:
            if self._breaker.trouble is not None:
                break
            try:
                await self._asked(self._redis.leave(each.ask, each.back))
            except Failed:
                continue
            self._owed.pop(each.ask.request_id, None)

    def statistics(self) -> dict[str, int]:
        """Sizes, for the leak checks of the tests."""
        return {"live": len(self._live), "owed": len(self._owed), **self._alone.statistics()}

    async def _give(self, ask: TempoAsk, back: Iterable[Cost]) -> None:
        given = tuple(back)
        if self._breaker.trouble is None:
            try:
                await self._asked(self._redis.leave(ask, given))
            except (Failed, asyncio.CancelledError) as why:
                if not isinstance(why, Failed):
                    self._owe(ask, given)
                    raise
            else:
                return
        self._owe(ask, given)

    def _owe(self, ask: TempoAsk, back: Iterable[Cost]) -> None:
        until_ms = self._clock_ms() + self._redis.lease_ms
        self._owed.pop(ask.request_id, None)
        self._owed[ask.request_id] = _Owed(ask, tuple(back), until_ms)
        while len(self._owed) > OWED_MOST:
            self._owed.popitem(last=False)  # it lapses there

    async def _asked(self, call: Coroutine[Any, Any, T]) -> T:
        try:
            said = await call
        except Failed as why:
            if not isinstance(why, Untaken):
                self._fail(why.trouble)
            raise
        self._see(worked(self._breaker, tried=False))
        return said

    def _fail(self, trouble: Trouble) -> None:
        self.failures[trouble] += 1
        self._see(failed(self._breaker, trouble, self._clock_ms()))

    def _see(self, now: Breaker) -> None:
        before, self._breaker = self._breaker, now
        self._redis.link.given_up = now.trouble
        if (before.trouble is None) is not (now.trouble is None):
            self._told(now.trouble)

    def _leave(self, request_id: str) -> _Taken | None:
        self._tidy()
        return self._live.pop(request_id, None)

    def _tidy(self) -> int:
        now_ms = self._clock_ms()
        while self._live and next(iter(self._live.values())).until_ms <= now_ms:
            self._live.popitem(last=False)
        while self._owed and next(iter(self._owed.values())).until_ms <= now_ms:
            self._owed.popitem(last=False)
        return now_ms

    def _part(self, ask: TempoAsk) -> TempoAsk:
        return replace(ask, scopes=self._parts(ask.scopes), whole=True)

    def _parts(self, scopes: tuple[ScopeLimits, ...]) -> tuple[ScopeLimits, ...]:
        return tuple(replace(each, limits=share(each.limits, self._processes)) for each in scopes)


def _never_fits(ask: TempoAsk) -> Deny | None:
    """By the whole limits: what this process has a part of is no reason to say never."""
    verdict = admit(
        [each.draw(Bucket(0, 0)) for each in costs(ask.scopes, ask) if each.tokens > each.limit],
        [seat(scope, limit, 0) for scope, limit in seated(ask.scopes)],
        0,
    )
    return verdict if isinstance(verdict, Deny) else None
