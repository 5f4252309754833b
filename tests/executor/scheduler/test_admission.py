"""Who comes in, and what others have to do with it: invariants 15, 17 and 18 of SCHEDULER.md §2."""

from __future__ import annotations

from random import Random

import pytest

from executor.contract import Workload
from executor.scheduler.admission import HALF_NS, Crowd, part_of
from executor.scheduler.fair import Fair, Tuning
from executor.scheduler.promises import Ahead, Refusal
from executor.scheduler.protocol import Moment, Turn
from tests.executor.scheduler.driver import House, Job, limits

PROMISED = (Workload(name="", ttft_ms=400),)
MS = 1_000_000


def house_of(seqs: int = 16, *, tuning: Tuning | None = None) -> House:
    machine = limits(seqs=seqs, workloads=PROMISED)
    return House(machine, Fair(machine, tuning or Tuning()))


def moment(house: House) -> Moment:
    return Moment(house.now_ns, house.free, house.times.rates)


def newcomer(house: House, tenant: str, **fields: object) -> Job:
    fields = {"prompt_tokens": 32, "length": 8, "max_new_tokens": 64} | fields
    return Job(10_000, tenant=tenant, since_ns=house.now_ns, **fields)  # type: ignore[arg-type]


def asks(house: House, tenant: str, **fields: object) -> Refusal | None:
    return house.fair.refuses(newcomer(house, tenant, **fields), moment(house))


def sure_ns(house: House, tenant: str) -> float:
    """By its own part alone."""
    fair, job = house.fair, newcomer(house, tenant)
    absent = fair._admission._absent(job, house.now_ns)
    return fair._admission._sure_ns(job, absent, fair._held(job), moment(house))


def is_sure(house: House, tenant: str) -> bool:
    job = newcomer(house, tenant)
    factor = house.fair._admission.foresight.factor(job, house.now_ns)
    return sure_ns(house, tenant) * factor <= 400 * MS


def comes(house: House, tenant: str, **fields: object) -> bool:
    """It asks, and comes in if it may."""
    if asks(house, tenant, **fields) is not None:
        return False
    house.add(**{"tenant": tenant, "prompt_tokens": 32, "length": 8} | fields)
    return True


def busy(seed: int) -> House:
    """Some tenants in the middle of something."""
    rng = Random(seed)
    house = house_of(rng.choice([4, 16, 64]))
    for _ in range(rng.randint(5, 60)):
        for _ in range(rng.choice([0, 1, 4])):
            comes(
                house,
                rng.choice("abcd"),
                length=rng.randint(1, 60),
                prompt_tokens=rng.randint(1, 90),
            )
        if house.alive:
            house.step()
    return house


# 15


def test_15_arrivals_of_who_is_here_already_change_nobody_elses_answer() -> None:
    """Of none whatever, so of no one over its share.  Not `room in the house`, which others fill."""
    answers: set[tuple[bool, bool]] = set()
    for seed in range(24):
        house = busy(seed)
        rng = Random(seed)
        here = {job.tenant for job in house.alive.values()}
        for tenant in "abcde":
            was = sure_ns(house, tenant)
            sure, told = is_sure(house, tenant), asks(house, tenant)
            for other in here - {tenant}:
                for _ in range(rng.randint(1, 30)):
                    house.add(tenant=other, prompt_tokens=rng.randint(1, 90), length=5)
            assert sure_ns(house, tenant) == was
            now = asks(house, tenant)
            assert now == told if told is not None else (now is None or not sure)
            answers.add((sure, told is None))
    assert answers >= {(True, True), (False, True), (False, False)}, "the histories say too little"


def test_15_whoever_is_within_its_part_is_taken_whatever_others_do() -> None:
    """Beside a flood, in the house of which it is sure of half."""
    for length in (4, 20, 40):
        house = house_of(16)
        for _ in range(3):
            house.add(tenant="mine", prompt_tokens=8, length=length, max_new_tokens=64)
        for _ in range(200):
            house.keep(30, "flood", prompt_tokens=60, length=40)
            house.step()
            own = sum(job.tenant == "mine" for job in house.alive.values())
            if own < 3:
                assert asks(house, "mine", prompt_tokens=8) is None
                house.add(tenant="mine", prompt_tokens=8, length=length, max_new_tokens=64)


def test_15_others_being_late_teaches_nothing_about_a_tenant() -> None:
    house = house_of(2)
    seen = house.fair._admission.foresight
    mine, theirs = newcomer(house, "mine"), Job(0, tenant="theirs")
    seen.watches(theirs, 1.0, 0)
    house.add(tenant="theirs", length=4)
    house.run()
    assert seen.factor(theirs, house.now_ns) > seen.factor(mine, house.now_ns) == 1.5


def test_15_the_weight_of_others_counts_in_notches_and_fades_slowly() -> None:
    parts = [
        1 / part_of(1.0, weight) for weight in (0.5, 1.0, 1.01, 1.5, 1.6, 2.0, 2.1, 3.0, 5.0, 7.0)
    ]
    assert parts == pytest.approx([1, 1, 1.5, 1.5, 2, 2, 3, 3, 6, 8])
    rng = Random(3)
    for _ in range(200):
        weight, whole = rng.uniform(0.01, 50), rng.uniform(0.01, 5000)
        exact = min(1.0, weight / whole)
        assert exact / 1.51 <= part_of(weight, whole) <= exact * (1 + 1e-6)
    crowd = Crowd()
    assert crowd.sees(8.0, 0) == 8.0
    assert crowd.sees(1.0, int(HALF_NS)) == pytest.approx(4.0)
    assert crowd.sees(6.0, int(HALF_NS)) == 6.0, "who comes counts at once"


def test_15_what_is_told_says_nothing_of_how_many_others_asked() -> None:
    house = overfull()
    told = [
        house.fair.refuses(Job(ticket, tenant="a"), moment(house)) for ticket in range(900, 999)
    ]
    assert told[0] is not None
    assert len({*told}) == 1
    seen = set()
    for ticket in range(40):
        house.fair.turns_away(Job(ticket, tenant="a"), 100, house.now_ns)
        seen.add(house.fair.refuses(Job(900, tenant="a"), moment(house)))
    assert len(seen) > 1, "but not all of its own are sent back at once"


def test_a_lone_tenant_has_the_whole_of_an_idle_machine() -> None:
    """Also after a busy minute, and down to its last row."""
    for seqs in (1, 2, 3, 16):
        house = house_of(seqs)
        for tenant in "bcdefgh":
            house.add(tenant=tenant, length=2)
        house.run()
        for _ in range(seqs):
            assert comes(house, "a", prompt_tokens=4, length=50, max_new_tokens=50)
        house.step()
        assert house.queue.running_count == seqs
    assert not comes(house, "a", prompt_tokens=4, length=50, max_new_tokens=50), "no more than it"


# 17


def storm(house: House, key: bytes, ticket: int) -> Refusal | None:
    """One more asking by the same key, as an engine has it."""
    job = Job(ticket, tenant="a", retry_key=key, since_ns=house.now_ns)
    job.turn = house.fair.returns(job, house.now_ns)
    if job.turn is not None and house.now_ns < job.turn.next_ns:
        return Refusal(-((house.now_ns - job.turn.next_ns) // MS))
    told = house.fair.refuses(job, moment(house))
    if told is not None:
        house.fair.turns_away(job, told.retry_ms, house.now_ns)
    return told


def overfull(tuning: Tuning | None = None) -> House:
    house = house_of(4, tuning=tuning)
    while comes(house, "a", length=60, max_new_tokens=60):
        pass
    house.keep(8, "b", length=60, max_new_tokens=60)
    house.step()
    return house


def test_17_asking_often_changes_no_start_time_and_no_ticket() -> None:
    house = overfull()
    flow = house.fair._accounts.tenants.get("a")
    assert flow is not None
    start = flow.start, house.fair._accounts.tenants.virtual
    first = len(house.made)
    asked = 0
    while (told := storm(house, b"k" * 16, first + asked)) is not None:
        asked += 1
        assert (flow.start, house.fair._accounts.tenants.virtual) == start
        if asked > 50:
            break
    assert told is not None
    house.made += [Job(n) for n in range(first, first + asked)]
    other = house.add(tenant="a", length=2)
    house.now_ns += told.retry_ms * MS
    mine = house.add(tenant="a", length=2, retry_key=b"k" * 16)
    entry = house.fair._waiting[mine.ticket]
    assert entry.place == first < other.ticket < mine.ticket
    queue = house.fair._bands[""]._queues["a", "u"]
    assert [each.place for each in queue] == sorted(each.place for each in queue)
    assert queue.index(entry) < queue.index(house.fair._waiting[other.ticket])


def test_17_before_its_time_it_is_told_the_rest_of_it() -> None:
    """Though there is room by then: else who asks often were before who comes when told."""
    house = overfull()
    told = storm(house, b"k" * 16, 900)
    assert told is not None
    due_ns = house.now_ns + told.retry_ms * MS
    for job in list(house.alive.values()):
        house.end(job)
    while house.now_ns < due_ns:
        assert storm(house, b"k" * 16, 901) == Refusal(-((house.now_ns - due_ns) // MS))
        house.now_ns += 7 * MS
    assert storm(house, b"k" * 16, 901) is None


def test_a_place_holds_back_the_newcomers_of_its_tenant_and_nobody_else() -> None:
    house = overfull()
    was = {tenant: sure_ns(house, tenant) for tenant in "abc"}
    for number in range(3):
        storm(house, b"%d" % number * 16, 900 + number)
    now = {tenant: sure_ns(house, tenant) for tenant in "abc"}
    assert now["a"] > was["a"]
    assert (now["b"], now["c"]) == (was["b"], was["c"])


def test_who_comes_when_told_is_taken_before_a_newcomer() -> None:
    house = overfull()
    told = storm(house, b"k" * 16, 900)
    assert told is not None
    due_ns = house.now_ns + told.retry_ms * MS
    while house.now_ns < due_ns:
        house.keep(8, "b", length=60, max_new_tokens=60)
        house.step()
    mine = Job(901, tenant="a", retry_key=b"k" * 16)
    new = Job(902, tenant="a")
    absent = [house.fair._admission._absent(job, house.now_ns) for job in (mine, new)]
    assert [len(each) for each in absent] == [0, 1]


def test_17_between_classes_too_who_came_first_goes_first_where_all_else_is_equal() -> None:
    machine = limits(seqs=1, workloads=(Workload(name="x"), Workload(name="y")))
    house = House(machine, Fair(machine))
    first = Turn(0, -1, "u", 1.0, Ahead(1, 1), 0, 0)
    house.add(tenant="a", workload="x")
    back = house.add(tenant="a", workload="y", turn=first)
    house.step()
    assert house.plan.admitted == [back]


# 18


def test_18_who_has_nothing_here_is_never_refused() -> None:
    asked = 0
    for seed in range(16):
        house = busy(seed)
        here = {job.tenant for job in house.alive.values()}
        for tenant in {*"abcde"} - here:
            assert asks(house, tenant) is None
            asked += 1
    assert asked > 16


def test_18_a_flood_refuses_itself_alone() -> None:
    house = house_of(8)
    refused = 0
    for _ in range(300):
        for _ in range(6):
            refused += not comes(house, "flood", length=30)
        if not any(job.tenant == "one" for job in house.alive.values()):
            assert comes(house, "one", length=10)
        house.step()
    assert refused > 300
    assert house.queue.waiting_count < 20, "and its queue is bounded by what it was promised"


# Terms


@pytest.mark.parametrize("kinds", ((None, 1.0), (1.0, None)))
def test_a_class_that_becomes_another_sort_knows_of_whom_nothing_runs(
    kinds: tuple[float | None, float | None],
) -> None:
    first, then = (Workload(name="x", weight=weight) for weight in kinds)
    machine = limits(seqs=2, workloads=(first,))
    house = House(machine, Fair(machine))
    for tenant in "aab":
        house.add(tenant=tenant, workload="x", length=40, max_new_tokens=64)
    house.step()
    house.add(tenant="b", workload="x", length=5)
    house.add(tenant="c", workload="x", length=5)
    resting = {each for each in "abc" if each in house.fair._bands["x"].resting}
    house.fair.renew(limits(seqs=2, workloads=(then,)))
    assert {each for each in "abc" if each in house.fair._bands["x"].resting} == resting
    assert "c" in resting
    house.run()


def test_a_long_queue_is_not_walked() -> None:
    """Those who wait beyond a bound count in sum."""
    plain = limits(seqs=4)
    house = House(plain, Fair(plain))
    for _ in range(2000):
        house.add(tenant="a", length=8, prompt_tokens=16)
    house.fair.renew(limits(seqs=4, workloads=PROMISED))
    queue = house.fair._admission.foresight._waiting["", "a"]
    assert (len(queue), queue.prompts) == (2000, 32_000)
    own = house.fair._admission.foresight.own(newcomer(house, "a"), 10**9, ())
    assert len(own.waiting) == 256
    assert own.rest.prompt_tokens == 32_000 - 256 * 16
    told = asks(house, "a")
    assert told is not None
    assert told.retry_ms > 10_000
