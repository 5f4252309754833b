"""Places of those who were refused: whose they are, how long they last, who stands before whom."""

from __future__ import annotations

import pytest

from executor.scheduler.promises import RETRY_MS_MIN, Ahead
from executor.scheduler.protocol import Turn
from executor.scheduler.tickets import PLACES_MAX, QUEUES_MAX, Tickets
from tests.executor.scheduler.driver import Job

MS = 1_000_000
QUEUE = ("chat", "a")
AHEAD = Ahead(10, 20)


class Desk:
    """Requests by number, which come, are refused and come again."""

    def __init__(self) -> None:
        self.tickets = Tickets()
        self._next = 0

    def come(self, number: int, at_ms: int, user: str = "u", weight: float = 1.0) -> Job:
        """As the engine does; one that is early leaves its place where it is."""
        job = Job(self._next, user=user, user_weight=weight, retry_key=b"%d" % number)
        self._next += 1
        job.turn = self.tickets.take(QUEUE, job.retry_key, at_ms * MS)
        return job

    def refuse(
        self, job: Job, at_ms: int, *, retry_ms: int = 100, came_in: bool = False, tenant: str = "a"
    ) -> int:
        now_ns, queue = at_ms * MS, ("chat", tenant)
        return self.tickets.keep(
            queue, job, AHEAD, retry_ms=retry_ms, now_ns=now_ns, came_in=came_in
        )

    def turned(self, number: int, *, retry_ms: int = 100, at_ms: int = 0, user: str = "u") -> Job:
        """A newcomer that was refused."""
        job = self.come(number, at_ms, user)
        assert self.refuse(job, at_ms, retry_ms=retry_ms) == retry_ms
        return job

    def has(self, number: int) -> Turn | None:
        return self.tickets._places.get(QUEUE, {}).get(b"%d" % number)

    def before(self, job: Job, at_ms: int) -> list[int]:
        return [each.ticket for each in self.tickets.before(QUEUE, job, 0, at_ms * MS)]


def test_a_place_lasts_twice_as_long_as_was_told() -> None:
    desk = Desk()
    first = desk.turned(7)
    back = desk.come(7, 199)
    assert back.turn is not None
    assert (back.place, back.turn.ahead) == (first.ticket, AHEAD)
    desk = Desk()
    desk.turned(7)
    assert desk.come(7, 200).turn is None
    assert not desk.tickets._places, "and then nothing is left of it"


def test_nobody_without_a_key_has_one_and_nobody_anothers() -> None:
    desk = Desk()
    assert desk.refuse(Job(1), 0) == 100
    assert not desk.tickets._places
    desk.turned(2)
    for other in (("chat", "b"), ("batch", "a")):
        assert desk.tickets.take(other, b"2", 150 * MS) is None
    assert desk.come(2, 150).turn is not None
    assert desk.come(2, 150).turn is None, "used up"


def test_17_refused_again_it_keeps_its_ticket_its_turn_and_its_end() -> None:
    """However it retries: 200 ms are twice what it was told first."""
    desk = Desk()
    first = desk.turned(1)
    at_ms, told = 100, []
    while at_ms < 200:
        back = desk.come(1, at_ms)
        assert back.turn is not None
        assert (back.turn.ticket, back.turn.due_ns) == (first.ticket, 100 * MS)
        assert back.turn.until_ns == 200 * MS
        told.append(desk.refuse(back, at_ms, retry_ms=80))
        at_ms += told[-1]
    assert told == [80, 80], "the last begins anew: its place ends in 20 ms"
    again = desk.come(1, at_ms)
    assert again.place > first.ticket


def test_17_nobody_is_told_to_come_when_its_place_is_over() -> None:
    desk = Desk()
    desk.turned(1)
    assert desk.refuse(desk.come(1, 100), 100, retry_ms=5000) == 100
    desk.turned(2, at_ms=0, retry_ms=1000)
    late_ms = 2000 - RETRY_MS_MIN + 1
    assert desk.refuse(desk.come(2, late_ms), late_ms, retry_ms=5000) == 5000, "as good as over"


def test_17_who_comes_early_changes_nothing() -> None:
    desk = Desk()
    for number in range(3):
        desk.turned(number, retry_ms=100 * (number + 1))
    was = dict(desk.tickets._places[QUEUE])
    for at_ms in range(0, 100, 7):
        turn = desk.come(0, at_ms).turn
        assert turn is not None
        assert turn.next_ns == 100 * MS
        assert desk.tickets._places[QUEUE] == was


def test_17_who_was_in_the_queue_and_is_sent_away_keeps_its_first_place() -> None:
    """Once and again, with a life of its own each time: it was let in."""
    desk = Desk()
    first = desk.turned(1)
    at_ms = 100
    for _ in range(3):
        back = desk.come(1, at_ms)
        desk.refuse(back, at_ms + 900, retry_ms=300, came_in=True)
        turn = desk.has(1)
        assert turn is not None
        assert (turn.ticket, turn.due_ns) == (first.ticket, 100 * MS)
        at_ms += 1200
        assert (turn.next_ns, turn.until_ns) == (at_ms * MS, (at_ms + 300) * MS)


def test_of_two_requests_by_one_key_the_earlier_place_is_kept() -> None:
    desk = Desk()
    first = desk.turned(1)
    inside = desk.come(1, 100)
    desk.turned(1, at_ms=110)
    desk.refuse(inside, 120, came_in=True)
    turn = desk.has(1)
    assert turn is not None
    assert turn.ticket == first.ticket
    desk.refuse(desk.come(3, 120), 120)
    assert len(desk.tickets._places[QUEUE]) == 2


def test_newcomers_stand_behind_all_of_them() -> None:
    desk = Desk()
    for number in (0, 1, 2):
        desk.turned(number, retry_ms=100 * (number + 1))
    assert desk.before(Job(9), 50) == [0, 1, 2]
    assert desk.before(Job(9), 250) == [1, 2]


def test_who_comes_when_told_stands_behind_those_who_were_told_an_earlier_time() -> None:
    desk = Desk()
    for number, told in enumerate((300, 150, 200)):
        desk.turned(number, retry_ms=told)
    third = desk.come(2, 200)
    assert desk.before(third, 200) == [1], "the first is to come later"
    desk.refuse(third, 200, retry_ms=50)
    assert desk.before(desk.come(2, 250), 250) == [1], "also if it was told another time since"


def test_of_another_user_as_many_count_as_one_has_and_one_more() -> None:
    desk = Desk()
    for number in range(6):
        desk.turned(number, user="many", retry_ms=100 + number)
    desk.turned(6, user="some", retry_ms=110)
    assert desk.before(Job(9, user="new"), 0) == [0, 6]
    assert desk.before(Job(9, user="some"), 0) == [0, 1, 6]
    assert desk.before(Job(9, user="many"), 0) == [0, 1, 2, 3, 4, 5, 6]


def test_a_user_that_takes_all_places_leaves_those_that_others_come_for() -> None:
    """The newest of whoever has most goes, until all have as many; nobody's own, and nothing by turns."""
    desk = Desk()
    for number in range(PLACES_MAX + 10):
        desk.turned(number, user="greedy")
    assert [desk.has(n) is not None for n in (0, PLACES_MAX - 1, PLACES_MAX)] == [True, True, False]
    for number in range(100, 100 + PLACES_MAX):
        desk.turned(number, user="calm")
    held = [turn.user for turn in desk.tickets._places[QUEUE].values()]
    assert (held.count("greedy"), held.count("calm")) == (PLACES_MAX // 2, PLACES_MAX // 2)
    was = dict(desk.tickets._places[QUEUE])
    for number in range(200, 300):
        desk.turned(number, user="greedy" if number % 2 else "calm")
    assert desk.tickets._places[QUEUE] == was
    assert all(desk.has(n) is not None for n in range(PLACES_MAX // 2)), "the oldest stay"
    desk.turned(300, user="one")
    assert desk.has(300) is not None
    assert len(desk.tickets._places[QUEUE]) == PLACES_MAX


@pytest.mark.parametrize(("weight", "places"), ((1.0, 32), (3.0, 48), (1 / 3, 16)))
def test_places_are_shared_by_weight(weight: float, places: int) -> None:
    desk = Desk()
    for number in range(PLACES_MAX):
        desk.turned(number, user="greedy")
    for number in range(100, 200):
        desk.refuse(desk.come(number, 0, "other", weight), 0)
    held = [turn.user for turn in desk.tickets._places[QUEUE].values()]
    assert abs(held.count("other") - places) <= 1


def test_tenants_are_bounded_and_make_room_when_their_places_are_over() -> None:
    desk = Desk()
    for number in range(QUEUES_MAX):
        desk.refuse(desk.come(number, 0), 0, tenant=f"t{number}")
    desk.refuse(desk.come(9999, 0), 0, tenant="late")
    assert len(desk.tickets._places) == QUEUES_MAX
    assert ("chat", "late") not in desk.tickets._places
    desk.refuse(desk.come(9999, 200), 200, tenant="late")
    assert list(desk.tickets._places) == [("chat", "late")]
