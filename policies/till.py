"""How much of a budget is set aside for its till, and which draws from it still count.

Refuses to know: where either is kept, budgets' windows, clocks (µs since 1970 are an argument).
Source: MONEY.md §1 ("Two enforcement modes", "Crash recovery").

Theory of operation.  A till is a promise kept elsewhere, which may be lost, or come back as it was an hour
ago.  So it decides nothing by itself: a draw counts where it is of the present epoch and what is set aside
covers it, and else is void, as if nobody had drawn.  To take back what is set aside, whatever became of the
till, is to begin a new epoch.  `issued` only grows within an epoch, so that a word about it can be lost,
repeated, or overtaken by the next.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

NANO_USD_BELOW = 9_000_000_000_000_000
"""A till counts in doubles, which are exact up to 2^53 (about 9.007e15)."""
PART = 16
"""A fill is at most this part of the limit, and half of what is left: near its end a budget is strict."""
SETTLE_US = 1_000_000
"""A till that is missing so soon after it was begun has not heard of it yet."""
STALE_US = 60_000_000
"""Of an older till, what is set aside and cannot be drawn was lost on the way, and is taken back."""


@dataclass(frozen=True, slots=True)
class Float:
    """What a window has set aside.  `issued`: all that was, in this epoch.  Epoch 0: never anything."""

    epoch: int = 0
    nano_usd: int = 0
    issued: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """What a request found in a till: epoch 0 where there is none, `drawn` 0 where it held too little."""

    epoch: int = 0
    issued: int = 0
    drawn_nano_usd: int = 0


def covers(kept: Float, seen: Seen) -> bool:
    """Whether what was drawn is there."""
    return seen.epoch == kept.epoch and 0 < seen.drawn_nano_usd <= kept.nano_usd


def over_issued(kept: Float, seen: Seen) -> bool:
    """The till gives what it does not have: it was restored to an earlier state."""
    return seen.epoch == kept.epoch and seen.drawn_nano_usd > kept.nano_usd


def journalled(kept: Float, drawn_nano_usd: int) -> Float:
    """A draw becomes a hold."""
    assert drawn_nano_usd <= kept.nano_usd
    return replace(kept, nano_usd=kept.nano_usd - drawn_nano_usd)


def recalled(kept: Float, now_us: int) -> Float:
    """Everything back to the budget.  An epoch is never used twice, also where its row was lost: it is
    the time at which it began, and in any case later than the one before."""
    return Float(max(kept.epoch + 1, now_us))


def filled(kept: Float, seen: Seen, limit: int, room: int, least: int, now_us: int) -> Float:
    """After something was held for which nothing could be drawn: with `room` left in the budget beside
    what is set aside.  Less than `least` would not serve even the next of its kind."""
    size = min(limit // PART, (room + kept.nano_usd) // 2)
    if size < max(1, least) or limit >= NANO_USD_BELOW:
        return kept
    age_us = now_us - kept.epoch
    if seen.epoch != kept.epoch or not kept.epoch:
        begin = kept.issued == 0 or age_us >= SETTLE_US
    elif seen.issued < kept.issued:
        begin = False  # filled meanwhile
    elif 2 * kept.nano_usd <= size and kept.issued + size < NANO_USD_BELOW:
        more = size - kept.nano_usd
        return Float(kept.epoch, kept.nano_usd + more, kept.issued + more)
    else:
        begin = age_us >= STALE_US
    return replace(recalled(kept, now_us), nano_usd=size, issued=size) if begin else kept
