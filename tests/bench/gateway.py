"""What a gateway costs a request, and by how much it is later: one subject's round, and the bars.

A round: closed loop at growing concurrency until it serves no more (requests per CPU-second), then open
loop at fixed rates (latency), then the book beside what clients received.  A rate that the subject cannot
serve is left out and said to be: its latency is that of a queue which grows for ever.
CPU is that of the subject's own processes, user and system; what stands behind it is not counted.  Added
latency is what a client waited less what the fake behind the subject takes by itself, which is constant.
Refuses to know: which subjects there are, printing.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass

from tests.bench.admin import Admin, Used, until_idle
from tests.bench.arrivals import Job, Seen, seen_apart
from tests.bench.figures import percentile
from tests.bench.ledger import Verdict, compare

P50_MS_MAX, P99_MS_MAX, BAR_PER_S = 3.0, 15.0, 100.0
CPU_MS_MAX = 2.0
PEER_TIMES_MIN = 8.0
SYNCS = 3
"""Durable writes for which a request waits, one after the other: hold, settlement, audit."""
SERVED_PART = 0.85
"""Of what it serves at most: above, the queue and not the gateway is measured."""
WARM_S, IDLE_S_MAX = 2.0, 30.0


@dataclass(frozen=True, slots=True)
class Ask:
    rates_per_s: tuple[float, ...] = (20.0, 100.0)
    concurrencies: tuple[int, ...] = (8, 32, 64)
    seconds: float = 8.0
    full_s: float = 4.0
    seed: str = "bench"


@dataclass(frozen=True, slots=True)
class Subject:
    """`cpu_s`: what its processes have used so far.  `admin` None: it keeps no book to be compared."""

    name: str
    url: str
    tokens: tuple[str, ...]
    bodies: tuple[str, ...]
    constant_ms: float
    cpu_s: Callable[[], float]
    admin: Admin | None = None


@dataclass(frozen=True, slots=True)
class Full:
    """As much as it serves."""

    concurrency: int
    per_s: float
    cpu_ms: float

    @property
    def per_cpu_s(self) -> float:
        return 1000 / self.cpu_ms if self.cpu_ms else float("inf")


@dataclass(frozen=True, slots=True)
class Rate:
    """One arrival rate.  Latencies are added ones; `late_p99_ms` is the load generator's own part."""

    per_s: float
    requests: int
    p50_ms: float
    p99_ms: float
    cpu_ms: float
    late_p99_ms: float


@dataclass(frozen=True, slots=True)
class Round:
    full: Full
    rates: tuple[Rate, ...]
    left_out: tuple[float, ...]
    errors: tuple[str, ...]
    verdict: Verdict | None


@dataclass(frozen=True, slots=True)
class Disk:
    """Milliseconds of one durable write, and of `SYNCS` in turn."""

    one_p50: float
    one_p99: float
    line_p50: float
    line_p99: float


@dataclass(frozen=True, slots=True)
class Bar:
    name: str
    value: float
    most: float | None = None
    least: float | None = None

    @property
    def holds(self) -> bool:
        above = self.least is None or self.value >= self.least
        return above and (self.most is None or self.value <= self.most)


async def one_round(subject: Subject, ask: Ask, number: int) -> Round:
    admin = subject.admin
    status = await admin.status() if admin else None
    before = await admin.usage() if admin else None
    everything: list[Seen] = []

    async def run(name: str, **how: float | int) -> tuple[Seen, float]:
        cpu_s = subject.cpu_s()
        seen = await seen_apart(
            Job(
                url=subject.url,
                tokens=subject.tokens,
                bodies=subject.bodies,
                seed=f"{ask.seed}/{number}/{name}",
                **how,  # type: ignore[arg-type]
            )
        )
        everything.append(seen)
        return seen, (subject.cpu_s() - cpu_s) * 1000 / max(1, seen.whole)

    await run("warm", seconds=WARM_S, concurrency=ask.concurrencies[0])
    fulls = []
    for concurrency in ask.concurrencies:
        seen, cpu_ms = await run(f"full/{concurrency}", seconds=ask.full_s, concurrency=concurrency)
        fulls.append(Full(concurrency, seen.whole / seen.wall_s, cpu_ms))
    full = max(fulls, key=lambda each: each.per_s)
    served = [rate for rate in ask.rates_per_s if rate <= full.per_s * SERVED_PART]
    rates = []
    for rate in served:
        seen, cpu_ms = await run(f"rate/{rate}", seconds=ask.seconds, rate_per_s=rate)
        rates.append(rate_of(rate, seen, cpu_ms, subject.constant_ms))
    verdict = None
    errors = tuple(error for seen in everything for error in seen.errors)
    if admin is not None and before is not None and status is not None:
        _, left = await until_idle(admin, idle_tasks=status.tasks, deadline_s=IDLE_S_MAX)
        billed = (await admin.usage()).since(before)
        verdict = compare(received(everything), billed, left, broken=errors)
    left_out = tuple(rate for rate in ask.rates_per_s if rate not in served)
    return Round(full, tuple(rates), left_out, errors, verdict)


def rate_of(per_s: float, seen: Seen, cpu_ms: float, constant_ms: float) -> Rate:
    """Of all that should have been sent; nothing that failed or waited is left out."""
    return Rate(
        per_s=per_s,
        requests=seen.requests,
        p50_ms=(percentile(seen.took_ms, 50) or 0.0) - constant_ms,
        p99_ms=(percentile(seen.took_ms, 99) or 0.0) - constant_ms,
        cpu_ms=cpu_ms,
        late_p99_ms=percentile(seen.late_ms, 99) or 0.0,
    )


def received(everything: Sequence[Seen]) -> Used:
    return Used(
        requests=sum(seen.whole for seen in everything),
        input_tokens=sum(seen.input_tokens for seen in everything),
        output_tokens=sum(seen.output_tokens for seen in everything),
    )


def summary(rounds: Sequence[Round]) -> Round:
    """The median of each figure, of rates that every round served; the first ledger that does not hold."""

    def middle(read: Callable[[Round], float]) -> float:
        return statistics.median(read(each) for each in rounds)

    last = rounds[-1]
    verdicts = [each.verdict for each in rounds if each.verdict is not None]
    found = [{rate.per_s: rate for rate in each.rates} for each in rounds]
    common = [rate for rate in found[0] if all(rate in each for each in found)]
    return Round(
        full=Full(
            last.full.concurrency,
            middle(lambda each: each.full.per_s),
            middle(lambda each: each.full.cpu_ms),
        ),
        rates=tuple(_middle([each[rate] for each in found]) for rate in common),
        left_out=tuple(sorted({rate for each in rounds for rate in each.left_out})),
        errors=tuple(error for each in rounds for error in each.errors),
        verdict=min(verdicts, key=lambda each: each.holds, default=None),
    )


def _middle(rates: Sequence[Rate]) -> Rate:
    per_s, requests, *others = map(statistics.median, zip(*map(astuple, rates), strict=True))
    return Rate(per_s, int(requests), *others)


def bars(ours: Round, peer: Round | None, disk: Disk) -> tuple[Bar, ...]:
    """Issue 6's.  Latency beyond the durable writes of one request, at `BAR_PER_S`."""
    found = [Bar("CPU ms a request at saturation", ours.full.cpu_ms, most=CPU_MS_MAX)]
    at = next((rate for rate in ours.rates if rate.per_s == BAR_PER_S), None)
    if at is None:
        found.append(Bar("requests/s", ours.full.per_s, least=BAR_PER_S / SERVED_PART))
    else:
        found += [
            Bar("p50 added ms beyond the disk", at.p50_ms - disk.line_p50, most=P50_MS_MAX),
            Bar("p99 added ms beyond the disk", at.p99_ms - disk.line_p99, most=P99_MS_MAX),
        ]
    if peer is not None:
        times = ours.full.per_cpu_s / peer.full.per_cpu_s
        found.append(Bar("times the peer's requests per CPU-second", times, least=PEER_TIMES_MIN))
    return tuple(found)
