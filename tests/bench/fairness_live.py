"""The experiments that can be told on the CPU engine itself, lengths an eighth of the published ones,
rates as multiples of what the machine does; first come first served, token counters and ours, in turn.

    E2  an aggressor at ten times its share; the victim alone; the aggressor held to its share
    E3  rates 1 : 2 : 6          E5  the 27-tenant trace, squeezed to 1.2 times the capacity
    E8  a long prompt among streams          E12  cancels          E13  critical work on a full house
    batching  continuous, dynamic and static, one workload

The bars are those of SCHEDULER.md §3 and DESIGN.md, settled question 10.
Refuses to know: options, printing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import median
from typing import Final

from executor.batch import Runner
from executor.contract import Workload
from executor.cost import StepTimes
from executor.scheduler.batching import ALWAYS, Batching, BatchRule
from executor.scheduler.protocol import Limits, Scheduler
from executor.sequence import Sequence as Seq
from executor.settings import Policy, Settings, engine_limits, scheduler_of
from executor.simulation.experiments import mean, of_tenants, pauses_s, tail, ttfts_s
from executor.simulation.metrics_requests import in_flight_alone
from executor.simulation.outcome import Outcome, Run
from executor.simulation.traces import read
from executor.simulation.work import NS, Request
from executor.simulation.workloads import even, merged, poisson
from tests.bench.live import Live

ROWS: Final = 16
SHAPE: Final = (32, 32)  # prompt and answer, 256 and 256 of the papers by eight
ITL_MS: Final = 80
INTERACTIVE: Final = Workload(name="interactive", itl_ms=ITL_MS)
BATCH: Final = Workload(name="batch", weight=None, floor=0.05)
CRITICAL: Final = Workload(name="critical", reserved=0.2, itl_ms=ITL_MS)
USUAL: Final = (INTERACTIVE, BATCH)
RESERVED: Final = (*USUAL, CRITICAL)  # whose rows are kept free: only where somebody may use them
STEP_BOUND_S: Final = ITL_MS / 1000


@dataclass(frozen=True, slots=True)
class Bar:
    what: str
    holds: bool | None  # None: it cannot be said here


@dataclass(frozen=True, slots=True)
class Result:
    """Figures by policy."""

    name: str
    what: str
    figures: Mapping[str, Mapping[str, float]]
    bars: Sequence[Bar]


class Bench:
    """One machine with one model: what it can, and runs on it."""

    def __init__(
        self, runner: Runner, seconds: float, repeat: int, say: Callable[[str], None]
    ) -> None:
        self._runner = runner
        self.repeat = repeat
        self._say = say
        self.seconds = seconds
        self.times = StepTimes()  # goes on learning from run to run
        self.settings = Settings(seqs_max=ROWS, speculation=False, waiting_max=100_000)
        self.per_s = 0.0

    def limits(self, classes: tuple[Workload, ...], rule: BatchRule) -> Limits:
        limits = engine_limits(self._runner, self.settings)
        return replace(limits, workloads=classes, batching=rule)

    def compare(
        self,
        policies: Sequence[Policy],
        requests: Sequence[Request],
        figures: Callable[[Run], dict[str, float]],
    ) -> dict[str, dict[str, float]]:
        """Each policy so often, in turns; the median of each figure."""
        seen: dict[str, list[dict[str, float]]] = {policy: [] for policy in policies}
        for number in range(self.repeat):
            for policy in policies if number % 2 == 0 else reversed(policies):
                run, _ = self.run(policy, requests)
                seen[policy].append(figures(run))
        return {
            policy: {name: median(each[name] for each in found) for name in found[0]}
            for policy, found in seen.items()
        }

    def measure(self) -> None:
        """Requests of the usual shape that the machine finishes in a second, when it is full."""
        self.run(Policy.FCFS, flood("a", ROWS), 60)
        run, _ = self.run(Policy.FCFS, flood("a", 6 * ROWS), 60)
        self.per_s = len(run.outcomes) / (run.end_ns / NS)

    def run(
        self,
        policy: Policy,
        requests: Sequence[Request],
        until_s: float | None = None,
        *,
        rule: BatchRule = ALWAYS,
        classes: tuple[Workload, ...] = USUAL,
    ) -> tuple[Run, Live]:
        scheduler: Scheduler[Seq] = scheduler_of(policy, self.limits(classes, rule))
        settings = replace(self.settings, batching=rule)
        live = Live(self._runner, scheduler, settings, classes, times=self.times)
        run = live.play(requests, self.seconds if until_s is None else until_s)
        self._say(f"  {policy}: {len(run.outcomes)} requests in {run.end_ns / NS:.0f} s")
        return run, live


def flood(tenant: str, count: int, prompt: int = SHAPE[0], output: int = SHAPE[1]) -> list[Request]:
    return [usual(Request(0, tenant, prompt, output)) for _ in range(count)]


def usual(request: Request, workload: str = "interactive") -> Request:
    """Clients allow four times what will be said."""
    allowed = max(4 * SHAPE[1], request.output_tokens)
    return replace(request, max_new_tokens=allowed, workload=request.workload or workload)


def at_rate(tenant: str, per_s: float, seconds: float, seed: int) -> list[Request]:
    lengths = {"prompt": (SHAPE[0],) * 2, "output": (SHAPE[1],) * 2}
    return [usual(each) for each in poisson(tenant, per_s, seconds, Random(seed), **lengths)]


def tokens_per_s(run: Run) -> float:
    return sum(each.prompt + each.output for each in run.service) / (run.end_ns / NS)


def common(run: Run, of: Sequence[Outcome]) -> dict[str, float]:
    """TTFTs of those who never heard a token count as until the end of the run."""
    late = [(run.end_ns - each.request.at_ns) / NS for each in of if not each.times_ns]
    waits = [*ttfts_s(of), *late]
    return {
        "ttft_mean_s": mean(waits),
        "ttft_p99_s": tail(waits),
        "itl_p99_ms": tail(pauses_s(of)) * 1000,
        "tokens_per_s": tokens_per_s(run),
        "recomputed": run.recomputed_part,
    }


def e2(bench: Bench, policies: Sequence[Policy]) -> Result:
    share = bench.per_s / 2
    victim = at_rate("victim", share / 4, bench.seconds, 1)  # in bursts still within its share
    aggressor = at_rate("aggressor", 10 * share, bench.seconds, 2)
    held = at_rate("aggressor", share, bench.seconds, 3)
    alone, _ = bench.run(Policy.FAIR, victim)
    tame, _ = bench.run(Policy.FAIR, merged([victim, held]))
    solo = common(alone, alone.outcomes)
    calm = common(tame, of_tenants(tame, ["victim"]))
    found = {"alone": solo, "held": calm}
    found |= bench.compare(
        policies,
        merged([victim, aggressor]),
        lambda run: common(run, of_tenants(run, ["victim"])),
    )
    return Result(
        "E2",
        "an aggressor offers ten times its share; what its victim, at a quarter of its own, feels",
        found,
        [
            bar(
                found,
                f"p99 of the first token ≤ 1.2 times alone and two steps of {ITL_MS} ms",
                lambda us: us["ttft_p99_s"] <= 1.2 * solo["ttft_p99_s"] + 2 * STEP_BOUND_S,
            ),
            bar(
                found,
                f"p99 between tokens ≤ {ITL_MS} ms",
                lambda us: us["itl_p99_ms"] <= ITL_MS,
            ),
            bar(
                found,
                "p99 between tokens ≤ 1.2 times with the aggressor held to its share",
                lambda us: us["itl_p99_ms"] <= 1.2 * calm["itl_p99_ms"],
            ),
            throughput(found, 0.95),
            bar(found, "recomputed ≤ 5 %", lambda us: us["recomputed"] <= 0.05),
        ],
    )


def e3(bench: Bench, policies: Sequence[Policy]) -> Result:
    unit = 1.5 * bench.per_s / 9
    parts = [at_rate(f"t{n}", n * unit, bench.seconds, n) for n in (1, 2, 6)]
    alone, _ = bench.run(Policy.FAIR, parts[0])
    solo = common(alone, alone.outcomes)
    found = {"alone": solo}
    found |= bench.compare(
        policies, merged(parts), lambda run: common(run, of_tenants(run, ["t1"]))
    )
    return Result(
        "E3",
        "rates 1 : 2 : 6 at 1.5 times the capacity; what the lightest feels",
        found,
        [
            bar(
                found,
                "mean first token ≤ 1.5 times alone",
                lambda us: us["ttft_mean_s"] <= 1.5 * solo["ttft_mean_s"],
            ),
            throughput(found, 0.97),
        ],
    )


def e5(bench: Bench, policies: Sequence[Policy], trace: Path) -> Result:
    arrivals = [
        usual(
            Request(
                round(each.at_s * NS),
                each.tenant,
                max(1, each.prompt_tokens // 8),
                max(1, each.output_tokens // 8),
            )
        )
        for each in read(trace)
    ]
    work = sum(each.prompt_tokens + each.output_tokens for each in arrivals)
    whole_s = work / (1.2 * bench.per_s * sum(SHAPE))
    squeeze = whole_s / (arrivals[-1].at_ns / NS)
    arrivals = [replace(each, at_ns=round(each.at_ns * squeeze)) for each in arrivals]
    arrivals = [each for each in arrivals if each.at_ns <= bench.seconds * NS]
    found: dict[str, dict[str, float]] = {}
    for policy in policies:
        run, _ = bench.run(policy, arrivals, 3 * bench.seconds)
        first = [each.ttft_s for each in in_flight_alone(run.records) if each.ttft_s is not None]
        found[policy] = {
            **common(run, run.outcomes),
            "alone_p99_s": tail(first),
            "alone_mean_s": mean(first),
        }
    return Result(
        "E5",
        "the 27-tenant trace at 1.2 times the capacity; first token of who has nothing else in flight",
        found,
        [
            Bar(
                "p99 of who has nothing in flight ≤ a tenth of the counters' (a bar of the simulation)",
                found[Policy.FAIR]["alone_p99_s"] <= found[Policy.VTC]["alone_p99_s"] / 10
                if {Policy.FAIR, Policy.VTC} <= found.keys()
                else None,
            ),
            throughput(found, 0.95),
        ],
    )


def e8(bench: Bench, policies: Sequence[Policy]) -> Result:
    """Eight streams, and a prompt of 2,048 tokens of another tenant every so often."""
    each_s = bench.seconds / 4
    streams = [usual(each) for n in range(8) for each in stream(f"s{n}", bench.seconds)]
    longs = [usual(Request(round((n + 0.5) * each_s * NS), "long", 2048, 4)) for n in range(4)]
    quiet, _ = bench.run(Policy.FAIR, streams)
    free, _ = bench.run(Policy.FAIR, longs)
    solo = common(quiet, quiet.outcomes)
    unhindered_s = mean(ttfts_s(free.outcomes))
    found: dict[str, dict[str, float]] = {"alone": {**solo, "long_s": unhindered_s}}
    for policy in policies:
        run, _ = bench.run(policy, merged([streams, longs]))
        others = of_tenants(run, [f"s{n}" for n in range(8)])
        found[policy] = {
            **common(run, others),
            "itl_max_ms": max(pauses_s(others), default=0.0) * 1000,
            "long_s": mean(ttfts_s(of_tenants(run, ["long"]))),
        }
    return Result(
        "E8",
        "a prompt of 2,048 tokens among eight streams; what the streams feel",
        found,
        [
            bar(
                found,
                f"p99 between tokens ≤ max(twice alone, {ITL_MS} ms)",
                lambda us: us["itl_p99_ms"] <= max(2 * solo["itl_p99_ms"], ITL_MS),
            ),
        ],
    )


def batches(bench: Bench, policies: Sequence[Policy]) -> Result:
    """The same requests, of all lengths, at half of what the machine can do."""
    rng = Random(6)
    asked = [
        replace(each, output_tokens=rng.randint(4, 2 * SHAPE[1]))
        for each in at_rate("a", bench.per_s / 2, bench.seconds, 7)
    ]
    found: dict[str, dict[str, float]] = {}
    for kind in Batching:
        rule = BatchRule(kind, size=ROWS, wait_ms=100)
        run, _ = bench.run(Policy.FAIR, asked, 4 * bench.seconds, rule=rule)
        whole = [(each.ended_ns - each.request.at_ns) / NS for each in run.outcomes]
        found[kind] = {
            **common(run, run.outcomes),
            "whole_p50_s": tail(whole, 50),
            "whole_p99_s": tail(whole),
            "rows_a_step": run.rows / max(1, run.steps),
            "until_s": run.end_ns / NS,
        }
    us, them = found[Batching.CONTINUOUS], found[Batching.STATIC]
    return Result(
        "batching",
        "when newcomers may join: the same requests at half the capacity",
        found,
        [
            Bar(
                "continuous waits least, and its whole answers come first",
                us["ttft_p99_s"] < them["ttft_p99_s"] and us["whole_p99_s"] < them["whole_p99_s"],
            )
        ],
    )


def stream(tenant: str, seconds: float) -> list[Request]:
    """One after another, each long enough to be decoding when a prompt comes."""
    return even(tenant, 1 / 3, seconds, prompt=SHAPE[0], output=96, phase=0.1)


def e12(bench: Bench, policies: Sequence[Policy]) -> Result:
    rng = Random(5)
    asked = [
        replace(each, cancel_ns=round(rng.uniform(0, 2) * NS)) if rng.random() < 0.3 else each
        for each in at_rate("a", bench.per_s, bench.seconds, 4)
    ]
    found: dict[str, dict[str, float]] = {}
    for policy in policies:
        run, live = bench.run(policy, asked)
        found[policy] = {
            **common(run, run.outcomes),
            "cancelled": len(live.cancel_steps),
            "steps_to_free_max": max(live.cancel_steps, default=0),
        }
    return Result(
        "E12",
        "three in ten hang up at a random moment; blocks are counted at the end",
        found,
        [
            bar(
                found,
                "gone within the step that hears of it",
                lambda us: us["steps_to_free_max"] <= 1 and us["cancelled"] > 0,
            )
        ],
    )


def e13(bench: Bench, policies: Sequence[Policy]) -> Result:
    full = [
        replace(each, workload="batch")
        for each in flood("nightly", round(3 * bench.per_s * bench.seconds))
    ]
    bursts = [
        usual(Request(round((2 + 3 * n) * NS), "ops", *SHAPE, workload="critical"))
        for n in range(max(1, round(bench.seconds / 3) - 1))
        for _ in range(2)
    ]
    alone, _ = bench.run(Policy.FAIR, bursts, classes=RESERVED)
    solo = common(alone, alone.outcomes)
    found: dict[str, dict[str, float]] = {"alone": solo}
    for policy in policies:
        run, _ = bench.run(policy, merged([full, bursts]), classes=RESERVED)
        batch = sum(each.device_ns for each in run.service if each.tenant == "nightly")
        found[policy] = {
            **common(run, of_tenants(run, ["ops"])),
            "batch_part": batch / max(1, run.busy_ns),
        }
    return Result(
        "E13",
        "critical work on a house that batch has filled",
        found,
        [
            bar(
                found,
                f"p99 of the first token ≤ alone and two steps of {ITL_MS} ms",
                lambda us: us["ttft_p99_s"] <= solo["ttft_p99_s"] + 2 * STEP_BOUND_S,
            ),
            bar(found, "batch has its floor of 5 %", lambda us: us["batch_part"] >= 0.05),
        ],
    )


def bar(
    found: Mapping[str, Mapping[str, float]],
    what: str,
    holds: Callable[[Mapping[str, float]], bool],
) -> Bar:
    """For what we serve with."""
    us = found.get(Policy.FAIR)
    return Bar(what, None if us is None else holds(us))


def throughput(found: Mapping[str, Mapping[str, float]], part: float) -> Bar:
    them = found.get(Policy.FCFS)
    return bar(
        found if them is not None else {},
        f"throughput ≥ {part:.0%} of first come first served",
        lambda us: us["tokens_per_s"] >= part * (them or us)["tokens_per_s"],
    )
