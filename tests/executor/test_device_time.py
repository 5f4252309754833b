"""Every nanosecond of an executor's life is in one account: a request's, one kind of overhead, or idle.

Source: MONEY.md §1, invariant 8.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import monotonic_ns

import pytest

from executor.batch import Batch
from executor.client import ExecutorProcess, StateKind
from executor.contract import OVERHEAD, DeviceTime, Ended, ExecutorLost, Measure
from executor.cost import Rates, Share, StepTimes, attribute, lost_parts
from executor.life import RECORDING, WARMING, Life, Opening
from executor.settings import Settings
from tests.executor.fakes import COMMAND, FREE, OPTIMIST, Clock, FakeRunner, Harness, job
from tests.executor.test_engine_fuzz import HABITS, SHAPES, job_of

LIFE = Life("s1", began_ns=-9_000, load_ns=5_000, capture_ns=300, warm_up_ns=1_700)
"""2 us of idling before the engine's first look at the clock."""


def measured(house: Harness) -> DeviceTime:
    device = house.engine.gauges.device
    assert device is not None
    return device


def adds_up(device: DeviceTime) -> None:
    """Without the property's help."""
    parts = [device.attributed_ns, device.idle_ns, *(getattr(device, f"{k}_ns") for k in OVERHEAD)]
    assert min(parts) >= 0
    assert sum(parts) == device.wall_ns * device.devices


def test_the_kinds_are_closed() -> None:
    known = {name for name in DeviceTime.__struct_fields__ if name.endswith("_ns")}
    assert known == {f"{kind}_ns" for kind in OVERHEAD} | {"wall_ns", "attributed_ns"}


@pytest.mark.slow
def test_whatever_happens_the_accounts_come_to_the_wall_clock() -> None:
    """Preempted, aborted, guessed wrong, failed: at the end each kind was met, and requests were told what
    they were charged."""
    met: Counter[str] = Counter()
    for seed in range(120):
        met.update(played(seed))
    assert met.keys() == {
        "recompute",
        "wrong_guesses",
        "failed_steps",
        "load",
        "capture",
        "warm_up",
    }


def played(seed: int) -> set[str]:
    rng = Random(seed)
    runner = FakeRunner(
        block_tokens=4, kv_blocks=rng.choice([12, 30]), habits=rng.choice([0.0, HABITS]), **SHAPES
    )
    house = Harness(
        runner,
        settings=rng.choice([OPTIMIST, Settings(seqs_max=4, check_invariants=True)]),
        clock=Clock(tick_ns=rng.choice([1, 1_000_003])),
        times=StepTimes(FREE),
        life=LIFE,
    )
    house.engine._failures = -10_000

    def during(batch: Batch) -> None:
        house.clock.now_ns += 5_000 * batch.token_count
        if rng.random() < 0.04:
            raise RuntimeError

    runner.before = during
    before = 0
    for request in range(1, 12):
        house.submit(job_of(rng, request, None, None))
        for _ in range(rng.randrange(6)):
            house.step()
            device = measured(house)
            adds_up(device)
            assert device.wall_ns >= before
            before = device.wall_ns
        if rng.random() < 0.3:
            house.abort(rng.randint(1, request))
        if rng.random() < 0.3:
            house.clock.now_ns += 10**9  # nobody steps
    house.run()
    device, gauges = measured(house), house.engine.gauges
    adds_up(device)
    last = [said[-1] for said in house.heard.values()]
    ends = [each for each in last if isinstance(each, Ended)]
    assert sum(each.device_ns for each in ends) == device.attributed_ns == gauges.busy_ns
    lost_ns = device.recompute_ns + device.wrong_guesses_ns
    assert sum(each.recomputed_ns for each in ends) == lost_ns
    assert lost_ns + device.failed_steps_ns + device.empty_steps_ns == gauges.overhead_ns
    return {kind for kind in OVERHEAD if getattr(device, f"{kind}_ns")}


@pytest.mark.parametrize("seed", range(20))
def test_what_was_lost_in_a_row_is_split_without_a_rest(seed: int) -> None:
    dice = Random(seed)
    rates = Rates(2e6, 41_000.0, 3.0, 90_000.0)
    rows = [Share(9, dice.randrange(500), dice.randrange(4), dice.randrange(5)) for _ in range(30)]
    for row, (_, lost_ns) in zip(rows, attribute(10**8 + seed, rows, rates), strict=True):
        recompute_ns, guesses_ns = lost_parts(lost_ns, row, rates)
        assert recompute_ns + guesses_ns == lost_ns
        assert (recompute_ns > 0) == (row.lost > 0)
        assert (guesses_ns > 0) == (row.missed > 0)


def test_a_start_is_timed_by_what_it_does() -> None:
    clock = Clock(0)
    opening = Opening(clock)
    for stage, ns in (("reading", 5), ("reading", 70), (RECORDING, 11), (WARMING, 3), (WARMING, 2)):
        clock.now_ns += ns
        opening.told(stage)
    clock.now_ns += 1
    assert opening.over("s") == Life("s", 0, load_ns=86, capture_ns=3, warm_up_ns=3)


def test_who_asks_hears_what_an_idle_engine_has_done() -> None:
    house = Harness(life=LIFE)
    assert house.step() == {}
    house.inbox.append((3, Measure()))
    (report,) = house.step().values()
    assert report.updates == ()
    assert report.overviews == ()
    device = report.gauges.device
    assert device is not None
    assert device.wall_ns == house.clock.now_ns + 9_000
    assert device.idle_ns == device.wall_ns - 7_000
    assert house.step() == {}


@pytest.mark.slow
def test_an_executor_that_is_killed_leaves_its_last_account() -> None:
    async def main() -> None:
        with TemporaryDirectory() as folder:
            begun_ns = monotonic_ns()
            async with ExecutorProcess(COMMAND, Path(folder, "run")) as executor:
                await executor.wait_ready(30)
                assert executor.take_past() == ()
                async with executor.turn(job(1, max_new_tokens=40)) as turn:
                    start = turn.start
                    async for _ in turn:
                        pass
                assert turn.ended is not None
                device = (await executor.measure()).device
                assert device is not None
                adds_up(device)
                assert device.start == start != ""
                assert device.attributed_ns == turn.ended.device_ns > 0
                assert device.load_ns > 0
                assert device.wall_ns <= monotonic_ns() - begun_ns
                again = (await executor.measure()).device
                assert again is not None
                assert again.idle_ns > device.idle_ns
                assert again.attributed_ns == device.attributed_ns
                assert executor.pid is not None
                os.kill(executor.pid, signal.SIGKILL)
                while executor.state.kind is StateKind.READY:
                    await asyncio.sleep(0.01)
                assert executor.take_past() == (again,)
                assert executor.take_past() == ()
                await executor.wait_ready(30)
                fresh = (await executor.measure()).device
                assert fresh is not None
                assert fresh.start != start
                with pytest.raises(ExecutorLost):
                    await executor.close()
                    await executor.measure()

    asyncio.run(main())
