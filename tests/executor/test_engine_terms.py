"""What classes of work are promised, at the engine: refused at once, displaced, never what has run."""

from __future__ import annotations

from executor.contract import Cause, Ended, Workload
from executor.cost import Rates, StepTimes
from executor.settings import Settings
from tests.executor.fakes import FREE, Clock, FakeRunner, Harness, job

PROMPT = range(1, 30)


def house_of(seqs_max: int, waiting_max: int = 4096) -> Harness:
    runner = FakeRunner(kv_blocks=400, block_tokens=4, context_tokens=64)
    settings = Settings(
        seqs_max=seqs_max, waiting_max=waiting_max, speculation=False, check_invariants=True
    )
    return Harness(runner, settings=settings, times=StepTimes(FREE), clock=Clock(20_000_000))


def share(tenant: str) -> dict[str, object]:
    return {"share": ((tenant, 1.0), ("u", 1.0)), "workload": "interactive"}


def test_who_would_be_late_by_its_own_backlog_hears_it_at_once_and_when_to_come() -> None:
    house = house_of(seqs_max=2)
    house.terms(Workload(name="interactive", ttft_ms=200))
    for request in range(1, 40):
        house.submit(job(request, PROMPT, max_new_tokens=20, **share("a")))
    house.submit(job(40, PROMPT, max_new_tokens=20, **share("b")))
    house.run()
    late = [n for n in range(1, 40) if house.ended(n).cause is Cause.BACKLOG]
    assert late
    assert late == list(range(late[0], 40)), "the first of them were taken"
    waits = [house.ended(n).retry_ms or 0 for n in late]
    assert min(waits) > 0
    assert all(house.ended(n).generated == 0 and not house.ended(n).device_ns for n in late)
    assert house.ended(40).cause is Cause.LENGTH, "another tenant's backlog is not its own"
    house.assert_empty()


def test_a_prompt_too_long_for_the_promise_is_let_in_and_told_so() -> None:
    house = Harness(
        FakeRunner(kv_blocks=400, block_tokens=4, context_tokens=64),
        settings=Settings(seqs_max=2, speculation=False, check_invariants=True),
        times=StepTimes(Rates(step_ns=1e6, token_ns=1e6, token_context_ns=0.0)),
        clock=Clock(1_000_000),
    )
    house.terms(Workload(name="interactive", ttft_ms=10))
    house.submit(job(1, PROMPT, max_new_tokens=4, **share("a")))
    house.submit(job(2, (1, 2), max_new_tokens=4, **share("a")))
    house.run()
    assert [house.ended(n).promised for n in (1, 2)] == [False, True]
    assert house.ended(1).cause is Cause.LENGTH


def test_who_was_promised_nothing_waits() -> None:
    house = house_of(seqs_max=2)
    house.terms(Workload(name="interactive"))
    for request in range(1, 40):
        house.submit(job(request, PROMPT, max_new_tokens=20, **share("a")))
    house.run()
    assert all(house.ended(n).cause is Cause.LENGTH for n in range(1, 40))


def test_what_belongs_to_a_request_that_was_let_in_is_not_asked_again() -> None:
    """Else a list of prompts on an empty machine would be refused for its own first ones."""
    house = house_of(seqs_max=2)
    house.terms(Workload(name="interactive", ttft_ms=200))
    for request in range(1, 41):
        part = request > 1
        house.submit(job(request, PROMPT, max_new_tokens=20, part=part, **share("a")))
    house.run()
    assert all(house.ended(n).cause is Cause.LENGTH for n in range(1, 41))


def test_a_full_house_displaces_the_newest_of_whoever_has_most_waiting() -> None:
    house = house_of(seqs_max=1, waiting_max=4)
    for request in range(1, 6):
        house.submit(job(request, PROMPT, **share("a")))
        house.step()
    house.submit(job(6, PROMPT, **share("b")))
    house.run()
    assert [n for n in range(1, 7) if house.ended(n).cause is Cause.BACKLOG] == [5]
    assert house.ended(5).generated == 0
    assert house.ended(5).displaced
    assert house.ended(5).retry_ms
    house.assert_empty()


def test_nobody_who_has_run_is_displaced() -> None:
    house = house_of(seqs_max=1, waiting_max=1)
    house.terms(Workload(name="interactive", ttft_ms=10_000))
    house.submit(job(1, PROMPT, **share("a")))
    house.step()
    house.submit(job(2, PROMPT, **share("a")))
    house.submit(job(3, PROMPT, **share("b")))
    house.submit(job(4, PROMPT, **share("a")))
    house.run()
    assert house.ended(1).cause is house.ended(2).cause is Cause.LENGTH
    assert house.ended(3).cause is Cause.OVERLOADED, "it had nothing here: no fault of its own"
    assert house.ended(4).cause is Cause.BACKLOG
    admission = house.engine._scheduler.inner._admission  # type: ignore[attr-defined]
    assert not admission.foresight._guesses, "nor is anything remembered of them"


def test_who_looks_sees_who_holds_the_executor_and_who_waits() -> None:
    house = house_of(seqs_max=2)
    for request, tenant in enumerate("aaab", 1):
        house.submit(job(request, PROMPT, max_new_tokens=20, **share(tenant)))
    for _ in range(5):
        house.step()
    house.look(owner=7)
    reports = house.step()
    assert reports[0].overviews == (), "it did not ask"
    (shown,) = reports[7].overviews
    seen = {(lane.workload, lane.tenant): lane for lane in shown.lanes}
    first, second = seen["interactive", "a"], seen["interactive", "b"]
    assert (first.running, first.waiting, second.running, second.waiting) == (1, 2, 1, 0)
    assert (first.due, second.due) == (0.5, 0.5)
    assert abs(first.used - 0.5) < 0.2
    assert abs(first.used + second.used - 1) < 1e-6
    assert first.oldest_ms > 0 == second.oldest_ms
    (whole,) = shown.classes
    assert (whole.workload, whole.running, whole.waiting) == ("interactive", 2, 2)
    house.look(owner=7, tenant="b")
    house.look(owner=7)
    house.look(owner=7, tenant="b")
    reports = house.step()
    assert reports[0].overviews == ()
    own, everybody = reports[7].overviews
    assert (own.tenant, [lane.tenant for lane in own.lanes]) == ("b", ["b"])
    assert (own.classes[0].running, own.classes[0].waiting) == (1, 0), "nobody else is counted"
    assert (everybody.tenant, len(everybody.lanes)) == (None, 2)


def test_choices_that_wait_for_their_prompt_take_nobodys_place() -> None:
    """Requests of many choices: all but one of each stand outside the queue."""
    house = house_of(seqs_max=2, waiting_max=64)
    number = 0
    for _ in range(9):
        first = number = number + 1
        house.submit(job(number, PROMPT, **share("many")))
        for _ in range(15):
            number += 1
            house.submit(job(number, PROMPT, sibling=first, part=True, **share("many")))
    house.step()
    for _ in range(4):
        number += 1
        house.submit(job(number, PROMPT, **share("many")))
    house.submit(job(number + 1, PROMPT, **share("one")))
    house.step()
    assert house.engine.gauges.waiting == 64
    assert (0, number + 1) in house.heard, "it was told its place"
    assert not any(isinstance(word, Ended) for word in house.heard[0, number + 1])
    gone = [n for n in range(1, number + 1) if (0, n) in house.heard and is_over(house, n)]
    assert all(house.ended(n).retry_ms and not house.ended(n).device_ns for n in gone)
    for other in range(number + 2, number + 40):
        house.submit(job(other, PROMPT, **share(f"t{other}")))
    house.run()
    assert all(house.ended(n).cause is Cause.LENGTH for n in range(number + 1, number + 40))
    house.assert_empty()


def is_over(house: Harness, request: int) -> bool:
    return isinstance(house.heard[0, request][-1], Ended)


def test_the_memory_of_those_who_wait_is_bounded() -> None:
    runner = FakeRunner(kv_blocks=400, block_tokens=4, context_tokens=64)
    settings = Settings(
        seqs_max=1, waiting_bytes_max=40_000, speculation=False, check_invariants=True
    )
    house = Harness(runner, settings=settings, times=StepTimes(FREE), clock=Clock(20_000_000))
    for request in range(1, 30):
        house.submit(job(request, PROMPT, **share("a")))
    house.step()
    house.submit(job(30, PROMPT, **share("a")))
    house.submit(job(31, PROMPT, **share("b")))
    house.run()
    gone = [n for n in range(1, 32) if house.ended(n).cause is Cause.BACKLOG]
    assert gone == list(range(12, 31)), "of some 3,400 bytes each"
    assert [n for n in gone if house.ended(n).displaced] == [30]


def test_nobody_makes_room_for_who_is_refused() -> None:
    house = house_of(seqs_max=1, waiting_max=4)
    house.terms(Workload(name="interactive", ttft_ms=100))
    house.submit(job(1, PROMPT, **share("late")))
    house.step()
    for request in range(2, 6):
        house.submit(job(request, PROMPT, **{**share("other"), "workload": ""}))
    for request in range(6, 9):
        house.submit(job(request, PROMPT, **share("late")))
    house.run()
    assert [n for n in range(1, 9) if house.ended(n).cause is Cause.BACKLOG] == [6, 7, 8]
    house.assert_empty()


def test_17_who_was_refused_and_comes_by_its_key_stands_where_it_stood() -> None:
    house = house_of(seqs_max=2)
    house.terms(Workload(name="interactive", ttft_ms=200))
    for request in range(1, 12):
        key = b"%016d" % request
        house.submit(job(request, PROMPT, max_new_tokens=20, retry_key=key, **share("a")))
    house.step()
    late = [n for n in range(1, 12) if isinstance(house.heard[0, n][-1], Ended)]
    assert late
    house.clock.now_ns += (house.ended(late[0]).retry_ms or 0) * 1_000_000
    house.terms(Workload(name="interactive"))  # promised nothing, so that both come in
    house.submit(job(20, PROMPT, max_new_tokens=20, **share("a")))
    house.submit(job(21, PROMPT, max_new_tokens=20, retry_key=b"%016d" % late[0], **share("a")))
    house.step()
    places = [entry.place for entry in house.engine._scheduler.inner._waiting.values()]  # type: ignore[attr-defined]
    assert late[0] - 1 in places, "the ticket of its first coming"
    house.run()
    house.assert_empty()


def test_many_with_one_start_time_in_two_classes_do_not_end_the_step() -> None:
    """More than are looked at for the longest kept prefix: the first of them in order is among them all the
    same, whatever its ticket."""
    house = Harness(
        FakeRunner(kv_blocks=64),
        settings=Settings(pool_part=0.5, seqs_max=4, check_invariants=True),
    )
    house.terms(Workload(name="A"), Workload(name="B"))
    asked = [("x", "A"), ("y", "B"), *((f"{name}{n}", name) for n in range(16) for name in "AB")]
    for request, (user, name) in enumerate([*asked, ("x", "A"), ("y", "B")]):
        path = (("t", 1.0), (user, 1.0))
        house.submit(job(request, (1, 2, 3), max_new_tokens=2, share=path, workload=name))
    house.abort(0)
    house.abort(1)
    house.run()
    assert all(house.ended(n).cause is Cause.LENGTH for n in range(2, len(asked) + 2))
    house.assert_empty()
