"""Places of those who were refused: whose they are, how long they last, who stands before whom."""

from __future__ import annotations

from executor.scheduler.promises import Ahead
from executor.scheduler.tickets import PLACES_MAX, QUEUES_MAX, Tickets, Turn
from tests.executor.scheduler.driver import Job

MS = 1_000_000
QUEUE = ("chat", "a")
AHEAD = Ahead(10, 20)


def keep(
    tickets: Tickets, ticket: int, *, retry_ms: int = 100, at_ms: int = 0, **has: str
) -> bytes:
    key = b"%d" % ticket
    work = Job(ticket, retry_key=key, user=has.get("user", "u"))
    queue = ("chat", has.get("tenant", "a"))
    tickets.keep(queue, work, AHEAD, retry_ms=retry_ms, now_ns=at_ms * MS)
    return key


def before(tickets: Tickets, mine: Turn | None, at_ms: int, user: str = "u") -> list[int]:
    found = tickets.before(QUEUE, mine, user, 0, at_ms * MS)
    return [each.ticket for each in found]


def test_a_place_lasts_twice_as_long_as_was_told() -> None:
    tickets = Tickets()
    key = keep(tickets, 7)
    found = tickets.find(QUEUE, key, 199 * MS)
    assert found is not None
    assert (found.ticket, found.ahead) == (7, AHEAD)
    assert tickets.find(QUEUE, key, 200 * MS) is None
    assert not tickets._places, "and then nothing is left of it"


def test_nobody_without_a_key_has_one_and_nobody_anothers() -> None:
    tickets = Tickets()
    tickets.keep(QUEUE, Job(1), AHEAD, retry_ms=100, now_ns=0)
    assert not tickets._places
    key = keep(tickets, 2)
    for other in (("chat", "b"), ("batch", "a")):
        assert tickets.find(other, key, 0) is None
        assert tickets.take(other, key, 0) is None
    assert tickets.take(QUEUE, key, 0) is not None
    assert tickets.take(QUEUE, key, 0) is None, "used up"


def test_17_refused_again_it_keeps_its_ticket_and_its_turn() -> None:
    tickets = Tickets()
    key = keep(tickets, 1, retry_ms=100)
    again = Job(50, retry_key=key)
    tickets.keep(QUEUE, again, AHEAD, retry_ms=80, now_ns=100 * MS)
    found = tickets.find(QUEUE, key, 250 * MS)
    assert found is not None
    assert (found.ticket, found.due_ns, found.until_ns) == (1, 100 * MS, 260 * MS)


def test_newcomers_stand_behind_all_of_them() -> None:
    tickets = Tickets()
    for ticket in (1, 2, 3):
        keep(tickets, ticket, retry_ms=100 * ticket)
    assert before(tickets, None, 50) == [1, 2, 3]
    assert before(tickets, None, 250) == [2, 3]


def test_who_comes_when_told_stands_behind_those_who_were_told_an_earlier_time() -> None:
    tickets = Tickets()
    keys = [keep(tickets, ticket, retry_ms=told) for ticket, told in ((1, 300), (2, 100), (3, 200))]
    third = tickets.find(QUEUE, keys[2], 0)
    assert before(tickets, third, 199) == [2, 1], "before its time it is anybody"
    assert before(tickets, third, 200) == [], "the second's is over, the first is to come later"
    third = tickets.find(QUEUE, keep(tickets, 3, at_ms=200, retry_ms=50), 200 * MS)
    assert before(tickets, third, 201) == []


def test_of_another_user_as_many_count_as_one_has_and_one_more() -> None:
    tickets = Tickets()
    for ticket in range(6):
        keep(tickets, ticket, user="many", retry_ms=100 + ticket)
    keep(tickets, 6, user="some", retry_ms=110)
    assert before(tickets, None, 0, user="new") == [0, 6]
    assert before(tickets, None, 0, user="some") == [0, 1, 6]
    assert before(tickets, None, 0, user="many") == [0, 1, 2, 3, 4, 5, 6]


def test_a_flood_displaces_nobody() -> None:
    tickets = Tickets()
    keys = [keep(tickets, ticket) for ticket in range(PLACES_MAX + 10)]
    held = [tickets.find(QUEUE, key, 0) is not None for key in keys]
    assert held == [True] * PLACES_MAX + [False] * 10
    assert tickets.find(("chat", "b"), keep(tickets, 999, tenant="b"), 0) is not None
    keep(tickets, 0, at_ms=50)
    assert tickets.find(QUEUE, keys[0], 240 * MS) is not None, "who has one may renew it"


def test_tenants_are_bounded_and_make_room_when_their_places_are_over() -> None:
    tickets = Tickets()
    for number in range(QUEUES_MAX):
        keep(tickets, number, tenant=f"t{number}")
    assert tickets.find(("chat", "late"), keep(tickets, 9999, tenant="late"), 0) is None
    assert len(tickets._places) == QUEUES_MAX
    key = keep(tickets, 10_000, tenant="later", at_ms=200)
    assert tickets.find(("chat", "later"), key, 200 * MS) is not None
    assert len(tickets._places) == 1
