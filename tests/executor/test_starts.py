"""When one that waits may start: estimated from its own tenant's starts, or not at all."""

from __future__ import annotations

import asyncio
import random

import pytest

from executor.contract import Submit, Terms, Waiting, Workload
from executor.echo import EchoExecutor
from executor.settings import Settings
from executor.starts import STALE_NS, STARTS_LEAST, STARTS_MAX, Starts
from tests.executor.fakes import Harness, job

S = 1_000_000_000
A, B = (("a", 1.0), ("x", 1.0)), (("b", 1.0),)


def paced(starts: Starts, tenant: str, every_ns: int, count: int, at_ns: int = 0) -> int:
    """`count` of the tenant start, one each `every_ns`; all of them waited from `at_ns` on."""
    since_ns = at_ns
    for _ in range(count):
        at_ns += every_ns
        starts.began(tenant, since_ns, at_ns)
    return at_ns


def test_the_estimate_is_the_places_times_the_tenants_own_pace() -> None:
    starts = Starts()
    now_ns = paced(starts, "a", 2 * S, STARTS_LEAST)
    assert [starts.eta_ms("a", place, now_ns) for place in (0, 1, 4)] == [2_000, 4_000, 10_000]
    assert starts.eta_ms("b", 0, now_ns) is None, "nobody's pace is another's"


def test_nothing_is_invented() -> None:
    starts = Starts()
    now_ns = paced(starts, "a", S, STARTS_LEAST - 1)
    assert starts.eta_ms("a", 0, now_ns) is None, "too few"
    now_ns = paced(starts, "a", S, 1, now_ns)
    assert starts.eta_ms("a", 0, now_ns) == 1_000
    assert starts.eta_ms("a", 0, now_ns + STALE_NS) == 1_000
    assert starts.eta_ms("a", 0, now_ns + STALE_NS + 1) is None, "too long ago"
    assert len(starts) == 0


def test_a_time_in_which_nobody_waited_counts_for_nothing() -> None:
    starts = Starts()
    now_ns = paced(starts, "a", S, STARTS_LEAST)
    now_ns = paced(starts, "a", S, STARTS_MAX, now_ns + 50 * S)
    assert starts.eta_ms("a", 0, now_ns) == 1_000


def test_it_follows_the_last_ones_and_goes_in_steps() -> None:
    starts = Starts()
    now_ns = paced(starts, "a", S, 100)
    now_ns = paced(starts, "a", S // 7, STARTS_MAX, now_ns)
    assert starts.eta_ms("a", 0, now_ns) == 100
    assert starts.eta_ms("a", 6, now_ns) == 1_000
    assert starts.eta_ms("a", 0, paced(starts, "a", 1, STARTS_MAX, now_ns)) == 100, "never 0"


@pytest.mark.parametrize("seed", range(20))
def test_what_others_do_enters_no_number_of_a_tenant(seed: int) -> None:
    """The same starts of `a`, alone and among any of others: the same estimates."""
    chance = random.Random(seed)
    alone, among = Starts(), Starts()
    now_ns = since_ns = 0
    for _ in range(60):
        now_ns += chance.randrange(3 * S)
        if chance.random() < 0.5:
            among.began(chance.choice("bcd"), since_ns, now_ns)
            continue
        for starts in (alone, among):
            starts.began("a", since_ns, now_ns)
        since_ns = now_ns
        place = chance.randrange(9)
        assert alone.eta_ms("a", place, now_ns) == among.eta_ms("a", place, now_ns)


def heard(house: Harness, request: int) -> list[Waiting]:
    return [each for each in house.heard[0, request] if isinstance(each, Waiting)]


def test_the_engine_tells_it_to_who_waits_and_not_to_backfill() -> None:
    house = Harness(settings=Settings(seqs_max=1, check_invariants=True))
    house.inbox.append((0, Terms(workloads=(Workload(name="batch", weight=None),))))
    for request in range(1, 9):
        house.submit(job(request, share=A, max_new_tokens=4))
    house.submit(job(9, share=B, max_new_tokens=4))
    house.submit(job(10, share=A, max_new_tokens=4, workload="batch"))
    house.run()
    assert heard(house, 2)[0].eta_ms is None, "nobody had started"
    assert any(each.eta_ms for each in heard(house, 8)), "the last one hears it while it moves up"
    assert [each.eta_ms for each in heard(house, 9)] == [None], "of another tenant: nothing yet"
    told = heard(house, 10)
    assert len(told) > 1
    assert {each.eta_ms for each in told} == {None}


def test_the_echo_tells_it_alike() -> None:
    async def story() -> None:
        now_ns = 0
        passes = asyncio.Semaphore(0)

        async def gate(_: Submit, k: int) -> None:
            if k == 0:
                await passes.acquire()

        executor = EchoExecutor(seqs_max=1, gate=gate, clock_ns=lambda: now_ns)
        told: list[Waiting] = []

        async def ask() -> None:
            async with executor.turn(job(1, share=A)) as turn:
                told.extend([update async for update in turn if isinstance(update, Waiting)])

        asking = [asyncio.create_task(ask()) for _ in range(STARTS_LEAST + 3)]
        await asyncio.sleep(0)
        for _ in asking:
            now_ns += 2 * S
            passes.release()
            for _ in range(50):
                await asyncio.sleep(0)
        await asyncio.gather(*asking)
        assert [each.eta_ms for each in told if each.eta_ms is not None] == [2_000, 4_000, 2_000]

    asyncio.run(story())
