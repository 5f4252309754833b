"""When a server that others share is given up for a while, and what one process may allow without it.

Refuses to know: which server, connections, clocks.  Source: MONEY.md §1 (Outages), §5.

Theory of operation.  Closed, every request asks the server.  After a few failures in a row, or one by
which it says itself that it cannot, it is open: nobody asks, so nobody waits, and it is tried again now
and then, by one try for all, ever more seldom, until one works.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from policies.facts import Limits

FAILURES_MOST = 3
FIRST_PAUSE_MS = 500
LONGEST_PAUSE_MS = 5_000


class Trouble(StrEnum):
    """What is wrong with a server."""

    UNREACHABLE = "unreachable"
    SLOW = "slow"
    READ_ONLY = "read_only"
    OUT_OF_MEMORY = "out_of_memory"
    LOADING = "loading"
    MISCONFIGURED = "misconfigured"
    CLUSTER_DOWN = "cluster_down"
    REFUSED = "refused"  # our credentials, or rights
    WRONG = "wrong"  # it said what nobody expects


SAYS_SO = frozenset(
    {
        Trouble.READ_ONLY,
        Trouble.OUT_OF_MEMORY,
        Trouble.LOADING,
        Trouble.MISCONFIGURED,
        Trouble.CLUSTER_DOWN,
        Trouble.REFUSED,
    }
)
"""The server's own word: no second failure will tell more."""


@dataclass(frozen=True, slots=True)
class Breaker:
    """`failures` in a row; `trouble` None: closed; else not asked before `again_ms`."""

    failures: int = 0
    trouble: Trouble | None = None
    pause_ms: int = 0
    again_ms: int = 0


def failed(breaker: Breaker, trouble: Trouble, now_ms: int) -> Breaker:
    """A failure while open is of a try, or of a call that was under way: the pause grows by the former
    alone, since the latter come in crowds."""
    if breaker.trouble is not None:
        if now_ms < breaker.again_ms:
            return breaker
        pause_ms = min(2 * breaker.pause_ms, LONGEST_PAUSE_MS)
        return Breaker(breaker.failures, trouble, pause_ms, now_ms + pause_ms)
    failures = breaker.failures + 1
    if failures < FAILURES_MOST and trouble not in SAYS_SO:
        return replace(breaker, failures=failures)
    return opened(trouble, now_ms)


def opened(trouble: Trouble, now_ms: int) -> Breaker:
    return Breaker(FAILURES_MOST, trouble, FIRST_PAUSE_MS, now_ms + FIRST_PAUSE_MS)


def worked(breaker: Breaker, *, tried: bool) -> Breaker:
    """An answer.  Of a call that was under way when it opened it closes nothing: only a try does."""
    return breaker if breaker.trouble is not None and not tried else Breaker()


def due(breaker: Breaker, now_ms: int) -> bool:
    """Whether it is time to try an open one."""
    return breaker.trouble is not None and now_ms >= breaker.again_ms


def share(limits: Limits, processes: int) -> Limits:
    """One process's part of limits that `processes` share and cannot count together, rounded down; one
    request, seat or token at the least, or a small plan would be shut out."""
    assert processes > 0

    def part(limit: int | None) -> int | None:
        return limit if limit is None or limit <= 0 else max(1, limit // processes)

    return replace(
        limits,
        rpm=part(limits.rpm),
        input_tpm=part(limits.input_tpm),
        output_tpm=part(limits.output_tpm),
        concurrent=part(limits.concurrent),
    )
