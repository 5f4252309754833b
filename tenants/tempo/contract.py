"""What a tempo is asked and what it says, whichever keeps it (tests/twins is the table of both).

Refuses to know: money, HTTP, what a plan is, where buckets are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from policies.admission import Draw, Seat
from policies.outage import Trouble
from policies.rate import Bucket, Rate, Window, headroom
from policies.verdict import Allow, Deny
from tenants.scopes import ScopeLimits

LEASE_MS = 60_000


@dataclass(frozen=True, slots=True)
class TempoAsk:
    """`output_tokens` over all choices: drawn in full, what was not used comes back.  `whole`: of a
    bucket that is too small for it, it takes all."""

    request_id: str
    tenant: str
    scopes: tuple[ScopeLimits, ...]
    input_tokens: int
    output_tokens: int
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Headroom:
    """The most constrained bucket of each kind; None where nothing limits it."""

    requests: Window | None
    tokens: Window | None


class Tempo(Protocol):
    """The same calls, the same answers, in memory and in Redis."""

    @property
    def leases(self) -> int:
        """Requests that this process has admitted and not ended; at rest none."""
        ...

    @property
    def trouble(self) -> Trouble | None:
        """Why limits are kept by this process alone, where they should be shared; else None."""
        ...

    async def admit(self, ask: TempoAsk) -> Allow[Headroom] | Deny:
        """Everything or nothing.  Of one request id once: again, it is the first answer."""
        ...

    async def refund(self, request_id: str) -> None:
        """A later step refused: everything back, as if never asked."""
        ...

    async def release(self, request_id: str, output_tokens_used: int) -> None:
        """The request ended: its leases are free, unused output tokens come back."""
        ...

    async def renew(self, request_ids: Iterable[str]) -> tuple[str, ...]:
        """Keep leases; returns those that had lapsed or were never taken."""
        ...

    async def headroom(self, tenant: str, scopes: tuple[ScopeLimits, ...]) -> Headroom: ...


@dataclass(frozen=True, slots=True)
class Cost:
    """What one rate of one scope is asked for."""

    scope: ScopeLimits
    limit_name: str
    limit: int
    tokens: int

    def draw(self, bucket: Bucket) -> Draw:
        return Draw(self.scope.scope, self.limit_name, self.limit, self.tokens, bucket)


def costs(scopes: Iterable[ScopeLimits], ask: TempoAsk | None = None) -> Iterator[Cost]:
    """Every rate that is limited, in the order of the scopes; without an ask it costs nothing."""
    for scope in scopes:
        limits = scope.limits
        for name, limit, tokens in (
            ("rpm", limits.rpm, 1),
            ("input_tpm", limits.input_tpm, ask.input_tokens if ask else 0),
            ("output_tpm", limits.output_tpm, ask.output_tokens if ask else 0),
        ):
            if limit is not None:
                yield Cost(scope, name, limit, min(tokens, limit) if ask and ask.whole else tokens)


def unused(ask: TempoAsk, output_tokens_used: int) -> Iterator[Cost]:
    """What comes back of a request that ran: more used than drawn costs nothing more."""
    for cost in costs(ask.scopes, ask):
        if cost.limit_name == "output_tpm":
            yield replace(cost, tokens=max(0, cost.tokens - output_tokens_used))


def seated(scopes: Iterable[ScopeLimits]) -> Iterator[tuple[ScopeLimits, int]]:
    """The scopes that bound how many run at once."""
    for scope in scopes:
        if scope.limits.concurrent is not None:
            yield scope, scope.limits.concurrent


def seat(scope: ScopeLimits, limit: int, taken: int) -> Seat:
    return Seat(scope.scope, limit, taken)


def tightest(costs: Sequence[Cost], buckets: Iterable[Bucket], now_ms: int) -> Headroom:
    """As the caller may see it."""
    requests: list[Window] = []
    tokens: list[Window] = []
    for cost, bucket in zip(costs, buckets, strict=True):
        window = (
            headroom(bucket, Rate.of(cost.limit), now_ms)
            if cost.limit > 0
            else Window(cost.limit, 0, 0)
        )
        (requests if cost.limit_name == "rpm" else tokens).append(window)
    return Headroom(_least(requests), _least(tokens))


def _least(windows: list[Window]) -> Window | None:
    return min(windows, key=lambda window: (window.remaining, window.limit), default=None)
