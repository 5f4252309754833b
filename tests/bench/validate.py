"""The simulator beside the engine that it stands for: what was measured, measured again, simulated.

A workload of ServeGen's clients (eight tenants, lengths an eighth) at some parts of the capacity, each in
two halves.  Steps of the first halves make a machine (`executor.simulation.fit`); the second halves are
replayed on it with the same scheduler, limits and true lengths.  The second halves run twice on the
engine: how far one measured run lies from another is the scale that an error has.

Refuses to know: torch, models, options, printing.  Source: SCHEDULER.md §4, validation (3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import median
from typing import Final

from executor.cost import Rates, StepTimes
from executor.scheduler.fair import Fair
from executor.scheduler.protocol import Limits
from executor.simulation.clients import arrivals, load, resample
from executor.simulation.engine import Engine, simulate
from executor.simulation.fit import Fitted, Step, fit
from executor.simulation.machine import Machine
from executor.simulation.metrics_requests import Ending, percentile
from executor.simulation.outcome import Outcome, Run
from executor.simulation.work import NS, Request, SimWork

SCALE: Final = 8  # lengths are an eighth of the published ones
TENANTS: Final = 8
PROMPT_MAX: Final = 1024
OUTPUT_MAX: Final = 256
ALLOWED: Final = 2  # times what will be said is what a client allows
NOON_S: Final = 43_200.0
TARGETS: Final[Mapping[str, float]] = {
    "E2E mean s": 0.067,
    "E2E p99 s": 0.092,
    "ITL mean ms": 0.071,
    "TTFT mean s": 0.176,
}
"""Median errors of BLIS, the best published."""


def workload(traces: Path, count: int, seed: int) -> list[Request]:
    """`count` requests in order of time, not yet at any rate."""
    clients = load(
        traces / "servegen_day0_client_windows.csv.gz",
        traces / "servegen_day0_token_quantiles.csv.gz",
        "m-large",
    )
    sources = resample(clients, TENANTS, 10.0, Random(seed), exponent=0.5)
    found: list[Request] = []
    for each in arrivals(sources, 86_400.0, NOON_S):
        output = min(OUTPUT_MAX, -(-each.output_tokens // SCALE))
        prompt = min(PROMPT_MAX, -(-each.prompt_tokens // SCALE))
        allowed = max(64, ALLOWED * output)
        at_ns = round(each.at_s * NS)
        found.append(
            Request(
                at_ns, each.tenant, prompt, output, max_new_tokens=allowed, workload="interactive"
            )
        )
        if len(found) == count:
            return found
    raise ValueError(f"a day of these clients has fewer than {count} requests")


def tokens(requests: Iterable[Request]) -> int:
    """Work, as the papers count it."""
    return sum(each.prompt_tokens + 2 * each.output_tokens for each in requests)


def part(requests: Sequence[Request], work: float, seconds: float) -> list[Request]:
    """The first of them that come to `work`, their gaps squeezed so that they take `seconds`."""
    taken: list[Request] = []
    left = work
    for each in requests:
        if left <= 0:
            break
        taken.append(each)
        left -= tokens([each])
    if left > 0:
        raise ValueError("there are too few requests for so much work: expected fewer seconds")
    first_ns = taken[0].at_ns
    squeeze = seconds * NS / max(1, taken[-1].at_ns - first_ns)
    return [replace(each, at_ns=round((each.at_ns - first_ns) * squeeze)) for each in taken]


@dataclass(frozen=True, slots=True)
class Ran:
    """A run on the engine, and the rates that it began with."""

    run: Run
    steps: Sequence[Step]
    rates: Rates


@dataclass(frozen=True, slots=True)
class Load:
    """One part of the capacity."""

    part: float
    first: Ran
    second: Ran
    again: Ran


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of one load.  `error` of the simulated, `spread` of the second measured run, both
    beside the first."""

    name: str
    measured: float
    again: float
    simulated: float

    @property
    def error(self) -> float:
        return off(self.simulated, self.measured)

    @property
    def spread(self) -> float:
        return off(self.again, self.measured)


@dataclass(frozen=True, slots=True)
class Beside:
    """`by_request`: the median over requests of how far each one's figure lies off: simulated, and
    measured again.  `faults`: what was not the same work."""

    part: float
    requests: int
    rows: Sequence[Row]
    by_request: Mapping[str, tuple[float, float]]
    faults: Sequence[str]


@dataclass(frozen=True, slots=True)
class Validation:
    fitted: Fitted
    loads: Sequence[Beside]

    def errors(self) -> dict[str, tuple[float, float]]:
        """For each figure that has a target: the median over the loads, simulated and measured again."""
        return {
            name: (
                median(abs(row.error) for row in self._rows(name)),
                median(abs(row.spread) for row in self._rows(name)),
            )
            for name in TARGETS
        }

    def _rows(self, name: str) -> list[Row]:
        return [row for each in self.loads for row in each.rows if row.name == name]


def measure(
    play: Callable[[Sequence[Request]], Ran],
    requests: Sequence[Request],
    capacity: float,
    parts: Sequence[float],
    seconds: float,
) -> list[Load]:
    """`capacity`: work a second.  Each load's halves, and the second one again, before the next load: a
    machine that grows slower meets all of them alike."""
    found = []
    at = 0
    for each in parts:
        halves = []
        for _ in range(2):
            half = part(requests[at:], each * capacity * seconds, seconds)
            at += len(half)
            halves.append(half)
        first, second, again = (play(half) for half in (halves[0], halves[1], halves[1]))
        found.append(Load(each, first, second, again))
    return found


def compare(loads: Sequence[Load], limits: Limits, name: str) -> Validation:
    fitted = fit(
        [step for each in loads for step in each.first.steps],
        name=name,
        seqs=limits.seqs,
        block_tokens=limits.block_tokens,
        kv_blocks=limits.blocks_total,
    )
    return Validation(fitted, [beside(each, fitted.machine, limits) for each in loads])


def beside(each: Load, machine: Machine, limits: Limits) -> Beside:
    measured, again = each.second.run, each.again.run
    requests = [one.request for one in in_order(measured)]
    scheduler: Fair[SimWork] = Fair(limits)
    engine = Engine(machine, scheduler, limits, times=StepTimes(each.second.rates))
    simulated = simulate(engine, requests)
    runs = (measured, again, simulated)
    found = [figures(run) for run in runs]
    rows = [Row(name, *(one[name] for one in found)) for name in found[0]]
    return Beside(each.part, len(requests), rows, by_request(*runs), faults(runs))


def in_order(run: Run) -> list[Outcome]:
    return sorted(run.outcomes, key=lambda one: one.ticket)


def figures(run: Run) -> dict[str, float]:
    heard = [each for each in run.outcomes if each.times_ns]
    whole = [_e2e_s(each) for each in heard]
    first = [_ttft_s(each) for each in heard]
    pauses = [pause / 1e6 for each in heard for pause in each.pauses_ns()]
    said = sum(each.request.prompt_tokens + each.request.output_tokens for each in heard)
    last_ns = max(each.times_ns[-1] for each in heard)
    return {
        "E2E mean s": _mean(whole),
        "E2E p99 s": percentile(whole, 99),
        "TTFT mean s": _mean(first),
        "TTFT p99 s": percentile(first, 99),
        "ITL mean ms": _mean(pauses),
        "ITL p99 ms": percentile(pauses, 99),
        "tokens/s": said / (last_ns / NS),
    }


def by_request(measured: Run, again: Run, simulated: Run) -> dict[str, tuple[float, float]]:
    """Requests of one token have no pauses.  Where a run had others, `faults` says so."""
    found = {}
    for name, figure in (("E2E", _e2e_s), ("TTFT", _ttft_s), ("ITL", _itl_s)):
        errors = [
            [
                abs(off(figure(theirs), figure(ours)))
                for ours, theirs in zip(in_order(measured), in_order(other), strict=False)
                if ours.times_ns and theirs.times_ns and figure(ours)
            ]
            for other in (simulated, again)
        ]
        found[name] = median(errors[0]), median(errors[1])
    return found


def faults(runs: Sequence[Run]) -> list[str]:
    """Every request ended whole, in each of the runs, and they are the same requests."""
    found = []
    for name, run in zip(("measured", "again", "simulated"), runs, strict=True):
        cut = [each for each in run.outcomes if each.ending is not Ending.FINISHED]
        short = [each for each in run.outcomes if len(each.times_ns) != each.request.output_tokens]
        if cut or short:
            found.append(f"{name}: {len(cut)} did not finish, {len(short)} did not say all")
        if [each.request for each in in_order(run)] != [each.request for each in in_order(runs[0])]:
            found.append(f"{name}: not the requests of the first run")
    return found


def off(value: float, beside_this: float) -> float:
    return value / beside_this - 1


def _e2e_s(each: Outcome) -> float:
    """To its last token: the engine hears a step later that it was enough."""
    return (each.times_ns[-1] - each.request.at_ns) / NS


def _ttft_s(each: Outcome) -> float:
    return (each.times_ns[0] - each.request.at_ns) / NS


def _itl_s(each: Outcome) -> float:
    return (each.times_ns[-1] - each.times_ns[0]) / NS / max(1, len(each.times_ns) - 1)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
