"""The window for whom the start of a prompt is kept: who gains, by how much, and who never loses more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from executor.cost import Rates
from executor.scheduler.fair import Fair, Tuning
from executor.scheduler.fcfs import Fcfs
from executor.scheduler.locality import PASSED_MAX
from executor.scheduler.protocol import Limits
from tests.executor.scheduler.driver import House, Job, limits
from tests.executor.scheduler.histories import idle_room, play, start_times
from tests.executor.scheduler.test_shares import ROOMY, worst_gap

KEEPING = limits(workloads=(), seqs=64, blocks_total=8000, step_tokens_max=256, prefixes=True)
ONE_BY_ONE = limits(workloads=(), seqs=1, prefixes=True)


def house_of(limits: Limits, locality_ms: float, true: Rates | None = None) -> House:
    fair: Fair[Job] = Fair(limits, Tuning(locality_ms=locality_ms))
    return House(limits, fair) if true is None else House(limits, fair, true)


def busy(locality_ms: float, tenants: int, rows: int = 1) -> House:
    """Each tenant has an answer that goes on; `rows` there are beside those."""
    house = house_of(replace(ONE_BY_ONE, seqs=tenants + rows, blocks_total=8000), locality_ms)
    for n in range(tenants):
        house.add(tenant=f"t{n}", length=2000, max_new_tokens=2000)
        house.step()
    return house


def test_the_longest_that_is_kept_goes_first_within_the_window() -> None:
    for locality_ms, expected in ((0.0, [3, 2, 1, 0]), (1e6, [0, 1, 3, 2])):
        house = busy(locality_ms, 4)
        for n, kept in enumerate((96, 32, 0, 0)):
            house.add(tenant=f"t{n}", prompt_tokens=100, kept_tokens=kept, length=1)
        begun = [int(job.tenant[1]) for _ in range(40) for job in house.step().admitted]
        assert begun == expected


def test_who_has_nothing_in_flight_is_not_passed() -> None:
    house = busy(1e6, 3, rows=2)  # with one, there is none for who is over its share
    house.add(tenant="new", prompt_tokens=100, length=1)
    house.add(tenant="t1", prompt_tokens=100, kept_tokens=96, length=1)
    house.fair._waiting[house.made[-1].ticket].tenant.start += 1.0
    assert [job.tenant for job in house.step().admitted] == ["new", "t1"]


def test_what_is_kept_is_not_computed_charged_or_promised() -> None:
    house = house_of(ONE_BY_ONE, 0.0)
    long = house.add(tenant="a", prompt_tokens=1000, kept_tokens=960, length=1)
    other = house.add(tenant="b", prompt_tokens=40, length=1)
    flows = [house.fair._waiting[job.ticket].tenant for job in (long, other)]
    waiting = house.fair._admission.foresight._waiting
    assert [one.ahead.prompt_tokens for key in waiting for one in waiting[key]] == [40, 40]
    plan = house.step()
    assert [(chunk.count, chunk.taken) for chunk in plan.chunks] == [(40, 60)]
    house.run()
    assert flows[0].start == pytest.approx(flows[1].start, rel=0.1)


def test_08_who_has_nothing_kept_is_never_starved() -> None:
    """Others' prompts are all kept, there are always more of them, and the window is as wide as can be."""
    house = busy(1e9, 5)
    cold, began = None, 0
    for step in range(500):
        for n in range(4):
            house.keep(3, f"t{n}", prompt_tokens=100, kept_tokens=96, length=1)
        if step % 100 == 50:
            cold = house.add(tenant="t4", prompt_tokens=100, length=1)
            began = sum(job.began_step is not None for job in house.made)
        house.step()
        if cold is not None and cold.began_step is not None:
            passed = sum(job.began_step is not None for job in house.made) - began - 1
            assert PASSED_MAX / 2 < passed <= PASSED_MAX + 4
            cold = None
    assert cold is None, "it never came in"


def test_08_inside_a_user_nobody_is_passed_for_ever() -> None:
    house = busy(1e9, 1)
    house.keep(2, "t0", prompt_tokens=100, length=1)
    cold = house.made[-1]
    passed = 0
    while cold.began_step is None and passed < 100:
        house.keep(6, "t0", prompt_tokens=100, kept_tokens=96, length=1)
        passed += len(house.step().admitted)
    assert PASSED_MAX / 2 < passed <= PASSED_MAX + 2


def kept_prompts(
    seed: int, locality_ms: float
) -> tuple[House, dict[str, float], Callable[[], None]]:
    """Bound by time; of some tenants' prompts all is kept, of some a part, of one nothing."""
    rng = Random(seed)
    true = Rates(*(10 ** rng.uniform(low, low + 1) for low in (6, 4, 0, 5)))
    house = house_of(KEEPING, locality_ms, true)
    weights = {f"t{n}": rng.choice([0.25, 1.0, 1.0, 4.0]) for n in range(rng.randint(2, 5))}

    def load() -> None:
        for number, (each, weight) in enumerate(weights.items()):
            tokens = rng.randint(50, 1000)
            kept = rng.choice([0, tokens // 2, tokens]) if number else 0
            house.keep(
                8,
                each,
                prompt_tokens=tokens,
                kept_tokens=kept,
                length=rng.randint(1, 3),
                tenant_weight=weight,
                user=rng.choice("uvw"),
            )

    return house, weights, load


def leads(seed: int, steps: int) -> list[float]:
    """How far the start time of each that was let in was behind the least of those who waited, in parts of
    the window."""
    lead_ms = 10 ** Random(seed).uniform(0, 3)
    house, _, load = kept_prompts(seed, lead_ms)
    fair, found = house.fair, list[float]()
    let_in = fair._let_in

    def judged(entry: object, filling: object) -> None:
        least = min(one.tenant.start for one in fair._waiting.values())
        bound = lead_ms * 1e6 / fair._accounts.tenants.weight
        found.append((entry.tenant.start - least) / bound)  # type: ignore[attr-defined]  # an Entry
        let_in(entry, filling)  # type: ignore[arg-type]

    fair._let_in = judged  # type: ignore[method-assign]
    for _ in range(steps):
        load()
        house.step()
    return found


def test_06_nobody_goes_before_others_who_are_further_behind_than_the_window() -> None:
    seen = leads(10, 120)
    assert max(seen) <= 1 + 1e-9
    assert sum(lead > 0.01 for lead in seen) > 10, "the window is not used"


def test_06_gap_grows_by_no_more_than_the_window() -> None:
    lead_ms = 50.0
    assert worst_gap(*kept_prompts(9, lead_ms), 130, lead_ms) < 1


@pytest.mark.slow
def test_06_gap_stays_bounded_with_any_window() -> None:
    for seed in range(12):
        lead_ms = 10 ** Random(seed).uniform(0, 3)
        assert max(leads(seed, 300)) <= 1 + 1e-9
        assert worst_gap(*kept_prompts(seed, lead_ms), 600, lead_ms) < 1


def test_where_nothing_is_kept_a_window_changes_nothing() -> None:
    for seed in (0, 5, 13):
        plain, windowed = play(seed), play(seed, locality_ms=1e4)
        assert plain.plans == windowed.plans
    assert ROOMY.prefixes is False


@pytest.mark.parametrize("pool", (False, True))
def test_the_invariants_hold_with_prompts_that_are_kept(pool: bool) -> None:
    for seed in (0, 3, 14, 33):
        house = play(seed, start_times, idle_room, locality_ms=100.0, kept=True, pool=pool)
        assert all(each.ends == 1 for each in house.made)


@pytest.mark.slow
def test_three_hundred_histories_with_prompts_that_are_kept() -> None:
    for seed in range(5000, 5300):
        play(
            seed, start_times, idle_room, locality_ms=10 ** (seed % 6), kept=True, pool=seed % 2 > 0
        )


def test_what_went_to_the_pool_makes_room_and_none_comes_back_with_it() -> None:
    house = house_of(limits(workloads=(), blocks_total=64, prefixes=True), 0.0)
    for n in range(3):
        house.add(tenant=f"t{n}", prompt_tokens=800, pool=True, length=60)
    house.run(400)
    assert min(job.ends for job in house.made) == 1
    assert house.made[1].began_step is not None
    assert house.made[1].began_step < 40, "it waited for what was not held any more"


def test_13_who_is_put_out_frees_what_the_pool_does_not_have() -> None:
    """First come first served, which puts out whoever is cheapest; all grow at once, again and again."""
    small = limits(workloads=(), block_tokens=4, blocks_total=40, watermark_blocks=0)
    house = House(small, Fcfs(small))
    for n in range(12):
        house.add(prompt_tokens=16, kept_tokens=16 * (n % 2), pool=True, length=60)
    house.run()
    assert sum(job.preemptions for job in house.made) > 5
