"""A token bucket in exact integers: spend, give back, or say to the millisecond when to come back.

Refuses to know: whose bucket it is, what a token stands for, what time it is.
Source: SCHEDULER.md §1 (the GCRA bound: tokens in any window Δ ≤ burst + rate·Δ).

Theory of operation.  Plans speak of tokens a minute and clocks of milliseconds, so the level is kept
in parts, 60,000 to the token: a rate of r tokens a minute refills exactly r parts a millisecond,
and nothing is ever rounded.  An absent bucket is a full one, which is why idle buckets can be dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

from policies.verdict import Allow, Deny, Reason

PARTS = 60_000
"""Parts of one token: tokens a minute, times milliseconds, are parts."""

PER_MINUTE_MAX = 75_000_000_000
"""The largest limit.  A full bucket is below 2^52 parts, and with a minute's refill below 2^53: whoever
counts in doubles counts exactly (tenants/tempo/scripts)."""


@dataclass(frozen=True, slots=True)
class Rate:
    """`per_minute` refills, `burst` is the most that can lie ready."""

    per_minute: int
    burst: int

    def __post_init__(self) -> None:
        assert self.per_minute > 0
        assert self.burst > 0

    @classmethod
    def of(cls, per_minute: int) -> Rate:
        """A plan's number: a minute's worth may be taken at once."""
        return cls(per_minute, per_minute)


@dataclass(frozen=True, slots=True)
class Bucket:
    """What lay ready at `at_ms`."""

    parts: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Window:
    """A bucket as its owner may see it.  `reset_ms`: until it is full again, left alone."""

    limit: int
    remaining: int
    reset_ms: int


def full(rate: Rate, now_ms: int) -> Bucket:
    return Bucket(rate.burst * PARTS, now_ms)


def refill(bucket: Bucket, rate: Rate, now_ms: int) -> Bucket:
    """A clock stepping back refills nothing; a lowered burst cuts at once."""
    at_ms = max(now_ms, bucket.at_ms)
    earned = (at_ms - bucket.at_ms) * rate.per_minute
    return Bucket(min(rate.burst * PARTS, bucket.parts + earned), at_ms)


def take(
    bucket: Bucket, rate: Rate, cost: int, now_ms: int, reason: Reason = Reason.RATE_REQUESTS
) -> Allow[Bucket] | Deny:
    """Spend `cost` tokens, or say when to come back.  Twin: tenants/tempo/scripts/admit.lua."""
    assert 0 <= cost <= rate.burst  # limits.py has refused the rest
    ready = refill(bucket, rate, now_ms)
    left = ready.parts - cost * PARTS
    if left >= 0:
        return Allow(Bucket(left, ready.at_ms))
    # Where the clock stepped back, refilling starts only once it has caught up with the bucket.
    wait_ms = -(left // rate.per_minute) + (ready.at_ms - now_ms)
    return Deny(reason, retry_after_ms=wait_ms, limit=rate.per_minute, asked=cost)


def give(bucket: Bucket, rate: Rate, tokens: int, now_ms: int) -> Bucket:
    """Return what was taken and not used; never above the burst."""
    assert tokens >= 0
    ready = refill(bucket, rate, now_ms)
    return Bucket(min(rate.burst * PARTS, ready.parts + tokens * PARTS), ready.at_ms)


def headroom(bucket: Bucket, rate: Rate, now_ms: int) -> Window:
    """Whole tokens that could be taken now."""
    ready = refill(bucket, rate, now_ms)
    lacking = rate.burst * PARTS - ready.parts
    wait_ms = -(-lacking // rate.per_minute) + (ready.at_ms - now_ms if lacking else 0)
    return Window(rate.per_minute, ready.parts // PARTS, wait_ms)
