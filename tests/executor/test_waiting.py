"""What an engine keeps of those who wait: places told, deadlines kept, at a cost that is their own."""

from __future__ import annotations

from executor.deadlines import Deadlines
from executor.positions import Positions
from executor.sequence import Key, Sequence
from tests.executor.fakes import job

MS = 1_000_000


def seq_of(number: int, tenant: str = "a", queue_ms_max: int | None = None) -> Sequence:
    asked = job(number, share=((tenant, 1.0), ("u", 1.0)), queue_ms_max=queue_ms_max)
    return Sequence((0, number), asked, number, 0)


def told(positions: Positions, now_ms: int) -> list[tuple[int, int]]:
    return [(seq.ticket, place) for seq, place in positions.news(now_ms * MS)]


def test_newcomers_hear_their_place_at_once_and_the_others_now_and_then() -> None:
    positions = Positions()
    mine, theirs = [seq_of(n) for n in range(4)], seq_of(9, "b")
    for seq in (*mine, theirs):
        positions.join(seq)
    assert told(positions, 0) == [(0, 0), (1, 1), (2, 2), (3, 3), (9, 0)]
    positions.leave(mine[0])
    assert told(positions, 1) == [(1, 0), (2, 1), (3, 2)], "nothing was told of late"
    positions.leave(mine[1])
    late = seq_of(10)
    positions.join(late)
    assert told(positions, 2) == [(10, 2)], "the newcomer; the others at the next turn"
    positions.join(mine[0])  # put back before them
    assert told(positions, 3) == [(0, 0)]
    assert told(positions, 101) == [(10, 3)], "2 and 3 stand where they last heard"
    assert told(positions, 300) == []


def test_who_came_and_went_between_two_looks_is_not_told() -> None:
    positions = Positions()
    seq = seq_of(1)
    positions.join(seq)
    positions.leave(seq)
    positions.leave(seq)
    assert told(positions, 0) == []
    assert positions.count == 0


def test_who_is_late_is_found_whoever_waits_beside_it() -> None:
    living: dict[Key, Sequence] = {}
    deadlines = Deadlines(living)
    for number, wait_ms in ((1, 30), (2, 10), (3, None), (4, 20), (5, 20)):
        seq = living[0, number] = seq_of(number, queue_ms_max=wait_ms)
        deadlines.file(seq)
    assert list(deadlines.passed(9 * MS)) == []
    assert list(deadlines.passed(10 * MS)) == [(0, 2)]
    del living[0, 2]
    living[0, 4].advance(1)
    assert list(deadlines.passed(25 * MS)) == [(0, 5)]
    assert list(deadlines.passed(10**18)) == [(0, 1)]


def test_who_reads_anothers_prompt_is_late_when_that_one_is_gone_before_it_was_read() -> None:
    leader, follower = seq_of(1), seq_of(2, queue_ms_max=10)
    leader.advance(1)
    follower.leader = leader
    deadlines = Deadlines({follower.key: follower})
    deadlines.file(follower)
    assert list(deadlines.passed(10 * MS)) == []
    follower.leader = None
    assert list(deadlines.passed(10_000 * MS)) == [follower.key]


def test_those_who_ended_are_not_kept_until_they_would_have_been_late() -> None:
    living: dict[Key, Sequence] = {}
    deadlines = Deadlines(living)
    for number in range(1000):
        deadlines.file(seq_of(number, queue_ms_max=120_000))
    assert len(deadlines._due) < 100
