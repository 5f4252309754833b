"""What no number of replicas gives, against a replay of one request on one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import inf
from random import Random

import pytest

from executor.scheduler.fair import Fair
from executor.simulation.alone import at_least, beyond
from executor.simulation.engine import Engine, simulate
from executor.simulation.machine import A10G, CPU, Machine
from executor.simulation.metrics_requests import Record, Target
from executor.simulation.plan import plan_for
from executor.simulation.traces import Arrival
from executor.simulation.work import SimWork
from executor.simulation.workloads import of_trace

LARGE = replace(A10G, kv_blocks=10_000, pair_ns=3.0)
NEVER = Target(0.0, 0.0)


def replayed(machine: Machine, arrival: Arrival) -> Record:
    """The third time, when the scheduler has learnt what a step takes."""
    limits = machine.limits()
    scheduler: Fair[SimWork] = Fair(limits)
    engine = Engine(machine, scheduler, limits)
    again = of_trace(replace(arrival, at_s=1e4 * each) for each in range(3))
    return max(simulate(engine, again).records, key=lambda record: record.arrived_s)


@pytest.mark.parametrize(
    ("machine", "slower"),
    ((LARGE, 1.09), (replace(CPU, kv_blocks=1000), 1.09), (A10G.slower(20), 2.5)),
)
def test_a_replay_of_one_request_is_never_faster_and_hardly_slower(
    machine: Machine, slower: float
) -> None:
    """The last one's steps take longer than the scheduler would have them, whatever is in them."""
    rng = Random(2)
    for _ in range(12):
        prompt = rng.choice((1, 5, 300, 2048, 2049, rng.randrange(1, 6000)))
        arrival = Arrival(0.0, "t", prompt, rng.choice((1, 2, 3, rng.randrange(1, 60))))
        alone = beyond([arrival], machine, {"": NEVER}, 1.0)[""]
        record = replayed(machine, arrival)
        assert record.ttft_s is not None
        assert alone.ttft_s - 1e-6 <= record.ttft_s <= slower * alone.ttft_s
        assert record.tpot_s == pytest.approx(alone.tpot_s, rel=1e-6, abs=1e-6)


def of_prompts(prompts: Iterable[int], output: int = 3) -> list[Arrival]:
    return [Arrival(float(i), "t", prompt, output) for i, prompt in enumerate(prompts)]


def test_each_limit_is_counted_and_said_what_would_do() -> None:
    """A prompt of 1,000 takes 0.233 s, of 10 a fifteenth of that; a token 16 ms; 10,000 fit."""
    trace = of_prompts([10] * 6 + [1000] * 3 + [20_000])
    (alone,) = beyond(trace, A10G, {"": Target(0.1, 0.01)}, 0.9).values()
    assert (alone.requests, alone.in_time) == (10, 0.0)
    assert (alone.too_long, alone.late, alone.slow) == (1, 3, 9)
    assert alone.ttft_s == pytest.approx(0.2327, abs=1e-4)
    assert 0.0155 < alone.tpot_s < 0.018
    (strict,) = beyond(trace, A10G, {"": Target(0.1)}, 0.95).values()
    assert (strict.in_time, strict.ttft_s) == (0.6, inf)


def test_what_enough_keep_is_not_beyond() -> None:
    trace = of_prompts([10] * 6 + [1000] * 4)
    assert not beyond(trace, A10G, {"": Target(0.1)}, 0.6)
    assert beyond(trace, A10G, {"": Target(0.1)}, 0.61)
    assert not beyond(of_prompts([10], output=1), A10G, {"": Target(0.1, 1e-9)}, 1.0)


def test_what_would_do_does() -> None:
    """Promised that much, one replica keeps it of requests that never meet."""
    trace = of_prompts([10, 500, 1500, 700])
    far = [replace(each, at_s=100 * each.at_s) for each in trace]
    (alone,) = beyond(far, LARGE, {"": NEVER}, 0.75).values()
    enough = {"": Target(alone.ttft_s * 1.09, alone.tpot_s * 1.001)}
    assert plan_for(far, LARGE, enough, part=0.75, replicas_max=1).replicas == 1
    less = {"": Target(alone.ttft_s * 0.999)}
    assert plan_for(far, LARGE, less, part=0.75, replicas_max=1).beyond


@pytest.mark.parametrize(
    ("part", "least"), ((0.5, 2.0), (0.51, 3.0), (0.75, 3.0), (0.8, inf), (1.0, inf), (1e-9, 1.0))
)
def test_the_least_that_a_part_does_not_pass(part: float, least: float) -> None:
    """Nearest rank; of four values one is infinite."""
    assert at_least([3.0, 1.0, 2.0], part, 4) == least
