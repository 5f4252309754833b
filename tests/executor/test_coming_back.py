"""Who was refused or sent away comes back, at the engine: its place kept, whatever refused it, and told as it is."""

from __future__ import annotations

from executor.contract import Cause, Waiting
from executor.cost import StepTimes
from executor.scheduler.protocol import Turn
from executor.settings import Settings
from tests.executor.fakes import FREE, Clock, FakeRunner, Harness, job

MS = 1_000_000
PROMPT = range(1, 30)
KEY = b"k" * 16


def house_of(waiting_max: int) -> Harness:
    runner = FakeRunner(kv_blocks=400, block_tokens=4, context_tokens=64)
    settings = Settings(
        seqs_max=1, waiting_max=waiting_max, speculation=False, check_invariants=True
    )
    return Harness(runner, settings=settings, times=StepTimes(FREE), clock=Clock(1_000_000))


def come(house: Harness, *requests: int, tenant: str = "a", key: bytes | None = None) -> None:
    for request in requests:
        share = ((tenant, 1.0), ("u", 1.0))
        house.submit(job(request, PROMPT, max_new_tokens=20, share=share, retry_key=key))
    house.step()


def end(house: Harness, *requests: int) -> None:
    for request in requests:
        house.abort(request)
    house.step()


def later(house: Harness, wait_ms: int) -> None:
    house.clock.now_ns += wait_ms * MS


def turn(house: Harness) -> Turn:
    (places,) = house.engine._scheduler.inner._admission._tickets._places.values()  # type: ignore[attr-defined]
    (found,) = places.values()
    return found  # type: ignore[no-any-return]


def position(house: Harness, request: int) -> int:
    return [said.position for said in house.heard[0, request] if isinstance(said, Waiting)][-1]


def test_a_full_house_keeps_a_place_for_whom_it_refuses() -> None:
    house = house_of(waiting_max=3)
    come(house, 1)
    come(house, 2, 3, 4)
    come(house, 5, key=KEY)
    refused = house.ended(5)
    assert refused.cause is Cause.BACKLOG
    assert refused.retry_ms
    assert turn(house).next_ns == turn(house).due_ns
    later(house, refused.retry_ms)
    end(house, 3, 4)
    come(house, 6)
    come(house, 7, key=KEY)
    assert (position(house, 7), position(house, 6)) == (1, 1), "6 heard its own before 7 came"
    later(house, 200)
    house.step()
    assert (position(house, 2), position(house, 7), position(house, 6)) == (0, 1, 2)
    house.run()
    assert [n for n in (1, 2, 6, 7) if house.ended(n).cause is Cause.LENGTH] == [1, 2, 6, 7]
    house.assert_empty()


def test_who_comes_early_hears_the_rest_of_its_time_though_there_is_room() -> None:
    house = house_of(waiting_max=1)
    come(house, 1)
    come(house, 2)
    come(house, 3, key=KEY)
    told_ms, was = house.ended(3).retry_ms, turn(house)
    assert told_ms is not None
    end(house, 1, 2)
    later(house, told_ms // 2)
    come(house, 4, key=KEY)
    early = house.ended(4)
    assert (early.cause, early.displaced) == (Cause.BACKLOG, False)
    assert early.retry_ms is not None
    assert told_ms // 4 < early.retry_ms <= told_ms // 2
    assert turn(house) == was
    later(house, early.retry_ms)
    come(house, 5, key=KEY)
    house.run()
    assert house.ended(5).cause is Cause.LENGTH
    house.assert_empty()


def test_who_is_sent_away_again_keeps_the_place_of_its_first_coming() -> None:
    house = house_of(waiting_max=3)
    come(house, 1)
    come(house, 2, 3, 4)
    come(house, 5, key=KEY)
    end(house, 3, 4)
    first = turn(house)
    for request in (10, 20):
        later(house, (turn(house).next_ns - house.clock.now_ns) // MS + 1)
        come(house, request, request + 1, key=KEY)  # the second of them is a newcomer
        come(house, request + 2, tenant="b")
        assert house.ended(request + 1).displaced, "the newest"
        come(house, request + 3, tenant="c")
        assert house.ended(request).displaced, "of those that are left"
        kept = turn(house)
        assert (kept.ticket, kept.due_ns) == (first.ticket, first.due_ns)
        assert kept.next_ns > house.clock.now_ns
        end(house, request + 2, request + 3)
    house.run()
    house.assert_empty()


def test_the_newest_is_who_came_first_last() -> None:
    """One that comes back to its old place is not sent away for one that came after that."""
    house = house_of(waiting_max=3)
    come(house, 1)
    come(house, 2, 3, 4)
    come(house, 5, key=KEY)
    refused = house.ended(5).retry_ms
    assert refused is not None
    end(house, 3, 4)
    come(house, 6)
    later(house, refused)
    come(house, 7, key=KEY)
    come(house, 8, tenant="b")
    assert house.ended(6).displaced
    house.run()
    house.assert_empty()
