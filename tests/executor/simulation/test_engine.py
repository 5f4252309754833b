"""The simulated engine: nothing is lost, nothing comes from the future, everything comes again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from random import Random

import pytest

from executor.contract import Workload
from executor.cost import PESSIMIST, Rates, Share
from executor.scheduler.protocol import Limits, Moment, Plan, Scheduler
from executor.simulation.engine import Engine, simulate
from executor.simulation.experiments import CONTENDERS, FAIR, FCFS, Contender
from executor.simulation.machine import A10G, CPU, Machine
from executor.simulation.metrics_requests import Ending
from executor.simulation.outcome import Run
from executor.simulation.work import NS, Request, SimWork
from executor.simulation.workloads import merged, poisson

OURS = [each for each in CONTENDERS.values() if not each.published]
MOSTLY_FAIR = [
    pytest.param(each, id=each.name, marks=() if each is FAIR else pytest.mark.slow)
    for each in OURS
]
SMALL = replace(A10G, kv_blocks=40, seqs=6).slower(3)


def mixed(seed: int, duration_s: float = 12.0) -> list[Request]:
    """Too much for `SMALL`; some clients leave, some wait no longer than so."""
    rng = Random(seed)
    offered = merged(
        poisson(f"t{i}", 0.8, duration_s, rng, prompt=(1, 300), output=(1, 90)) for i in range(3)
    )
    return [
        replace(
            each,
            user=f"u{rng.randrange(2)}",
            cancel_ns=rng.randrange(8 * NS) if rng.random() < 0.2 else None,
            queue_ns=5 * NS if rng.random() < 0.3 else None,
        )
        for each in offered
    ]


def run(contender: Contender, requests: Sequence[Request], machine: Machine = SMALL) -> Run:
    limits = machine.limits()
    engine = Engine(machine, contender.make(limits), limits, jitter=0.05, rng=Random(3))
    seen = simulate(engine, requests)
    assert engine.free == limits.blocks_total, "blocks are missing"
    assert engine.here == 0
    return seen


def digest(seen: Run) -> str:
    return sha256(repr((seen.outcomes, seen.service, seen.steps)).encode()).hexdigest()


@pytest.mark.parametrize("contender", OURS, ids=lambda each: each.name)
def test_each_request_ends_once_and_every_nanosecond_has_an_owner(contender: Contender) -> None:
    requests = mixed(1)
    seen = run(contender, requests)
    assert Counter(each.request for each in seen.outcomes) == Counter(requests)
    kinds = Counter(each.ending for each in seen.outcomes)
    assert set(kinds) == {Ending.FINISHED, Ending.CANCELLED, Ending.EXPIRED}
    if contender is not FAIR:  # which sets aside what will be said
        assert any(each.preemptions for each in seen.outcomes)
    paid = sum(each.device_ns + each.lost_ns for each in seen.outcomes)
    assert paid == seen.busy_ns
    assert sum(each.device_ns for each in seen.service) == sum(o.device_ns for o in seen.outcomes)
    for each in seen.outcomes:
        if each.ending is Ending.FINISHED:
            assert len(each.times_ns) == each.request.output_tokens
    said = sum(len(each.times_ns) for each in seen.outcomes)
    assert said == sum(each.output for each in seen.service)


@pytest.mark.parametrize("contender", MOSTLY_FAIR)
def test_the_same_run_comes_again_byte_for_byte(contender: Contender) -> None:
    once, again, other = (digest(run(contender, mixed(seed, 6.0))) for seed in (2, 2, 3))
    assert once == again != other


def test_nothing_happens_before_its_cause() -> None:
    for each in run(FAIR, mixed(4)).outcomes:
        times = [each.request.at_ns, each.dispatched_ns, *each.times_ns, each.ended_ns]
        known = [at for at in times if at is not None]
        assert known == sorted(known)
        if each.times_ns:
            assert each.dispatched_ns is not None
            assert each.times_ns[0] > each.dispatched_ns
        if each.ending is Ending.EXPIRED:
            assert each.dispatched_ns is None
            assert each.device_ns == 0


class Witness:
    """Passes everything on and writes down what was decided."""

    def __init__(self, inner: Scheduler[SimWork]) -> None:
        self.inner = inner
        self.decided: list[tuple[int, str]] = []
        self.seen: list[object] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def add(self, seq: SimWork, now_ns: int) -> None:
        self.seen += [getattr(seq, slot) for slot in SimWork.__slots__]
        self.inner.add(seq, now_ns)

    def plan(self, moment: Moment) -> Plan[SimWork]:
        self.seen.append(moment.rates)
        plan = self.inner.plan(moment)
        chunks = [(chunk.seq.ticket, chunk.count) for chunk in plan.chunks]
        self.decided.append((moment.now_ns, repr((chunks, [w.ticket for w in plan.preempted]))))
        return plan


def watched(contender: Contender, requests: Sequence[Request], machine: Machine) -> Witness:
    limits = machine.limits()
    witness = Witness(contender.make(limits))
    simulate(Engine(machine, witness, limits), requests)  # type: ignore[arg-type]  # __getattr__ has the rest
    return witness


@pytest.mark.parametrize("contender", MOSTLY_FAIR)
def test_how_long_an_answer_will_be_changes_nothing_before_it_ends(contender: Contender) -> None:
    """Of two runs that differ in one true length, all is the same until the shorter one ends."""
    requests = [replace(each, cancel_ns=None, queue_ns=None) for each in mixed(5, 6.0)]
    at = len(requests) // 3
    longer = [*requests]
    longer[at] = replace(requests[at], output_tokens=requests[at].output_tokens + 200)
    one, other = (watched(contender, each, SMALL) for each in (requests, longer))
    limits = SMALL.limits()
    seen = simulate(Engine(SMALL, contender.make(limits), limits), requests)
    [its] = [each for each in seen.outcomes if each.request is requests[at]]
    before = [each for each in one.decided if each[0] < its.ended_ns]
    assert len(before) > 20
    assert before == other.decided[: len(before)]
    assert one.decided != other.decided


def test_the_scheduler_sees_fitted_rates_and_no_length() -> None:
    """Lengths that stand for themselves: none of them is anywhere in what it is given."""
    requests = [Request(i * NS, "t", 50 + i, 701 + i, max_new_tokens=900) for i in range(2)]
    witness = watched(FAIR, requests, A10G)
    assert not {701, 702} & {each for each in witness.seen if type(each) is int}
    rates = [each for each in witness.seen if isinstance(each, Rates)]
    assert rates[0] == PESSIMIST
    assert rates[-1].step_ns == pytest.approx(A10G.fixed_ns, rel=0.2)
    assert rates[-1].step_ns != A10G.fixed_ns


def test_a_step_is_the_sum_of_its_parts() -> None:
    rows = [Share(1, 99), Share(1, 199), Share(100, 28)]
    expected_ns = 15.3e6 + 3 * 0.254e6 + (100 + 200 + 128) * 2.16e3 + 100 * 0.215e6
    assert A10G.step_ns(rows) == round(expected_ns)
    assert CPU.step_ns([Share(1, 5)] * 4) == 18_000_000
    pairs = replace(CPU, pair_ns=10.0).step_ns([Share(10, 20)]) - CPU.step_ns([Share(10, 20)])
    assert pairs == 10 * sum(range(21, 31))
    assert A10G.slower(2.0).step_ns(rows) == round(2 * expected_ns)


def test_who_cannot_be_served_in_time_is_told_and_may_come_again() -> None:
    machine = CPU
    limits = machine.limits((Workload(name="", ttft_ms=900),))
    requests = [Request(NS + i, "t", 100, 20, returns=3) for i in range(40)]
    engine = Engine(machine, FAIR.make(limits), limits, probed=(0.5, 1.5))
    seen = simulate(engine, [Request(0, "t", 100, 20), *requests])
    refused = [each for each in seen.outcomes if each.ending is Ending.OVER_SHARE]
    again = [each for each in seen.outcomes if each.request.returns < 3 and each.request.at_ns > NS]
    assert refused
    assert all(each.retry_ms and each.device_ns == 0 for each in refused)
    told = {NS + i for i in range(40)} & {each.request.at_ns for each in refused}
    assert len(again) >= len(told) > 0
    assert all(each.request.at_ns >= NS + 50_000_000 for each in again)
    assert {probe.part for probe in seen.probes} == {0.5, 1.5}
    last = [each for each in refused if each.request.returns == 0]
    assert len(seen.outcomes) == 41 + len(refused) - len(last)


def test_a_full_house_sends_somebody_away() -> None:
    limits: Limits = SMALL.limits()
    engine = Engine(SMALL, FCFS.make(limits), limits, waiting_max=5)
    seen = simulate(engine, [Request(0, "t", 100, 20) for _ in range(30)])
    kinds = Counter(each.ending for each in seen.outcomes)
    assert kinds == {Ending.OVER_SHARE: 25, Ending.FINISHED: 5}


def test_the_newest_of_the_largest_backlog_makes_room() -> None:
    limits = SMALL.limits()
    engine = Engine(SMALL, FAIR.make(limits), limits, waiting_max=5)
    offered = [Request(0, "many", 100, 20) for _ in range(10)] + [Request(0, "one", 100, 20)]
    seen = simulate(engine, offered)
    gone = [each.request.tenant for each in seen.outcomes if each.ending is Ending.OVER_SHARE]
    assert gone == ["many"] * 6
    assert len(seen.outcomes) == 11


def test_who_is_sent_away_from_a_full_house_comes_back_to_its_place_when_told() -> None:
    limits = SMALL.limits()
    engine = Engine(SMALL, FAIR.make(limits), limits, waiting_max=5)
    offered = [
        Request(i, "t", 100, 20, retry_key=b"%d" % i, returns=9, user=f"u{i}") for i in range(12)
    ]
    seen = simulate(engine, offered)
    away = [each for each in seen.outcomes if each.ending is Ending.OVER_SHARE]
    assert {each.request.returns for each in away} >= {9}
    assert all(each.retry_ms for each in away)
    done = [each.request.retry_key for each in seen.outcomes if each.ending is Ending.FINISHED]
    assert sorted(done) == sorted(each.retry_key for each in offered)  # type: ignore[type-var]


def test_what_began_in_time_does_not_expire() -> None:
    limits = SMALL.limits()
    engine = Engine(SMALL, FAIR.make(limits), limits)
    [its] = simulate(engine, [Request(0, "t", 100, 50, queue_ns=NS // 10)]).outcomes
    assert its.ending is Ending.FINISHED
    assert its.ended_ns > NS


def test_what_is_cancelled_in_a_step_says_nothing_at_its_end() -> None:
    limits = SMALL.limits()

    def run(cancel_ns: int | None) -> Run:
        engine = Engine(SMALL, FAIR.make(limits), limits)
        return simulate(engine, [Request(0, "t", 10, 9, cancel_ns=cancel_ns)])

    [whole] = run(None).outcomes
    [its] = run(whole.times_ns[3] - 1).outcomes
    assert its.ending is Ending.CANCELLED
    assert its.times_ns == whole.times_ns[:3]
    assert its.ended_ns == whole.times_ns[3]


def test_a_run_may_be_continued() -> None:
    requests = mixed(6, 8.0)
    limits = SMALL.limits()
    whole = simulate(Engine(SMALL, FAIR.make(limits), limits), requests)
    engine = Engine(SMALL, FAIR.make(limits), limits)
    for request in requests:
        engine.offer(request)
    for until_s in (1, 2, 5, 9):
        engine.run(until_s * NS)
    parts = engine.run()
    assert digest(parts) == digest(whole)


@pytest.mark.parametrize(
    "wrong", ({"output_tokens": 0}, {"output_tokens": 2000}, {"prompt_tokens": 0}, {"at_ns": -1})
)
def test_a_request_that_cannot_be_is_refused(wrong: dict[str, int]) -> None:
    fields = {"at_ns": 0, "prompt_tokens": 5, "output_tokens": 5} | wrong
    with pytest.raises(ValueError, match="a request"):
        Request(tenant="t", **fields)  # type: ignore[arg-type]  # all of these are numbers
