"""What deciding a step costs: `plan` and the charges of a step, beside a full house.

    python -m tests.bench.schedule            # 256 run, 5,000 of 1,000 tenants wait

Median and p99 of a step in milliseconds for each policy, and what a newcomer or one that leaves costs in
microseconds.  Below: what the engine adds of its own for so many (telling places, splitting a step's
time).  No model runs.  Exit status 1 if the fair scheduler's median is over its bar.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
from collections.abc import Callable, Collection, Iterable
from collections.abc import Sequence as Seq
from random import Random
from time import perf_counter_ns
from typing import Final

from executor.cost import Share, StepTimes, attribute
from executor.positions import Positions
from executor.scheduler.fair import Fair
from executor.scheduler.fcfs import Fcfs
from executor.scheduler.protocol import Charge, Limits, Moment, Plan, Scheduler
from executor.scheduler.vtc import Vtc
from executor.sequence import Sequence
from tests.executor.fakes import job
from tests.executor.scheduler.driver import CLASSES, TRUE, House, Job

BAR_MS: Final = 0.5
POLICIES: Final[dict[str, Callable[[Limits], Scheduler[Job]]]] = {
    "fair": Fair,
    "vtc": Vtc,
    "fcfs": Fcfs,
}


class Timed:
    """A scheduler and the time it took since it was last asked."""

    def __init__(self, inner: Scheduler[Job]) -> None:
        self._inner = inner
        self.step_ns = 0
        self.queue_ns: list[int] = []  # of each newcomer, and of each that left

    @property
    def running(self) -> Seq[Job]:
        return self._inner.running

    @property
    def waiting(self) -> Collection[Job]:
        return self._inner.waiting

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def add(self, seq: Job, now_ns: int) -> None:
        begin = perf_counter_ns()
        self._inner.add(seq, now_ns)
        self.queue_ns.append(perf_counter_ns() - begin)

    def remove(self, seq: Job, now_ns: int) -> None:
        begin = perf_counter_ns()
        self._inner.remove(seq, now_ns)
        self.queue_ns.append(perf_counter_ns() - begin)

    def plan(self, moment: Moment) -> Plan[Job]:
        begin = perf_counter_ns()
        plan = self._inner.plan(moment)
        self.step_ns += perf_counter_ns() - begin
        return plan

    def charge(self, bill: Iterable[Charge[Job]]) -> None:
        bill = list(bill)  # made by whoever measured
        begin = perf_counter_ns()
        self._inner.charge(bill)
        self.step_ns += perf_counter_ns() - begin


class FullHouse:
    """Keeps so many waiting behind so many that run; answers of 20 to 200 tokens."""

    def __init__(self, policy: str, *, rows: int, waiting: int, tenants: int, blocks: int) -> None:
        limits = Limits(
            seqs=rows,
            block_tokens=16,
            blocks_total=blocks,
            watermark_blocks=blocks // 100,
            workloads=CLASSES,
        )
        self.timed = Timed(POLICIES[policy](limits))
        self.house = House(limits, self.timed, TRUE)  # type: ignore[arg-type] # forwards the rest
        self._rng = Random(1)
        self._tenants = tenants
        self._here = rows + waiting

    def step(self) -> int:
        """Nanoseconds of deciding."""
        rng = self._rng
        while len(self.house.alive) < self._here:
            self.house.add(
                tenant=f"t{rng.randrange(self._tenants)}",
                user=f"u{rng.randrange(5)}",
                workload=rng.choice(["", "", "heavy", "batch", "critical"]),
                prompt_tokens=rng.randint(20, 200),
                length=rng.randint(20, 200),
                max_new_tokens=200,
            )
        self.timed.step_ns = 0
        self.house.step()
        return self.timed.step_ns


def quantile(values: Seq[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def engine_lines(rows: int, waiting: int, tenants: int) -> list[tuple[str, float]]:
    """What the engine does itself for so many, in milliseconds."""
    asked = [
        job(n, (1, 2, 3), share=((f"t{n % tenants}", 1.0), ("u", 1.0))) for n in range(waiting)
    ]
    queue = [Sequence((0, each.request), each, each.request, 0) for each in asked]
    shares = [Share(1, 200 + n) for n in range(rows)]
    times = StepTimes(TRUE)

    def places() -> list[tuple[Sequence, int]]:
        positions = Positions()
        for seq in queue:
            positions.join(seq)
        return list(positions.news(0))

    work: dict[str, Callable[[], object]] = {
        f"places of {waiting} that come at once": places,
        f"splitting a step over {rows} rows": lambda: attribute(10**7, shares, TRUE),
        f"learning from a step of {rows} rows": lambda: times.observe(shares, 10**7),
    }
    lines = []
    for name, call in work.items():
        took = []
        for _ in range(50):
            begin = perf_counter_ns()
            call()
            took.append(perf_counter_ns() - begin)
        lines.append((name, statistics.median(took) / 1e6))
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--waiting", type=int, default=5000)
    parser.add_argument("--tenants", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--policies", default="fair,vtc,fcfs")
    asked = parser.parse_args()
    print(
        f"{asked.rows} run, {asked.waiting} of {asked.tenants} tenants wait, {asked.steps} steps\n"
    )
    print("| policy | memory | step ms, median | p99 | come or go µs, median | p99 |")
    print("|---|---|---|---|---|---|")
    worst = 0.0
    for policy in asked.policies.split(","):
        for memory, blocks in (("ample", asked.rows * 40), ("short", asked.rows * 8)):
            full = FullHouse(
                policy, rows=asked.rows, waiting=asked.waiting, tenants=asked.tenants, blocks=blocks
            )
            for _ in range(60):
                full.step()
            gc.collect()
            gc.freeze()
            full.timed.queue_ns.clear()
            took = [full.step() / 1e6 for _ in range(asked.steps)]
            queued = [each / 1e3 for each in full.timed.queue_ns] or [0.0]
            median = statistics.median(took)
            worst = max(worst, median if policy == "fair" else 0.0)
            print(
                f"| {policy} | {memory} | {median:.3f} | {quantile(took, 0.99):.3f}"
                f" | {statistics.median(queued):.1f} | {quantile(queued, 0.99):.1f} |"
            )
    print("\n| the engine beside it | ms |\n|---|---|")
    for name, took_ms in engine_lines(asked.rows, asked.waiting, asked.tenants):
        print(f"| {name} | {took_ms:.3f} |")
    return int(worst > BAR_MS)


if __name__ == "__main__":
    sys.exit(main())
