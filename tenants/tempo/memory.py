"""How fast: rates and concurrency at every scope of a request, all of them or none, in memory.

Refuses to know: money, HTTP, what a plan is.  Losing it is harmless: rates refill, leases lapse.
Source: DESIGN.md ("tempo"), SCHEDULER.md §1 (GCRA) and invariant 21.

Theory of operation.  `admit` decides over a snapshot and writes all new states or none; nothing in
here awaits, so on one event loop that is atomic.  What was taken is remembered by request id until
the lease is released, refunded or lapses, which makes every call safe to repeat.  A bucket that has
refilled equals an absent one and is dropped, a few at each call, by a heap of the times at which
they become full; so memory follows the requests of the last minute and not the users ever seen.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from policies.admission import Draw, Seat, admit
from policies.facts import Limits
from policies.rate import Bucket, Rate, Window, full, give, headroom
from policies.verdict import Allow, Deny
from tenants.scopes import ScopeLimits

__all__ = ["Headroom", "MemoryTempo", "ScopeLimits", "Tempo", "TempoAsk", "Window"]

LEASE_MS = 60_000
TIDY_MOST = 256
"""Buckets looked at for dropping in one call: several times what a call can add, and brief."""

Key = tuple[str, str, str]
"""Scope, id, the limit's name."""


@dataclass(frozen=True, slots=True)
class TempoAsk:
    """`output_tokens` over all choices: drawn in full, what was not used comes back."""

    request_id: str
    scopes: tuple[ScopeLimits, ...]
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Headroom:
    """The most constrained bucket of each kind; None where nothing limits it."""

    requests: Window | None
    tokens: Window | None


class Tempo(Protocol):
    """What memory does today and Redis will: the same calls, the same answers (tests/twins)."""

    @property
    def leases(self) -> int:
        """Requests that are admitted now, as far as this process knows; at rest none."""
        ...

    async def admit(self, ask: TempoAsk) -> Allow[Headroom] | Deny: ...

    async def refund(self, request_id: str) -> None:
        """A later step refused: everything back, as if never asked."""
        ...

    async def release(self, request_id: str, output_tokens_used: int) -> None:
        """The request ended: its leases are free, unused output tokens come back."""
        ...

    async def renew(self, request_ids: Iterable[str]) -> tuple[str, ...]:
        """Keep leases; returns those that had lapsed or were never taken."""
        ...

    async def headroom(self, scopes: tuple[ScopeLimits, ...]) -> Headroom: ...


@dataclass(slots=True)
class _Admitted:
    ask: TempoAsk
    until_ms: int


class MemoryTempo:
    """One process's tempo.  `clock_ms` is monotonic."""

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

    async def admit(self, ask: TempoAsk) -> Allow[Headroom] | Deny:
        now_ms = self._tidy()
        if ask.request_id in self._live:
            return Allow(self._headroom(ask.scopes, now_ms))
        keys, draws = self._draws(ask, now_ms)
        seats = [
            Seat(s.scope, s.limits.concurrent, len(self._seats.get((s.scope, s.id), ())))
            for s in ask.scopes
            if s.limits.concurrent is not None
        ]
        verdict = admit(draws, seats, now_ms)
        if isinstance(verdict, Deny):
            return verdict
        for key, draw, bucket in zip(keys, draws, verdict.value, strict=True):
            if draw.cost:
                self._store(key, bucket, Rate.of(draw.limit), now_ms)
        for scope in ask.scopes:
            if scope.limits.concurrent is not None:
                self._seats.setdefault((scope.scope, scope.id), set()).add(ask.request_id)
        self._live[ask.request_id] = _Admitted(ask, now_ms + self._lease_ms)
        return Allow(self._headroom(ask.scopes, now_ms))

    async def refund(self, request_id: str) -> None:
        now_ms = self._tidy()
        if admitted := self._leave(request_id):
            ask = admitted.ask
            for scope in ask.scopes:
                for name, limit, taken in _costs(scope.limits, ask):
                    self._give((scope.scope, scope.id, name), limit, taken, now_ms)

    async def release(self, request_id: str, output_tokens_used: int) -> None:
        now_ms = self._tidy()
        if admitted := self._leave(request_id):
            unused = max(0, admitted.ask.output_tokens - output_tokens_used)
            for scope in admitted.ask.scopes:
                if scope.limits.output_tpm is not None:
                    key = (scope.scope, scope.id, "output_tpm")
                    self._give(key, scope.limits.output_tpm, unused, now_ms)

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

    async def headroom(self, scopes: tuple[ScopeLimits, ...]) -> Headroom:
        return self._headroom(scopes, self._tidy())

    def statistics(self) -> dict[str, int]:
        """Sizes, for metrics and the leak checks of the tests."""
        return {
            "buckets": len(self._buckets),
            "scheduled": len(self._full_at),
            "seats": sum(map(len, self._seats.values())),
            "live": len(self._live),
        }

    def _draws(self, ask: TempoAsk, now_ms: int) -> tuple[list[Key], list[Draw]]:
        keys: list[Key] = []
        draws: list[Draw] = []
        for scope in ask.scopes:
            for name, limit, cost in _costs(scope.limits, ask):
                key = (scope.scope, scope.id, name)
                keys.append(key)
                draws.append(Draw(scope.scope, name, limit, cost, self._bucket(key, limit, now_ms)))
        return keys, draws

    def _bucket(self, key: Key, limit: int, now_ms: int) -> Bucket:
        if limit <= 0:
            return Bucket(0, now_ms)  # nothing ever lies ready; admission refuses any cost
        kept = self._buckets.get(key)
        return kept[0] if kept else full(Rate.of(limit), now_ms)

    def _store(self, key: Key, bucket: Bucket, rate: Rate, now_ms: int) -> None:
        if key not in self._buckets:
            reset_ms = headroom(bucket, rate, now_ms).reset_ms
            heapq.heappush(self._full_at, (now_ms + reset_ms, key))
        self._buckets[key] = (bucket, rate)

    def _give(self, key: Key, limit: int, tokens: int, now_ms: int) -> None:
        if tokens and (kept := self._buckets.get(key)):  # dropped: it is full already
            rate = Rate.of(limit)
            self._buckets[key] = (give(kept[0], rate, tokens, now_ms), rate)

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

    def _headroom(self, scopes: tuple[ScopeLimits, ...], now_ms: int) -> Headroom:
        requests: list[Window] = []
        tokens: list[Window] = []
        for scope in scopes:
            for name, limit, _ in _costs(scope.limits, None):
                bucket = self._bucket((scope.scope, scope.id, name), limit, now_ms)
                window = (
                    headroom(bucket, Rate.of(limit), now_ms) if limit > 0 else Window(limit, 0, 0)
                )
                (requests if name == "rpm" else tokens).append(window)
        return Headroom(_tightest(requests), _tightest(tokens))


def _costs(limits: Limits, ask: TempoAsk | None) -> Iterator[tuple[str, int, int]]:
    """Name, limit, and what `ask` draws, of each rate that is limited."""
    for name, limit, cost in (
        ("rpm", limits.rpm, 1),
        ("input_tpm", limits.input_tpm, ask.input_tokens if ask else 0),
        ("output_tpm", limits.output_tpm, ask.output_tokens if ask else 0),
    ):
        if limit is not None:
            yield name, limit, cost


def _tightest(windows: list[Window]) -> Window | None:
    return min(windows, key=lambda window: (window.remaining, window.limit), default=None)
