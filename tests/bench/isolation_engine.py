"""What labels cost an engine that runs a model: throughput with them and without, and the part of its time
that goes into wiping.

The same work every time, no prompt twice, so nothing is ever found: with labels all of it is keyed, looked for
in vain, kept and evicted; without, none of that is.  By turns, A B A B, medians.
Refuses to know: options, printing, servers.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from executor.batch import Runner
from executor.contract import Caching, Ended, Quota, Quotas, Scope, Submit
from executor.engine import Engine
from executor.keeper import Order
from executor.settings import POOL_PART, Settings
from policies.scope.context import Context
from tests.bench.stopwatch import ClockedRunner, Stopwatch

HOUR_MS = 3_600_000
ENOUGH_S = 120.0
"""On a machine that is busy otherwise fewer pairs are run, but two at least."""
PAIRS_LEAST = 2


@dataclass(frozen=True, slots=True)
class Work:
    requests: int = 8
    prompt_tokens: int = 256
    output_tokens: int = 32

    @property
    def tokens(self) -> int:
        return self.requests * (self.prompt_tokens + self.output_tokens)


@dataclass(frozen=True, slots=True)
class Cost:
    """Tokens a second, prompts and answers together, and the share of steps' time that wiping took.
    `processor`: time of all threads without labels over that with them; others' work moves it less."""

    pairs: int
    scoped_per_s: float
    plain_per_s: float
    processor: float
    wiping: float

    @property
    def ratio(self) -> float:
        return self.scoped_per_s / self.plain_per_s


class Wiping(ClockedRunner):
    def zero_blocks(self, blocks: Sequence[int]) -> None:
        self.watch.timed("wiping", self.inner.zero_blocks)(blocks)


def cost(runner: Runner, computes: Context | None, work: Work, pairs: int, seed: int) -> Cost:
    """`computes`: `executor.keeper.computes_with` of the model's card."""
    assert computes is not None
    random = Random(seed)
    _run(runner, computes, work, random, scoped=True)  # warms up
    scoped: list[_Ran] = []
    plain: list[_Ran] = []
    begun_s = time.perf_counter()
    for at in range(pairs):
        if at >= PAIRS_LEAST and time.perf_counter() - begun_s > ENOUGH_S:
            break
        scoped.append(_run(runner, computes, work, random, scoped=True))
        plain.append(_run(runner, computes, work, random, scoped=False))
    return Cost(
        len(scoped),
        statistics.median(each.per_s for each in scoped),
        statistics.median(each.per_s for each in plain),
        statistics.median(each.processor_s for each in plain)
        / statistics.median(each.processor_s for each in scoped),
        statistics.median(each.wiping for each in scoped),
    )


class _Ran(NamedTuple):
    per_s: float
    processor_s: float
    wiping: float


def _run(runner: Runner, computes: Context, work: Work, random: Random, *, scoped: bool) -> _Ran:
    inbox: list[tuple[int, Submit | Order]] = [
        (0, Quotas(quotas=(Quota(owner="a", part=1.0, pinned=0.0),)))
    ]
    inbox += [
        (0, _job(number, runner.vocab_size, work, random, scoped=scoped))
        for number in range(1, work.requests + 1)
    ]

    def taken() -> list[tuple[int, Submit | Order]]:
        found = inbox[:]
        inbox.clear()
        return found

    runner.zero_blocks(range(runner.kv_blocks))  # the engine before this one left what it kept
    watch = Stopwatch(time.perf_counter_ns)
    engine = Engine(
        Wiping(runner, watch),
        taken,
        clock_ns=time.monotonic_ns,
        settings=Settings(pool_part=POOL_PART, speculation=False),
        computes=computes,
    )
    begun, processor_s = time.perf_counter_ns(), time.process_time()
    ended = 0
    while ended < work.requests:
        for report in engine.step().values():
            ended += sum(isinstance(update, Ended) for update in report.updates)
    took_ns = time.perf_counter_ns() - begun
    processor_s = time.process_time() - processor_s
    assert not engine.gauges.cache_hits, "a prompt was found"
    assert bool(engine.gauges.kept_blocks) is scoped
    wiping = watch.take().get("wiping", 0) / took_ns
    return _Ran(work.tokens / took_ns * 1e9, processor_s, wiping)


def _job(number: int, vocab_size: int, work: Work, random: Random, *, scoped: bool) -> Submit:
    prompt = tuple(random.randrange(vocab_size) for _ in range(work.prompt_tokens))
    job = {
        "request": number,
        "prompt": prompt,
        "max_new_tokens": work.output_tokens,
        "share": (("a", 1.0), (f"a/{number}", 1.0)),
    }
    if scoped:
        label, key = random.randbytes(32), random.randbytes(32)
        job["caching"] = Caching(
            owner="a",
            context=bytes(32),
            scopes=(Scope(until=len(prompt), label=label, key=key),),
            snapshot=1,
            idle_ms=HOUR_MS,
            absolute_ms=HOUR_MS,
        )
    return Submit(**job)  # type: ignore[arg-type]  # as named above
