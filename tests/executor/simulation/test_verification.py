"""The simulator against queueing theory: batch 1 is M/G/1, k rows are M/G/k.

Two steps, since a waiting time near saturation needs millions of customers for two percent and the
engine takes its time with each: the engine gives *every* customer the wait that the exact recursion
gives on the same arrivals and sizes; and the recursion, on millions, gives the formula.  Where the load is
moderate the engine is held against the formula itself too.
"""

from __future__ import annotations

from random import Random
from statistics import fmean

import pytest

from executor.simulation.work import Request
from tests.executor.simulation.kit import (
    UNIT_NS,
    arrivals_ns,
    kiefer_wolfowitz,
    lindley,
    mean_wait,
    queue,
    server,
    sizes,
    waits_ns,
)

TOKEN_NS = 100
TOKENS = UNIT_NS // TOKEN_NS


def one_server(law: str, rho: float, count: int, seed: int) -> tuple[list[int], list[int]]:
    """Waits by the engine and by the recursion: a request is a prompt, its tokens are its service."""
    rng = Random(seed)
    arrived = arrivals_ns(rng, count, rho)
    tokens = sizes(rng, count, TOKENS, random=law == "M/M/1")
    requests = [Request(at, "t", size, 1) for at, size in zip(arrived, tokens, strict=True)]
    run = queue(server(1, token_ns=TOKEN_NS), requests)
    return waits_ns(run), lindley(arrived, [size * TOKEN_NS for size in tokens])


@pytest.mark.parametrize("law", ("M/M/1", "M/D/1"))
def test_each_customer_of_one_server_waits_as_lindley_says(law: str) -> None:
    engine, exact = one_server(law, 0.9, 1_500, seed=1)
    assert engine == exact
    assert max(exact) > 5 * UNIT_NS  # it was a queue


@pytest.mark.slow
@pytest.mark.parametrize("rho", (0.3, 0.6))
@pytest.mark.parametrize("law", ("M/M/1", "M/D/1"))
def test_the_mean_wait_at_one_server_is_the_formulas(law: str, rho: float) -> None:
    engine, _ = one_server(law, rho, 150_000, seed=5)
    assert fmean(engine) / UNIT_NS == pytest.approx(mean_wait(law, rho), rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("rho", (0.5, 0.8, 0.9))
@pytest.mark.parametrize("law", ("M/M/1", "M/D/1"))
def test_the_recursion_at_one_server_gives_the_formula(law: str, rho: float) -> None:
    rng = Random(11)
    count = 4_000_000
    wait = total = 0.0
    for _ in range(count):
        takes = rng.expovariate(1.0) if law == "M/M/1" else 1.0
        total += wait
        wait = max(0.0, wait + takes - rng.expovariate(rho))
    assert total / count == pytest.approx(mean_wait(law, rho), rel=0.02)


def many_rows(k: int, rho: float, count: int, seed: int, steps: int) -> tuple[float, float]:
    """Mean waits in mean services, by the engine and by the recursion.  A request is an answer: a step a
    token, however many run, and `steps` of them on average."""
    rng = Random(seed)
    arrived = arrivals_ns(rng, count, rho * k)
    tokens = sizes(rng, count, steps, random=True)
    requests = [
        Request(at, "t", 1, size, max_new_tokens=1 << 14)
        for at, size in zip(arrived, tokens, strict=True)
    ]
    step_ns = UNIT_NS / steps
    run = queue(server(k, fixed_ns=step_ns), requests)
    exact = kiefer_wolfowitz(arrived, [size * step_ns for size in tokens], k)
    return fmean(waits_ns(run)) / UNIT_NS, fmean(exact) / UNIT_NS


def test_rows_are_servers() -> None:
    """A newcomer also waits for the step that runs when a row falls free: half a step, on average."""
    engine, exact = many_rows(4, 0.9, 300, seed=3, steps=60)
    assert exact > 0.3
    assert engine == pytest.approx(exact, abs=1.0 / 60)


@pytest.mark.slow
@pytest.mark.parametrize("rho", (0.5, 0.8, 0.9))
def test_rows_are_servers_to_two_percent(rho: float) -> None:
    """Or within the half step, where waits are short."""
    steps = 100
    engine, exact = many_rows(4, rho, 6_000, seed=7, steps=steps)
    assert engine == pytest.approx(exact, rel=0.02, abs=0.7 / steps)


@pytest.mark.slow
@pytest.mark.parametrize("rho", (0.5, 0.8, 0.9))
def test_the_recursion_at_many_servers_gives_the_formula(rho: float) -> None:
    rng = Random(13)
    k, at, arrived, takes = 4, 0.0, [], []
    for _ in range(2_000_000):
        at += rng.expovariate(rho * k)
        arrived.append(at)
        takes.append(rng.expovariate(1.0))
    waited = fmean(kiefer_wolfowitz(arrived, takes, k))
    assert waited == pytest.approx(mean_wait("M/M/k", rho, k), rel=0.02)
