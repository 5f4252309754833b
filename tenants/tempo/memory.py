"""One process's tempo: buckets and leases in memory.

Source: DESIGN.md ("tempo"), SCHEDULER.md §1 (GCRA) and invariant 21.

Theory of operation.  `admit` decides over a snapshot and writes all new states or none; nothing in
here awaits, so on one event loop that is atomic.  What was taken is remembered by request id until
the lease is released, refunded or lapses, which makes every call safe to repeat.  A bucket that has
refilled equals an absent one and is dropped, a few at each call, by a heap of the times at which
they become full; so memory follows the requests of the last minute and not the users ever seen.
It is also the specification of the scripts in `scripts/`, which do the same in Redis.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from policies.admission import Draw, admit
from policies.outage import Trouble
from policies.rate import Bucket, Rate, full, give, headroom
from policies.verdict import Allow, Deny
from tenants.scopes import ScopeLimits
from tenants.tempo.contract import (
    LEASE_MS,
    Cost,
    Headroom,
    TempoAsk,
    costs,
    seat,
    seated,
    tightest,
    unused,
)

TIDY_MOST = 256
"""Buckets looked at for dropping in one call: several times what a call can add, and brief."""

Key = tuple[str, str, str]
"""Scope, id, the limit's name."""


@dataclass(slots=True)
class _Admitted:
    ask: TempoAsk
    answer: Allow[Headroom]
    until_ms: int


class MemoryTempo:
    """`clock_ms` is monotonic."""

    def __init__(self, clock_ms: Callable[[], int], *, lease_ms: int = LEASE_MS) -> None:
        self._clock_ms = clock_ms
        self._lease_ms = lease_ms
        self._buckets: dict[Key, tuple[Bucket, Rate]] = {}
        self._full_at: list[tuple[int, Key]] = []
        self._seats: dict[tuple[str, str], set[str]] = {}
        self._live: OrderedDict[str, _Admitted] = OrderedDict()  # by the time their lease lapses

    @property
    def leases(self) -> int:
        """Requests that are admitted now; at rest none."""
        return len(self._live)

    @property
    def trouble(self) -> Trouble | None:
        """It is here."""
        return None

    async def admit(self, ask: TempoAsk) -> Allow[Headroom] | Deny:
        now_ms = self._tidy()
        if known := self._live.get(ask.request_id):
            return known.answer
        asked = tuple(costs(ask.scopes, ask))
        seats = [
            seat(scope, limit, len(self._seats.get((scope.scope, scope.id), ())))
            for scope, limit in seated(ask.scopes)
        ]
        verdict = admit(self._draws(asked, now_ms), seats, now_ms)
        if isinstance(verdict, Deny):
            return verdict
        for cost, bucket in zip(asked, verdict.value, strict=True):
            if cost.tokens:
                self._store(_key(cost), bucket, Rate.of(cost.limit), now_ms)
        for scope, _ in seated(ask.scopes):
            self._seats.setdefault((scope.scope, scope.id), set()).add(ask.request_id)
        answer = Allow(tightest(asked, verdict.value, now_ms))
        self._live[ask.request_id] = _Admitted(ask, answer, now_ms + self._lease_ms)
        return answer

    async def refund(self, request_id: str) -> None:
        now_ms = self._tidy()
        if admitted := self._leave(request_id):
            self._give(costs(admitted.ask.scopes, admitted.ask), now_ms)

    async def release(self, request_id: str, output_tokens_used: int) -> None:
        now_ms = self._tidy()
        if admitted := self._leave(request_id):
            self._give(unused(admitted.ask, output_tokens_used), now_ms)

    async def renew(self, request_ids: Iterable[str]) -> tuple[str, ...]:
        now_ms = self._tidy()
        lost = []
        for request_id in request_ids:
            if admitted := self._live.get(request_id):
                admitted.until_ms = now_ms + self._lease_ms
                self._live.move_to_end(request_id)
            else:
                lost.append(request_id)
        return tuple(lost)

    async def headroom(self, tenant: str, scopes: tuple[ScopeLimits, ...]) -> Headroom:
        now_ms = self._tidy()
        limited = tuple(costs(scopes))
        return tightest(limited, (self._bucket(each, now_ms) for each in limited), now_ms)

    def statistics(self) -> dict[str, int]:
        """Sizes, for metrics and the leak checks of the tests."""
        return {
            "buckets": len(self._buckets),
            "scheduled": len(self._full_at),
            "seats": sum(map(len, self._seats.values())),
            "live": len(self._live),
        }

    def _draws(self, asked: Sequence[Cost], now_ms: int) -> list[Draw]:
        return [cost.draw(self._bucket(cost, now_ms)) for cost in asked]

    def _bucket(self, cost: Cost, now_ms: int) -> Bucket:
        if cost.limit <= 0:
            return Bucket(0, now_ms)  # nothing ever lies ready; admission refuses any cost
        kept = self._buckets.get(_key(cost))
        return kept[0] if kept else full(Rate.of(cost.limit), now_ms)

    def _store(self, key: Key, bucket: Bucket, rate: Rate, now_ms: int) -> None:
        if key not in self._buckets:
            reset_ms = headroom(bucket, rate, now_ms).reset_ms
            heapq.heappush(self._full_at, (now_ms + reset_ms, key))
        self._buckets[key] = (bucket, rate)

    def _give(self, back: Iterable[Cost], now_ms: int) -> None:
        for cost in back:
            key = _key(cost)
            if cost.tokens and (kept := self._buckets.get(key)):  # dropped: it is full already
                rate = Rate.of(cost.limit)
                self._buckets[key] = (give(kept[0], rate, cost.tokens, now_ms), rate)

    def _leave(self, request_id: str) -> _Admitted | None:
        admitted = self._live.pop(request_id, None)
        if admitted is None:
            return None
        for scope in admitted.ask.scopes:
            place = (scope.scope, scope.id)
            if (taken := self._seats.get(place)) is not None:
                taken.discard(request_id)
                if not taken:
                    del self._seats[place]
        return admitted

    def _tidy(self) -> int:
        """Let lapsed leases go and drop full buckets; returns the time it did so for."""
        now_ms = self._clock_ms()
        while self._live and next(iter(self._live.values())).until_ms <= now_ms:
            self._leave(next(iter(self._live)))
        for _ in range(TIDY_MOST):
            if not self._full_at or self._full_at[0][0] > now_ms:
                break
            _, key = heapq.heappop(self._full_at)
            bucket, rate = self._buckets[key]
            reset_ms = headroom(bucket, rate, now_ms).reset_ms
            if reset_ms > 0:  # it was drawn from since
                heapq.heappush(self._full_at, (now_ms + reset_ms, key))
            else:
                del self._buckets[key]
        return now_ms


def _key(cost: Cost) -> Key:
    return cost.scope.scope, cost.scope.id, cost.limit_name
