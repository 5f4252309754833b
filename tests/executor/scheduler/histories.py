"""Histories by seed: machines of all sizes and speeds, tenants of all weights, answers of hidden and
misleading lengths, aborts; and what is to be watched while they are played.

A check is told of everything just before and after it happens to the scheduler, and raises.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random

import pytest

from executor.contract import Workload
from executor.cost import Rates
from executor.scheduler.accounts import Clock
from executor.scheduler.fair import Fair, Tuning
from executor.scheduler.filling import Filling
from executor.scheduler.lanes import Entry, Rank, Seat
from executor.scheduler.protocol import Limits
from executor.scheduler.reclaim import lost_ns
from policies.fairness import Flow, Level
from tests.executor.scheduler.driver import CLASSES, House, Job

Check = Callable[[House], Callable[[str, Job | None], None]]


def house_of(rng: Random, locality_ms: float) -> House:
    block_tokens = rng.choice([1, 4, 16])
    tokens = rng.choice([64, 200, 1000, 8000])
    limits = Limits(
        seqs=rng.choice([1, 2, 3, 5, 16, 64]),
        block_tokens=block_tokens,
        blocks_total=max(2, tokens // block_tokens),
        watermark_blocks=rng.choice([0, 1, 2]),
        step_ms_max=rng.choice([5, 50, 200]),
        chunk_tokens_min=rng.choice([1, 16, 64]),
        step_tokens_max=rng.choice([64, 512]),
        workloads=rng.choice([(), CLASSES, (Workload(name="critical", reserved=0.7),)]),
    )
    true = Rates(
        10 ** rng.uniform(3, 8),
        10 ** rng.uniform(2, 6.5),
        rng.choice([0.0, 10 ** rng.uniform(0, 3)]),
        rng.choice([0.0, 10 ** rng.uniform(3, 7)]),
    )
    spread = rng.choice([0.0, 0.0, 0.3, 2.0])
    noise = Random(rng.random())
    tuning = Tuning(
        headroom=rng.choice([0.0, 0.2, 0.5]),
        recompute=rng.choice([0.0, 0.05, 0.5]),
        ahead_ms=rng.choice([0.0, 100.0, 10_000.0]),
        locality_ms=locality_ms,
    )
    limits = replace(limits, prefixes=locality_ms > 0)
    fair: Fair[Job] = Fair(limits, tuning)
    return House(
        limits,
        fair,
        true,
        fitted=rng.random() < 0.5,
        noise=lambda _: noise.lognormvariate(0.0, spread) if spread else 1.0,
    )


def play(
    seed: int,
    *checks: Check,
    jobs_max: int = 30,
    locality_ms: float = 0.0,
    kept: bool = False,
    pool: bool = False,
) -> House:
    """One history to its end.  `kept`: of some prompts the start is, in a `pool` or not."""
    rng = Random(seed)
    keeps = Random(seed)
    house = house_of(rng, locality_ms)
    watchers = [check(house) for check in checks]

    def watch(op: str, job: Job | None) -> None:
        for each in watchers:
            each(op, job)

    house.watch = watch
    tenants = [f"t{n}" for n in range(rng.randint(1, 6))]
    weights = {each: 10 ** rng.uniform(-2, 2) for each in tenants}
    names = ["", *(each.name for each in house.limits.workloads)]
    most = house.room_tokens - 1
    left = rng.randint(2, jobs_max)
    burst = rng.choice([0.1, 0.5, 0.95])
    aborts = rng.choice([0.0, 0.02, 0.2])
    while left or house.alive:
        while left and rng.random() < burst:
            tenant, left = rng.choice(tenants), left - 1
            prompt = min(most, rng.choice([1, 5, 60, rng.randint(1, 600)]))
            length = min(rng.choice([1, 3, 30, rng.randint(1, 80)]), most + 1 - prompt)
            house.add(
                tenant=tenant,
                tenant_weight=weights[tenant],
                user=rng.choice("uvw"),
                user_weight=rng.choice([1.0, 1.0, 1e-6, 1e9]),
                workload=rng.choice(names),
                prompt_tokens=prompt,
                pool=pool,
                kept_tokens=keeps.choice([0, prompt // 2, prompt]) if kept else 0,
                length=length,
                max_new_tokens=rng.choice([length, length + 20, 1000]),
            )
        if house.alive and rng.random() < aborts:
            house.end(rng.choice(list(house.alive.values())))
        if house.alive:
            house.step()
        assert house.steps < 50_000, "it never ends"
    return house


# What is watched


def entries(fair: Fair[Job]) -> dict[int, Entry[Job]]:
    return {**fair._waiting, **fair._running}


def clocks(fair: Fair[Job]) -> tuple[Clock, Clock]:
    return fair._accounts._main, fair._accounts._backfill


def levels(fair: Fair[Job]) -> Iterator[tuple[Level[str], str]]:
    """Each level, and whose users it holds."""
    for clock in clocks(fair):
        yield clock.tenants, ""
        yield from ((level, tenant) for tenant, level in clock.users.items())


def start_times(house: House) -> Callable[[str, Job | None], None]:
    """03."""
    fair = house.fair
    was: dict[int, tuple[Level[str], float]] = {}
    starts: dict[int, tuple[Flow[str], float]] = {}
    refund: dict[int, float] = {}

    def watch(op: str, job: Job | None) -> None:
        if not op.startswith("/"):
            for kept in (was, starts, refund):
                kept.clear()
            for level, _ in levels(fair):
                was[id(level)] = level, level.virtual
                for flow in level._flows.values():
                    starts[id(flow)] = flow, flow.start
            if op == "remove":
                assert job is not None
                entry = entries(fair)[job.ticket]
                back = max(0.0, entry.charged_ns - entry.measured_ns) / entry.weight
                for seat in (entry.seat, entry.main):
                    if seat is not None:
                        refund[id(seat.tenant)] = back / job.tenant_weight
                        refund[id(seat.user)] = back / job.user_weight
            return
        for level, virtual in was.values():
            assert level.virtual >= virtual, "time went back"
        for key, (flow, start) in starts.items():
            fell = start - flow.start
            assert fell <= refund.get(key, 0.0) * (1 + 1e-9) + abs(start) * 1e-12, (
                "more than its own refund"
            )
        if op == "/add":
            assert job is not None
            entry = entries(fair)[job.ticket]
            virtual = fair._accounts._clock(entry).tenants.virtual
            assert entry.tenant.waits > 1 or entry.tenant.start >= virtual, "credit for idleness"

    return watch


@contextmanager
def booked() -> Iterator[dict[str, float]]:
    """What each tenant was charged in all at the clock of all that are here, refunds deducted."""
    sums: dict[str, float] = defaultdict(float)
    charge = Seat.charge

    def write(seat: Seat, entry: Entry[Job], cost_ns: float) -> None:
        before = seat.tenant.start
        charge(seat, entry, cost_ns)
        if seat is (entry.main or entry.seat):
            sums[seat.tenant.key] += (seat.tenant.start - before) * entry.work.tenant_weight

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Seat, "charge", write)
        yield sums


@contextmanager
def reclaims(*, needed: bool = True, allowed: bool = True) -> Iterator[list[int]]:
    """How many were put out each time.  12, `allowed`: only those of a strictly lower class, or of a
    tenant over its share; nobody a third time; no more than may be computed twice.  13,
    `needed`: without the last of them there would have been no room."""
    seen: list[int] = []
    spent_ns: dict[int, float] = defaultdict(float)
    reclaim = Fair._reclaim

    def judge(fair: Fair[Job], head: Entry[Job], filling: Filling[Job]) -> bool:
        before = len(filling.put_out)
        over = {one.tenant.key for one in fair._running.values() if fair._is_over(one)}
        found = reclaim(fair, head, filling)
        chosen = filling.put_out[before:]
        assert bool(chosen) <= found, "put out in vain"
        if not chosen:
            return found
        seen.append(len(chosen))
        part = fair._tuning.recompute
        spent_ns[id(fair)] += sum(lost_ns(one, filling.moment.rates) for one in chosen)
        if allowed:
            earned_ns = bool(part) * 1e9 + part * filling.moment.now_ns
            assert spent_ns[id(fair)] <= earned_ns + 1.0, "more than may be computed twice"
        for one in chosen if allowed else ():
            assert one.work.preemptions < 2, "the same one again and again"
            assert one.band.rank is not Rank.RESERVED
            if one.band.rank <= head.band.rank:
                assert one.band.rank is head.band.rank, "a higher class was put out"
                assert one.tenant.key in over, "an equal was put out"
        if needed:
            last, draft = chosen[-1], filling.draft
            rules, machine = fair._residency.short(head, over=False), draft.short(head.work)
            spare = 0 if draft.alive else draft._limits.watermark_blocks
            blocks = max(
                rules[0] + fair._residency.blocks(last),
                machine[0] + len(last.work.blocks) - last.work.pooled + spare,
            )
            assert max(rules[1], machine[1]) + 1 > 0 or blocks > 0, "one more than was needed"
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fair, "_reclaim", judge)
        yield seen


def idle_room(house: House) -> Callable[[str, Job | None], None]:
    """07: where everybody who waits would fit below the headroom and beside what is kept, and a step was
    not full, nobody waits."""
    fair = house.fair

    def watch(op: str, job: Job | None) -> None:
        if op != "/plan" or house.full or house.plan.preempted or not fair._waiting:
            return
        res, limits, admitted = fair._residency, house.limits, house.plan.admitted
        free = house.free - sum(
            limits.blocks(min(each.known + 1, house.room_tokens)) for each in admitted
        )
        free -= sum(  # whoever decodes takes its next block before anybody comes in
            max(0, limits.blocks(each.seq.computed + each.count) - len(each.seq.blocks))
            for each in house.plan.chunks
            if each.seq not in admitted
        )
        for entry in fair._waiting.values():
            spare = limits.watermark_blocks if fair._running else 0
            entry.expected_tokens = max(
                entry.work.known + 1, entry.work.prompt_tokens + fair._answer(entry.work)
            )
            fits = limits.blocks(entry.work.known + 1) + spare <= free
            if not fits or not res.admits(entry, over=True) or res.rows >= limits.seqs:
                return
        raise AssertionError("there was room, and time, and somebody waited")

    return watch
