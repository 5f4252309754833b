"""The tempo decision as a whole: every bucket and every seat, or nothing.

Refuses to know: where buckets are kept, who is asking.  Source: DESIGN.md ("tempo").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from policies.rate import Bucket, Rate, take
from policies.verdict import Allow, Deny, Reason

SEAT_RETRY_MS = 1_000
"""Nobody knows when a running answer ends; a second is long enough not to hammer."""

REASONS = {
    "rpm": Reason.RATE_REQUESTS,
    "input_tpm": Reason.RATE_INPUT_TOKENS,
    "output_tpm": Reason.RATE_OUTPUT_TOKENS,
}


@dataclass(frozen=True, slots=True)
class Draw:
    """`cost` tokens from one bucket.  `limit_name` is the plan's field: a key of `REASONS`."""

    scope: str
    limit_name: str
    limit: int
    cost: int
    bucket: Bucket


@dataclass(frozen=True, slots=True)
class Seat:
    """One more lease where `taken` are out and `limit` may be."""

    scope: str
    limit: int
    taken: int


def admit(
    draws: Sequence[Draw], seats: Sequence[Seat], now_ms: int
) -> Allow[tuple[Bucket, ...]] | Deny:
    """All new states, in the order of `draws`, or the most constraining refusal: what can never
    fit, else the longest wait, since by then the shorter ones have passed; the narrowest on a tie."""
    states: list[Bucket] = []
    denials: list[Deny] = []
    for draw in draws:
        verdict = _draw(draw, now_ms)
        if isinstance(verdict, Allow):
            states.append(verdict.value)
        else:
            denials.append(verdict)
    denials += [_full(seat) for seat in seats if seat.taken >= seat.limit]
    if denials:
        return max(denials, key=_constraint)
    return Allow(tuple(states))


def _draw(draw: Draw, now_ms: int) -> Allow[Bucket] | Deny:
    if draw.cost == 0:
        return Allow(draw.bucket)
    if draw.cost > draw.limit:
        # limits.size has refused this already, unless the plan was lowered in between.
        return _deny(draw, Reason.NEVER_FITS, None)
    reason = REASONS[draw.limit_name]
    verdict = take(draw.bucket, Rate.of(draw.limit), draw.cost, now_ms, reason)
    return _deny(draw, reason, verdict.retry_after_ms) if isinstance(verdict, Deny) else verdict


def _deny(draw: Draw, reason: Reason, wait_ms: int | None) -> Deny:
    return Deny(
        reason,
        retry_after_ms=wait_ms,
        limit=draw.limit,
        asked=draw.cost,
        scope=draw.scope,
        limit_name=draw.limit_name,
    )


def _full(seat: Seat) -> Deny:
    never = seat.limit <= 0
    return Deny(
        Reason.NEVER_FITS if never else Reason.CONCURRENCY,
        retry_after_ms=None if never else SEAT_RETRY_MS,
        limit=seat.limit,
        asked=1,
        scope=seat.scope,
        limit_name="concurrent",
    )


def _constraint(deny: Deny) -> tuple[bool, int]:
    return deny.reason is Reason.NEVER_FITS, deny.retry_after_ms or 0
