"""Who is turned away, who waits, and whose the turn is; and what comes of it under three times what can be done."""

from __future__ import annotations

import random
from collections import Counter, deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.classes import Kind
from policies.shedding import (
    RETRY_S_MOST,
    TERMS,
    Backlog,
    Rank,
    crowded,
    has_place,
    may_hold,
    may_wait,
    next_rank,
    rank_of,
    retry_after_s,
)


def test_each_kind_of_class_has_its_rank_and_reserved_goes_last() -> None:
    assert [rank_of(kind) for kind in (Kind.BACKFILL, Kind.WEIGHTED, Kind.RESERVED)] == [1, 2, 3]
    assert min(Rank) is Rank.STRANGER


def test_turning_away_begins_late_and_ends_late() -> None:
    calm = Backlog()
    assert not calm.after(TERMS.high_ms).shedding
    shedding = calm.after(TERMS.high_ms + 1)
    assert shedding.shedding
    assert shedding.after(TERMS.low_ms + 1).shedding
    assert not shedding.after(TERMS.low_ms).shedding
    assert not shedding.after(0).shedding


def test_who_waits_long_already_keeps_others_of_its_own_out() -> None:
    assert may_wait(Backlog(), 0, 0)
    assert not may_wait(Backlog(shedding=True), 0, 0)


def test_nobody_waits_beyond_the_bound() -> None:
    assert not may_wait(Backlog(), 0, TERMS.waiting)
    alone = next(n for n in range(TERMS.waiting + 1) if not may_wait(Backlog(), n, n))
    assert alone == TERMS.waiting * 3 // 4


def test_the_highest_rank_has_the_turn_and_now_and_then_whoever_waited_longest() -> None:
    waited = {Rank.STRANGER: 900.0, Rank.BACKFILL: 300.0, Rank.WEIGHTED: 20.0}
    turns = Counter(next_rank(turn, waited) for turn in range(8 * TERMS.oldest_each))
    assert turns == {Rank.WEIGHTED: 8 * (TERMS.oldest_each - 1), Rank.STRANGER: 8}
    assert next_rank(0, {Rank.BACKFILL: 5.0, Rank.RESERVED: 5.0}) is Rank.RESERVED


def test_the_last_places_are_for_the_higher_ranks() -> None:
    full = {rank: next(n for n in range(1001) if not has_place(rank, n, 1000)) for rank in Rank}
    assert list(full.values()) == sorted(full.values())
    assert full[Rank.STRANGER] == 750
    assert full[Rank.RESERVED] == 1000
    assert not crowded(749, 1000)
    assert crowded(750, 1000)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.integers(1, 2000), st.integers(1, 4))
def test_who_takes_all_that_it_may_leaves_a_quarter_to_the_next(most: int, tenants: int) -> None:
    held = [0] * tenants
    for n in range(tenants):
        free = most - sum(held)
        while held[n] <= most and may_hold(held[n], sum(held), most):
            held[n] += 1
        assert held[n] <= free
        assert most - sum(held) >= free // 4
    assert may_hold(0, sum(held), most) is (sum(held) < most)


def test_one_tenant_alone_gets_three_quarters() -> None:
    assert may_hold(767, 767, 1024)
    assert not may_hold(768, 768, 1024)


@pytest.mark.parametrize("draw", (0.0, 0.5, 0.999999))
def test_nobody_is_told_to_come_back_at_once_or_in_a_minute(draw: float) -> None:
    assert 1 <= retry_after_s(draw) <= RETRY_S_MOST


# In virtual time: a loop that prepares a request in 2 ms and turns one away in 0.1 ms.

WORK_MS, AWAY_MS = 2.0, 0.1


class Loop:
    """One after the other, the turn given as the gate gives it."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.waiting: dict[Rank, dict[str, deque[float]]] = {rank: {} for rank in Rank}
        self.backlogs: dict[tuple[Rank, str], Backlog] = {}
        self.served: Counter[str] = Counter()
        self.away: Counter[str] = Counter()
        self.slowest_ms: dict[str, float] = {}
        self.turns = 0

    def arrive(self, rank: Rank, tenant: str) -> None:
        line = self.waiting[rank].get(tenant, deque())
        waited_ms = self.now_ms - line[0] if line else 0.0
        key = (rank, tenant)
        backlog = self.backlogs[key] = self.backlogs.get(key, Backlog()).after(waited_ms)
        every = sum(len(line) for lines in self.waiting.values() for line in lines.values())
        if may_wait(backlog, len(line), every):
            self.waiting[rank].setdefault(tenant, deque()).append(self.now_ms)
        else:
            self.away[tenant] += 1
            self.now_ms += AWAY_MS

    def serve(self) -> bool:
        longest = {
            rank: max(self.now_ms - line[0] for line in lines.values())
            for rank, lines in self.waiting.items()
            if lines
        }
        if not longest:
            return False
        self.turns += 1
        lines = self.waiting[next_rank(self.turns, longest)]
        tenant = next(iter(lines))
        line = lines.pop(tenant)
        since_ms = line.popleft()
        if line:
            lines[tenant] = line
        self.now_ms += WORK_MS
        self.served[tenant] += 1
        waited_ms = self.now_ms - since_ms
        self.slowest_ms[tenant] = max(self.slowest_ms.get(tenant, 0.0), waited_ms)
        return True


def played(rates_per_s: dict[tuple[Rank, str], float], *, seconds: float = 10.0) -> Loop:
    rng = random.Random(7)
    coming = []
    for who, rate in rates_per_s.items():
        at_ms = rng.expovariate(rate) * 1000
        while at_ms < seconds * 1000:
            coming.append((at_ms, who))
            at_ms += rng.expovariate(rate) * 1000
    coming.sort()
    loop = Loop()
    for at_ms, (rank, tenant) in coming:
        while loop.now_ms < at_ms:
            if not loop.serve():
                loop.now_ms = at_ms
        loop.arrive(rank, tenant)
    return loop


def test_three_times_what_can_be_done_loses_no_more_than_refusals_cost() -> None:
    loop = played({(Rank.WEIGHTED, "acme"): 1500.0})
    assert loop.served.total() > 0.9 * 10_000 / WORK_MS * (1 - 2 * AWAY_MS / WORK_MS)
    assert loop.slowest_ms["acme"] < 1000


def test_the_lowest_rank_goes_first_and_is_not_shut_out() -> None:
    loop = played(
        {
            (Rank.RESERVED, "alarm"): 50.0,
            (Rank.WEIGHTED, "acme"): 250.0,
            (Rank.BACKFILL, "nightly"): 1200.0,
        }
    )
    assert loop.away["alarm"] == loop.away["acme"] == 0
    assert loop.slowest_ms["alarm"] < loop.slowest_ms["nightly"]
    assert loop.slowest_ms["acme"] < TERMS.high_ms
    assert loop.away["nightly"] > 8000
    assert loop.served["nightly"] > 500


def test_a_flood_of_strangers_costs_who_is_known_nothing() -> None:
    loop = played({(Rank.WEIGHTED, "acme"): 200.0, (Rank.STRANGER, "?"): 2000.0})
    assert loop.away["acme"] == 0
    assert loop.slowest_ms["acme"] < TERMS.high_ms
    assert loop.served["?"] > 0


def test_of_two_tenants_in_one_class_who_asks_for_too_much_is_turned_away() -> None:
    loop = played({(Rank.WEIGHTED, "noisy"): 1500.0, (Rank.WEIGHTED, "quiet"): 100.0})
    assert loop.away["quiet"] == 0
    assert loop.slowest_ms["quiet"] < TERMS.high_ms
    assert loop.away["noisy"] > 5000


def test_a_burst_waits_and_is_served() -> None:
    loop = Loop()
    for _ in range(300):
        loop.arrive(Rank.WEIGHTED, "acme")
    while loop.serve():
        pass
    assert (loop.served["acme"], loop.away["acme"]) == (300, 0)
