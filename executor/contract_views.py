"""What is seen of an executor: counts of the whole, and who is here (a part of `contract`, which shows it)."""

from __future__ import annotations

from typing import Final

import msgspec


class Gauges(msgspec.Struct, frozen=True, kw_only=True):
    """The executor at one instant, for metrics and the leak checks of the tests."""

    running: int = 0
    waiting: int = 0
    blocks_total: int = 0
    blocks_free: int = 0
    steps: int = 0
    step_ns: int = 0  # measured, cumulative
    busy_ns: int = 0  # attributed to requests, cumulative
    overhead_ns: int = 0  # step_ns − busy_ns: recompute, wrong guesses and the like
    preemptions: int = 0
    prompt_tokens: int = 0  # cumulative
    generated_tokens: int = 0
    drafted_tokens: int = 0  # guesses that were run, cumulative
    accepted_tokens: int = 0  # of these, what was then sampled
    pool_blocks: int = 0  # set aside for kept prefixes
    kept_blocks: int = 0  # in use of these
    pinned_blocks: int = 0  # of these, what was registered
    cache_hits: int = 0  # blocks that were taken instead of computed, cumulative
    cache_misses: int = 0  # that might have been
    cache_evictions: int = 0
    cache_mismatches: int = 0  # found, and not what they should be: an alarm


LANES_MAX: Final = 256


class ClassSum(msgspec.Struct, frozen=True, kw_only=True):
    """All that is here of a class of work.  `used`: its part of the device time of about the last minute;
    `oldest_ms`: how long the one waits that waits longest."""

    workload: str
    running: int
    waiting: int
    blocks: int
    used: float
    oldest_ms: int


class Lane(ClassSum, frozen=True, kw_only=True):
    """A tenant in a class of work.  `due`: what is due to the tenant by weight among those who are here, in
    all its classes together."""

    tenant: str
    due: float


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """What one `Look` sees, of `tenant` or (None) of all: those with most waiting first, `left_out` of
    them not named because there are more than `LANES_MAX`.  The sums count those too.  `lag_max`: how far
    the tenant that waits and is furthest behind its due part is behind it."""

    tenant: str | None = None
    lanes: tuple[Lane, ...] = ()
    left_out: int = 0
    classes: tuple[ClassSum, ...] = ()
    lag_max: float = 0.0
