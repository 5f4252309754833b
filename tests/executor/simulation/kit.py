"""What the simulator's tests share: machines whose queues have formulas, and recursions for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from random import Random

from executor.cost import Rates, StepTimes
from executor.scheduler.fcfs import Fcfs
from executor.scheduler.protocol import Limits
from executor.simulation.engine import Engine, simulate
from executor.simulation.machine import Machine
from executor.simulation.outcome import Run
from executor.simulation.work import Request, SimWork

UNIT_NS = 1_000_000
"""Mean time between what happens, in the small queues below."""
_HUGE_TOKENS = 1 << 20


def server(seqs: int, token_ns: float = 0.0, fixed_ns: float = 0.0) -> Machine:
    """No memory bound, nothing but what is said costs time."""
    return Machine("server", fixed_ns, 0.0, 0.0, token_ns, 0.0, seqs, 64, seqs * _HUGE_TOKENS // 32)


def limits_of(machine: Machine) -> Limits:
    """A prompt is one chunk, however long."""
    return replace(
        machine.limits(step_ms_max=1_000_000, step_tokens_max=_HUGE_TOKENS), watermark_blocks=0
    )


def queue(machine: Machine, requests: Sequence[Request]) -> Run:
    """First come, first served; no rates are learnt, since nothing is decided by them."""
    limits = limits_of(machine)
    engine = Engine(
        machine, Fcfs[SimWork](limits), limits, times=StepTimes(Rates(0, 0, 0)), learns=False
    )
    return simulate(engine, requests)


def waits_ns(run: Run) -> list[int]:
    """In order of arrival."""
    found = []
    for each in sorted(run.outcomes, key=lambda one: one.ticket):
        assert each.waited_ns is not None
        found.append(each.waited_ns)
    return found


def arrivals_ns(rng: Random, count: int, rate: float) -> list[int]:
    """Poisson, `rate` a unit."""
    at, found = 0.0, []
    for _ in range(count):
        at += rng.expovariate(rate) * UNIT_NS
        found.append(round(at))
    return found


def sizes(rng: Random, count: int, mean: float, *, random: bool) -> list[int]:
    """Exponential, or all the mean; at least 2 (a prompt of one token counts as an answer's)."""
    if not random:
        return [round(mean)] * count
    return [max(2, round(rng.expovariate(1 / mean))) for _ in range(count)]


def lindley(arrived: Sequence[int], served: Sequence[int]) -> list[int]:
    """Waiting times at one server: W' = max(0, W + S − A).  Source: Lindley, 1952."""
    waits, free = [], 0
    for at, takes in zip(arrived, served, strict=True):
        begins = max(at, free)
        waits.append(begins - at)
        free = begins + takes
    return waits


def kiefer_wolfowitz(arrived: Sequence[float], served: Sequence[float], k: int) -> list[float]:
    """Waiting times at `k` servers.  Source: Kiefer and Wolfowitz, 1955."""
    free, waits = [0.0] * k, []
    heapify(free)
    for at, takes in zip(arrived, served, strict=True):
        begins = max(at, heappop(free))
        waits.append(begins - at)
        heappush(free, begins + takes)
    return waits


def erlang_c(k: int, load: float) -> float:
    """The part that waits, of `load` Erlang at `k` servers."""
    term, whole = 1.0, 0.0
    for i in range(k):
        whole += term
        term *= load / (i + 1)
    last = term * k / (k - load)
    return last / (whole + last)


def mean_wait(law: str, rho: float, k: int = 1) -> float:
    """In units of the mean service: M/M/1, M/D/1 (Pollaczek and Khinchine), M/M/k (Erlang)."""
    if law == "M/M/1":
        return rho / (1 - rho)
    if law == "M/D/1":
        return rho / (2 * (1 - rho))
    return erlang_c(k, k * rho) / (k * (1 - rho))
