"""What is kept of prompts: who finds it, whose memory it is, what is overwritten first."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from executor.contract import Workload
from executor.scheduler.fair import Fair
from executor.scheduler.fcfs import Fcfs
from executor.scheduler.protocol import Found, Limits, Scheduler
from executor.scheduler.vtc import Vtc
from executor.simulation.engine import Engine, simulate
from executor.simulation.longest import Longest
from executor.simulation.machine import CPU
from executor.simulation.metrics_requests import Ending
from executor.simulation.outcome import Run
from executor.simulation.prefixes import Prefixes
from executor.simulation.work import NS, Request, SimWork

MACHINE = replace(CPU, kv_blocks=40, seqs=6)
LIMITS = MACHINE.limits(
    (Workload(name="batch", weight=None, floor=0.05), Workload(name="critical", reserved=0.2)),
    prefixes=True,
)


def asks(at_s: float, tenant: str, first: int, tokens: int = 64, output: int = 4) -> Request:
    """A prompt of which each 16 tokens have the ids from `first` on."""
    ids = tuple(range(first, first + tokens // 16))
    return Request(round(at_s * NS), tenant, tokens + 8, output, prefix=ids, prefix_id_tokens=16)


def cached(run: Run) -> list[int]:
    return [each.cached_tokens for each in sorted(run.outcomes, key=lambda one: one.ticket)]


def test_blocks_are_told_apart_by_all_before_them_and_by_tenant() -> None:
    kept = Prefixes(16)
    one, same = (kept.chain("a", (1, 2, 3), 32, 90) for _ in range(2))
    assert one == same
    assert len(one) == 90 // 16
    assert len(set(one)) == len(one)
    other = kept.chain("a", (9, 2, 3), 32, 90)
    assert not set(one) & set(other)
    assert not set(one) & set(kept.chain("b", (1, 2, 3), 32, 90))
    assert kept.chain("a", (1, 2, 4), 32, 96)[:4] == one[:4]
    assert len(kept.chain("a", (1,), 32, 90)) == 2


def test_what_rests_is_overwritten_from_the_end_the_oldest_first() -> None:
    kept = Prefixes(16)
    old, new = kept.chain("a", (1,), 64, 64), kept.chain("a", (2,), 64, 64)
    for chain in (old, new):
        assert [kept.keep(block) for block in chain] == [True] * 4
        assert kept.found(chain) == Found(4, 0)
        assert kept.release(chain) == 4
    assert kept.keep(old[0]) is False
    kept.shrink(6)
    assert (kept.found(old), kept.found(new)) == (Found(2, 2), Found(4, 4))
    assert kept.take(old[:2]) == 2
    assert kept.take(old[:1]) == 0
    kept.shrink(1)
    assert (kept.found(old), kept.found(new)) == (Found(2, 0), Found(1, 1))
    assert kept.release(old[:2]) == 1
    assert kept.found(old) == Found(2, 1)


def test_a_second_prompt_is_computed_from_where_it_differs() -> None:
    requests = [asks(0, "a", 0), asks(5, "a", 0), asks(5, "b", 0), asks(10, "a", 100)]
    engine = Engine(MACHINE, Fcfs[SimWork](LIMITS), LIMITS)
    run = simulate(engine, requests)
    assert cached(run) == [0, 64, 0, 0]
    assert sum(each.prompt for each in run.service) == 4 * 72 - 64
    assert engine.free == LIMITS.blocks_total


def test_those_who_run_hold_what_they_share_once() -> None:
    engine = Engine(MACHINE, Fcfs[SimWork](LIMITS), LIMITS)
    for at_s in (0.0, 0.5, 0.5):
        engine.offer(asks(at_s, "a", 0, output=100))
    engine.run(NS * 9 // 10)
    assert engine.here == 3
    own = LIMITS.blocks_total - engine.free
    assert own < sum(len(work.blocks) for work in engine._scheduler.running) - 2 * 3
    assert own == len({block for work in engine._scheduler.running for block in work.blocks})


def test_without_prefixes_nothing_is_kept() -> None:
    limits = replace(LIMITS, prefixes=False)
    requests = [asks(at_s, "a", 0) for at_s in range(4)]
    assert cached(simulate(Engine(MACHINE, Fcfs[SimWork](limits), limits), requests)) == [0] * 4


def scheduler_of(kind: str, limits: Limits) -> Scheduler[SimWork]:
    kinds: dict[str, type] = {"fair": Fair, "fcfs": Fcfs, "vtc": Vtc, "lpm": Longest}
    found: Scheduler[SimWork] = kinds[kind](limits)
    return found


def crowd(seed: int) -> list[Request]:
    """Few prompts, asked again and again; memory for a tenth of it; some leave."""
    rng = Random(seed)
    found = []
    for _ in range(30):
        tokens = rng.choice([16, 64, 128, 256])
        asked = asks(rng.uniform(0, 6), rng.choice("abc"), 1000 * rng.randrange(3), tokens)
        found.append(
            replace(
                asked,
                output_tokens=rng.choice([1, 8, 120]),
                user=rng.choice("uv"),
                workload=rng.choice(["", "", "batch", "critical"]),
                cancel_ns=rng.randrange(20 * NS) if rng.random() < 0.2 else None,
            )
        )
    return found


def watched(kind: str, seed: int) -> Run:
    """Every half second: each block is free, or held by those who run, shared ones once."""
    engine = Engine(MACHINE, scheduler_of(kind, LIMITS), LIMITS)
    requests = sorted(crowd(seed), key=lambda each: each.at_ns)
    for request in requests:
        engine.offer(request)
    at_ns = 0
    while engine.here or engine._agenda:
        at_ns += NS // 2
        engine.run(at_ns)
        held = {block for work in engine._scheduler.running for block in work.blocks}
        assert len(held) + engine.free == LIMITS.blocks_total
        assert engine._prefixes is not None
        assert engine._prefixes.resting <= engine.free
    assert engine.free == LIMITS.blocks_total
    assert len(engine.seen.outcomes) == len(requests)
    return engine.seen


@pytest.mark.parametrize(
    "kind",
    ("fair", *(pytest.param(each, marks=pytest.mark.slow) for each in ("fcfs", "vtc", "lpm"))),
)
def test_no_block_is_lost_or_held_twice(kind: str) -> None:
    run = watched(kind, 1)
    assert sum(cached(run)) > 500
    assert all(each.ending in (Ending.FINISHED, Ending.CANCELLED) for each in run.outcomes)


@pytest.mark.slow
def test_the_same_requests_find_the_same() -> None:
    assert cached(watched("fair", 2)) == cached(watched("fair", 2))


@pytest.mark.slow
def test_no_block_is_lost_in_any_crowd() -> None:
    preempted = 0
    for seed in (13, 26, 57, 83, *range(100, 120)):  # 13 and 83: a victim of the taker's own tenant
        preempted += sum(each.preemptions for each in watched("fair", seed).outcomes)
    assert preempted > 10


def test_longest_first_lets_who_has_nothing_kept_wait() -> None:
    limits = MACHINE.limits(prefixes=True)
    hot = [asks(0.05 * n, "hot", 0, tokens=64, output=16) for n in range(80)]
    cold = [asks(1.0, "cold", 10_000, tokens=64, output=16)]
    waits = []
    for scheduler in (Longest[SimWork](limits), Fair[SimWork](limits)):
        run = simulate(Engine(MACHINE, scheduler, limits), [*hot, *cold])
        [its] = [each for each in run.outcomes if each.request.tenant == "cold"]
        assert its.waited_ns is not None
        waits.append(its.waited_ns / NS)
    assert waits[0] > 1.0 > waits[1]
