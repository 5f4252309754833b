"""The simulator held against itself, where it must be right, and against a tiny model, for its shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import pytest

from executor.cost import Rates, Share, StepTimes
from executor.scheduler.fair import Fair
from executor.simulation.engine import Engine, simulate
from executor.simulation.fit import Step
from executor.simulation.machine import CPU, Machine
from executor.simulation.metrics_requests import Ending
from executor.simulation.work import Request, SimWork
from executor.simulation.workloads import merged, poisson
from tests.bench.validate import Load, Ran, compare, measure, part, tokens, workload
from tests.bench.validate_command import TRACES, lines
from tests.models import write_tiny_llama

MACHINE = replace(CPU, kv_token_ns=2e4, pair_ns=500.0)
LIMITS = MACHINE.limits()
LEARNT = Rates(
    step_ns=8e6, token_ns=2.2e6, token_context_ns=600.0, sequence_ns=2.5e6
)  # decide how the first prompts are cut


@dataclass(frozen=True)
class Logging(Machine):
    log: list[Step] = field(default_factory=list)

    def step_ns(self, rows: Sequence[Share]) -> int:
        took_ns = Machine.step_ns(self, rows)
        self.log.append(Step(tuple(rows), took_ns))
        return took_ns


class Simulated:
    """A player whose engine is the simulator."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def play(self, requests: Sequence[Request]) -> Ran:
        names = Machine.__dataclass_fields__
        machine = Logging(**{name: getattr(self.machine, name) for name in names})
        scheduler: Fair[SimWork] = Fair(LIMITS)
        engine = Engine(machine, scheduler, LIMITS, times=StepTimes(LEARNT))
        return Ran(simulate(engine, requests), machine.log, LEARNT)


def some(seconds: float) -> list[Request]:
    rng = Random(3)
    lengths = {"prompt": (8, 250), "output": (1, 20)}
    return merged(poisson(name, 3.0, seconds, rng, **lengths) for name in ("a", "b"))


@pytest.fixture(scope="module")
def loads() -> list[Load]:
    return measure(Simulated(MACHINE).play, some(60.0), 350.0, (0.5, 0.8), 8.0)


def test_what_the_simulator_did_itself_is_foretold(loads: list[Load]) -> None:
    found = compare(loads, LIMITS, "itself")
    assert found.fitted.spread < 1e-6
    for each in found.loads:
        assert not each.faults
        assert each.requests > 5
        for row in each.rows:
            assert abs(row.error) < 1e-4
            assert row.spread == 0
        assert max(error for error, _ in each.by_request.values()) < 1e-4
    assert all(error < 1e-4 and again == 0 for error, again in found.errors().values())


def test_a_machine_that_grew_slower_is_seen_and_so_is_a_lost_request(loads: list[Load]) -> None:
    slow = Simulated(MACHINE.slower(1.5))
    requests = [one.request for one in loads[0].second.run.outcomes]
    lost = replace(loads[0], again=slow.play(requests[:-1]))
    assert compare([lost, loads[1]], LIMITS, "x").loads[0].faults == [
        "again: not the requests of the first run"
    ]
    later = replace(loads[0], second=slow.play(requests), again=slow.play(requests))
    rows = {row.name: row for row in compare([later, loads[1]], LIMITS, "x").loads[0].rows}
    assert rows["E2E mean s"].error < -0.3
    assert rows["E2E mean s"].spread == 0


def test_what_was_not_said_is_a_fault(loads: list[Load]) -> None:
    run = loads[0].again.run
    cut = replace(run.outcomes[0], times_ns=[], ending=Ending.CANCELLED)
    again = replace(loads[0].again, run=replace(run, outcomes=[cut, *run.outcomes[1:]]))
    lost = compare([replace(loads[0], again=again), loads[1]], LIMITS, "x")
    assert lost.loads[0].faults == ["again: 1 did not finish, 1 did not say all"]
    assert "  FAULT: again: 1 did not finish, 1 did not say all" in lines(lost)


def test_people_see_simulated_and_measured_side_by_side(loads: list[Load]) -> None:
    told = lines(compare(loads, LIMITS, "itself"))
    assert "fixed 8 ms a step, rows 2.5 ms a row" in told[1]
    assert [line.split()[:2] for line in told if line.startswith("load")] == [
        ["load", "0.5:"],
        ["load", "0.8:"],
    ]
    assert told[-5].split() == ["simulated", "measured", "again", "target"]
    assert [line.split()[-1] for line in told[-4:]] == ["met"] * 4


def test_a_part_has_its_work_in_its_time() -> None:
    taken = part(some(60.0), 900.0, 5.0)
    assert taken[0].at_ns == 0
    assert taken[-1].at_ns == 5_000_000_000
    assert tokens(taken[:-1]) < 900 <= tokens(taken)
    with pytest.raises(ValueError, match="too few requests"):
        part(taken, 1e6, 5.0)


@pytest.mark.slow
def test_the_engine_and_the_simulator_do_the_same_work(tmp_path: Path) -> None:
    """No word on times: a tiny model on a busy machine makes none that a fit would take, so its steps are
    given ours."""
    from executor.model_runner import load
    from executor.settings import Settings, engine_limits
    from tests.bench.validate_live import Player

    if not (TRACES / "servegen_day0_client_windows.csv.gz").is_file():
        pytest.skip("ServeGen's clients are not beside this checkout (../shared/traces)")
    path = write_tiny_llama(tmp_path / "tiny", max_position_embeddings=2048)
    _, runner = load(path, numerics="fast", kv_bytes=4 << 20, rows_max=8)
    settings = Settings(seqs_max=8, speculation=False, check_invariants=True)
    limits = engine_limits(runner, settings)
    player = Player(runner, settings, limits, ())
    requests = workload(TRACES, 200, 1)
    assert len({each.tenant for each in requests}) > 3
    assert player.capacity(requests[:16]) > 0

    def play(half: Sequence[Request]) -> Ran:
        ran = player.play(half)
        return replace(ran, steps=[Step(s.rows, MACHINE.step_ns(s.rows)) for s in ran.steps])

    found = compare(measure(play, requests[16:], 4000.0, (0.9,), 1.1), limits, "tiny")
    for each in found.loads:
        assert not each.faults
        assert each.requests > 3
        rows = {row.name: row for row in each.rows}
        assert min(min(row.measured, row.again, row.simulated) for row in each.rows) > 0
        assert rows["E2E p99 s"].simulated >= rows["TTFT p99 s"].simulated
    assert found.fitted.machine.kv_blocks == runner.kv_blocks
    assert len(lines(found)) > 15
