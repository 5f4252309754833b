"""What is due to whom over time: bounds of gaps, starvation, reservations, and that no trick pays.
Numbers are those of SCHEDULER.md §2's invariants."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from executor.cost import Rates
from executor.scheduler.fair import Fair, Tuning
from executor.scheduler.protocol import Limits
from tests.executor.scheduler.driver import House, limits
from tests.executor.scheduler.histories import reclaims

PLAIN = limits(workloads=())
ROOMY = limits(workloads=(), seqs=64, blocks_total=8000, step_tokens_max=256)
"""Where only a step's time is short."""


def worst_gap(
    house: House,
    weights: dict[str, float],
    load: Callable[[], None],
    steps: int,
    lead_ms: float = 0.0,
) -> float:
    """The largest |W_f/w_f − W_g/w_g| of any two, all backlogged after 60 steps, in parts of the bound:
    the largest request of each, and what somebody may be ahead: before headroom is closed, and by
    `lead_ms` for the sake of locality, in the beginning and in the end."""
    since: dict[str, int] = {}
    worst = 0.0
    for step in range(steps):
        load()
        house.step()
        if step == 60:
            since = dict(house.served_ns)
        if step <= 60:
            continue
        most = max(house.by_job_ns.values())
        had = {
            each: (house.served_ns[each] - since.get(each, 0)) / weights[each] for each in weights
        }
        low, high = min(had, key=lambda each: had[each]), max(had, key=lambda each: had[each])
        ahead_ms = Tuning().ahead_ms if house.limits.seqs != ROOMY.seqs else 0.0
        slack = 2 * (ahead_ms + lead_ms) * 1e6 / sum(weights.values())
        bound = most * (1 / weights[low] + 1 / weights[high]) + slack
        worst = max(worst, (had[high] - had[low]) / bound)
    return worst


def prompts(seed: int) -> tuple[House, dict[str, float], Callable[[], None]]:
    """Long prompts, short answers, each tenant's of another size: bound by time, not by room."""
    rng = Random(seed)
    true = Rates(*(10 ** rng.uniform(low, low + 1) for low in (6, 4, 0, 5)))
    house = House(ROOMY, true=true, fitted=rng.random() < 0.5)
    weights = {f"t{n}": rng.choice([0.25, 1.0, 1.0, 4.0]) for n in range(rng.randint(2, 5))}
    sizes = {each: rng.choice([1, 4]) for each in weights}

    def load() -> None:
        for each, weight in weights.items():
            tokens = rng.randint(50, 400) * sizes[each]
            house.keep(
                8,
                each,
                prompt_tokens=tokens,
                length=rng.randint(1, 3),
                max_new_tokens=rng.choice([3, 500]),
                tenant_weight=weight,
                user=rng.choice("uvw"),
            )

    return house, weights, load


def answers(seed: int) -> tuple[House, dict[str, float], Callable[[], None]]:
    """Few rows, answers whose length nobody can foresee: bound by room."""
    rng = Random(seed)
    seqs = rng.choice([5, 8, 16])
    house = House(limits(workloads=(), seqs=seqs, blocks_total=16 * seqs))
    weights = {f"t{n}": rng.choice([0.25, 1.0, 2.0, 4.0]) for n in range(rng.randint(2, 4))}

    def load() -> None:
        for each, weight in weights.items():
            house.keep(
                4,
                each,
                prompt_tokens=rng.randint(16, 100),
                length=rng.choice([rng.randint(1, 8), 64]),
                tenant_weight=weight,
            )

    return house, weights, load


def test_06_gap_between_backlogged_tenants_is_bounded_where_time_is_short() -> None:
    assert worst_gap(*prompts(9), 130) < 1


def test_06_gap_between_backlogged_tenants_is_bounded_where_rows_are_few() -> None:
    """Seed 3: weights that whole rows cannot follow."""
    assert worst_gap(*answers(3), 300) < 1


@pytest.mark.slow
def test_06_gap_stays_bounded_however_long_it_goes_on() -> None:
    for seed in range(10):
        assert worst_gap(*prompts(seed), 600) < 1
        assert worst_gap(*answers(seed), 2000) < 1


# 08 and 12


def test_12_no_more_is_computed_twice_than_is_allowed() -> None:
    """Long prompts of backfill, put out again and again."""
    house = House(limits(seqs=8, blocks_total=1024))
    with reclaims() as seen:
        for step in range(300):
            house.keep(8, "b", workload="batch", prompt_tokens=1000, length=60)
            if step % 6 == 0:
                for n in range(3):
                    house.add(tenant=f"t{n}", length=2)
            house.step()
    assert sum(seen) > 5
    assert house.lost_ns > 0.02 * house.measured_ns


def test_08_a_large_request_is_not_passed_for_ever() -> None:
    """Many tenants, each under its share, with small ones; it needs nine tenths of the memory."""
    house = House(limits(workloads=(), seqs=32, blocks_total=64))
    big, sent = None, 0
    for step in range(400):
        while len(house.alive) < 60:
            house.add(tenant=f"t{sent % 50}", prompt_tokens=10, length=3)
            sent += 1
        if step == 20:
            big = house.add(tenant="big", prompt_tokens=900, length=3)
        house.step()
        if big is not None and big.began_step is not None:
            break
    assert big is not None
    assert big.began_step is not None
    assert big.began_step - big.came_step < 60


def test_08_reserved_work_that_never_ends_lets_a_larger_request_than_the_rest_not_stop_all() -> (
    None
):
    """It fits only beside nobody of the reserved class, which is always there."""
    house = House(limits(blocks_total=64))
    for step in range(200):
        house.keep(1, "c", workload="critical", prompt_tokens=100, length=3)
        house.keep(3, "a", prompt_tokens=10, length=3)
        if step == 20:
            house.add(tenant="big", prompt_tokens=1000, length=3)
            before = house.served_ns["a"]
        house.step()
    assert house.served_ns["a"] - before > 0.1 * house.measured_ns


@pytest.mark.slow
def test_08_backfill_has_its_floor_and_owes_nothing_for_what_nobody_wanted() -> None:
    house = House()
    while house.now_ns < 20e9:
        house.keep(20, "b", workload="batch", length=5)
        house.step()
    house.keep(8, "t", length=40)
    for _ in range(20):
        house.step()
    begin_ns, had_ns = house.now_ns, house.served_ns["b"]
    while house.now_ns < begin_ns + 20e9:
        house.keep(8, "b", workload="batch", length=5)
        house.keep(8, "t", length=40)
        house.keep(8, "u", length=40)
        house.step()
    part = (house.served_ns["b"] - had_ns) / (house.now_ns - begin_ns)
    assert 0.04 < part < 0.2


def test_08_a_begun_prompt_goes_on_beside_newcomers() -> None:
    house = House(ROOMY, true=Rates(1e6, 1e6, 0.0, 0.0))
    long = house.add(tenant="long", prompt_tokens=4000, length=1)
    house.step()
    for _ in range(150):
        house.keep(4, "x", prompt_tokens=500, length=1)
        house.keep(4, "y", prompt_tokens=500, length=1)
        house.step()
        if long.ends:
            return
    raise AssertionError("newcomers went before it all the time")


def test_08_work_with_weight_does_not_put_its_tenant_last_in_backfill() -> None:
    """A tenant with both waited in backfill until the others there had caught up with all it had had."""
    house = House()
    for _ in range(150):
        house.keep(4, "both", length=10)
        house.step()
    house.keep(4, "batch", workload="batch", length=10)
    house.keep(4, "both", workload="batch", length=10)
    for _ in range(150):
        house.keep(4, "batch", workload="batch", length=10)
        house.step()
    assert all(job.ends for job in house.made if job.tenant == "both")


# 09


@pytest.mark.parametrize("seqs", (5, 16))
def test_09_critical_work_starts_within_two_steps_of_a_full_house(seqs: int) -> None:
    house = House(limits(seqs=seqs))
    came = []
    for step in range(240):
        for tenant in "abcd":
            house.keep(3, tenant, length=60, workload="batch" if tenant == "d" else "")
        if step % 40 == 39:
            came.append(house.add(tenant="c", workload="critical", length=2))
        house.step()
    for job in came:
        assert job.began_step is not None
        assert job.began_step - job.came_step <= 2


def test_09_the_first_critical_request_of_all_is_before_the_others() -> None:
    wide = House(limits(seqs=64, blocks_total=8000))
    wide.keep(200, "a", prompt_tokens=500)
    first = wide.add(tenant="c", workload="critical", prompt_tokens=20)
    wide.step()
    assert first.began_step == 0


def test_08_a_begun_prompt_of_small_weight_goes_on() -> None:
    """It was charged for ahead, whole: by that it would stand behind everybody until they had as much."""
    true = Rates(step_ns=1e6, token_ns=1e6, token_context_ns=0.0)
    house = House(
        limits(workloads=(), seqs=64, blocks_total=4000, step_ms_max=20, chunk_tokens_min=1),
        true=true,
    )
    long = house.add(tenant="long", tenant_weight=0.25, prompt_tokens=600, length=1)
    house.step()
    for _ in range(60):
        house.keep(4, "many", prompt_tokens=20, length=1)
        house.step()
    assert long.computed > 0.6 * 0.2 * 60 * 19, "its share is a fifth of the time"


# Headroom


def test_room_kept_for_newcomers_is_found_however_many_wait() -> None:
    """Forty with a row each, which is their share beside a large tenant that asks for little; 32 of their
    heads in vain hid it."""
    house = House(limits(workloads=(), seqs=64, blocks_total=4000))
    house.add(tenant="large", tenant_weight=100.0, length=3000, max_new_tokens=3000)
    house.step()
    for _ in range(30):
        for n in range(40):
            house.keep(2, f"t{n}", length=40)
        house.step()
    assert len(house.queue.running) < 64
    newcomer = house.add(tenant="new", length=3)
    flow = house.fair._waiting[newcomer.ticket].tenant
    flow.start += 1e8  # it has had a tenth of a second more than the others
    house.fair._bands[""].tenants.refresh(flow)
    house.step()
    assert newcomer.began_step == newcomer.came_step


def test_equals_do_not_put_each_other_out() -> None:
    """More tenants than rows: each is over its share with its only request."""
    house = House(limits(workloads=(), seqs=8, blocks_total=256))
    for _ in range(200):
        for n in range(20):
            house.keep(1, f"t{n}", prompt_tokens=60, length=40)
        house.step()
    assert house.lost_ns == 0


def test_a_lone_tenant_has_every_row() -> None:
    for seqs in (1, 2, 3, 5):
        house = House(limits(workloads=(), seqs=seqs))
        house.keep(8, "a")
        house.step()
        assert len(house.queue.running) == seqs


# 16: none of it pays


def house_of(limits: Limits) -> House:
    """Half a second ahead is far here: the runs are short."""
    return House(limits, Fair(limits, Tuning(ahead_ms=500.0)))


def parts(trick: Callable[[House, int], None], steps: int, house: House | None = None) -> float:
    """What a tenant with a trick got, by what an honest one got beside it, both with enough to do."""
    house = house or house_of(limits())
    for step in range(steps):
        house.keep(14, "honest", length=20)
        trick(house, step)
        house.step()
    return house.served_ns["trick"] / house.served_ns["honest"]


def test_16_the_same_without_a_trick() -> None:
    assert parts(lambda house, _: house.keep(14, "trick", length=20), 400) == pytest.approx(
        1, abs=0.1
    )


def test_16_many_users_gain_nothing() -> None:
    def trick(house: House, step: int) -> None:
        house.keep(20, "trick", length=20, user=f"u{step % 50}", user_weight=1e6)

    assert parts(trick, 400) < 1.1


def test_16_many_small_requests_gain_nothing() -> None:
    assert parts(lambda house, _: house.keep(40, "trick", length=2, prompt_tokens=4), 500) < 1.1


@pytest.mark.slow
def test_16_several_classes_gain_nothing() -> None:
    def trick(house: House, step: int) -> None:
        house.keep(9, "trick", length=20, workload=("", "heavy", "batch")[step % 3])

    assert parts(trick, 500) < 1.1


def test_16_a_class_that_nobody_used_is_no_way_past_the_others() -> None:
    """It let its first tenant before everybody until that had had as much as they ever had."""

    def trick(house: House, step: int) -> None:
        if step == 150:
            house.served_ns.clear()
        if step >= 150:
            house.keep(14, "trick", length=20, workload="other")
        house.keep(14, "third", length=20)

    assert parts(trick, 450) < 1.1


def test_16_coming_one_at_a_time_sheds_no_debt() -> None:
    """After a long job, whoever left was forgotten with all it owed."""
    house = house_of(limits(workloads=(), seqs=4))
    house.add(tenant="before", length=600, max_new_tokens=600)
    house.run()

    def trick(house: House, step: int) -> None:
        if not any(job.tenant == "trick" for job in house.alive.values()):
            house.add(tenant="trick", prompt_tokens=2000, length=20)

    assert parts(trick, 500, house) < 1.1


@pytest.mark.slow
def test_16_aborting_and_asking_again_gains_nothing() -> None:
    def trick(house: House, step: int) -> None:
        house.keep(14, "trick", length=20)
        if step % 5 == 4:
            for job in [each for each in house.alive.values() if each.tenant == "trick"][:3]:
                house.end(job)

    assert parts(trick, 500) < 1.1


def test_16_a_false_limit_gains_nothing() -> None:
    """Answers are cut short, then long: predicted short."""

    def trick(house: House, step: int) -> None:
        short = step % 40 < 30
        house.keep(14, "trick", length=1 if short else 60, max_new_tokens=1 if short else 60)

    assert parts(trick, 500) < 1.25


def test_16_idleness_earns_nothing_and_costs_nothing() -> None:
    house = house_of(limits())
    for _ in range(200):
        house.keep(14, "honest", length=20)
        house.step()
    house.served_ns.clear()
    part = parts(lambda house, _: house.keep(14, "trick", length=20), 400, house)
    assert part == pytest.approx(1, abs=0.12)


# What it remembers


def test_tenants_that_come_once_leave_nothing_behind() -> None:
    """Beside one that is always there and never waits."""
    house = House(limits(workloads=(), seqs=8), true=Rates(1e9, 1e6, 0.0, 0.0))
    house.add(tenant="stays", length=3000, max_new_tokens=3000)
    for number in range(200):
        house.add(tenant=f"t{number}", length=1)
        house.step()
        house.step()
    fair = house.fair
    assert len(fair._accounts.tenants) <= 2
    assert len(fair._accounts._main.users) <= 2
    assert len(fair._residency._rows) <= 2
