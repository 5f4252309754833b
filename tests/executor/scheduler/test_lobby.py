"""Who goes from a full house: never by name, never in vain, never who is the only one of its tenant."""

from __future__ import annotations

from random import Random

import pytest

from executor.scheduler.lobby import Bounds, Lobby
from executor.scheduler.promises import JITTER, MARGIN, RETRY_MS_MIN
from executor.simulation.work import Request, SimWork

MS = 1_000_000


class Crowd:
    """Fills a lobby as the engine does."""

    def __init__(self, count: int = 4, held_bytes: int = 1 << 40) -> None:
        self.bounds = Bounds(count, held_bytes)
        self.lobby: Lobby[SimWork] = Lobby(self.bounds)
        self.here: dict[int, tuple[SimWork, int]] = {}
        self._tickets = 0

    def come(
        self, tenant: str, user: str = "u", size: int = 1, weight: float = 1.0
    ) -> list[str] | None:
        """Who went for it, by name and ticket; None if it was sent away itself."""
        work = SimWork(Request(0, tenant, 4, 4, user=user, weight=weight), self._tickets, 0)
        self._tickets += 1
        before = self.lobby.count
        goes = self.lobby.displaces(work, size)
        assert self.lobby.count == before, "only asked"
        assert goes == self.lobby.displaces(work, size)
        if work in goes:
            assert goes == [work]
            return None
        self.lobby.enter(work, size)
        self.here[work.ticket] = (work, size)
        for one in goes:
            self.go(one)
        assert self.lobby.count == len(self.here) <= self.bounds.count
        assert sum(size for _, size in self.here.values()) <= self.bounds.held_bytes
        return [f"{one.tenant}{one.ticket}" for one in goes]

    def go(self, work: SimWork, starts_ns: int | None = None) -> None:
        del self.here[work.ticket]
        if starts_ns is None:
            assert self.lobby.leave(work)
        else:
            self.lobby.starts(work, starts_ns)

    def of(self, tenant: str) -> int:
        return sum(work.tenant == tenant for work, _ in self.here.values())


def test_the_newest_of_whom_has_most_makes_room_until_all_have_as_much() -> None:
    crowd = Crowd(6)
    assert [crowd.come("a") for _ in range(6)] == [[]] * 6
    assert crowd.come("a") is None, "its own backlog is its own"
    assert [crowd.come("b") for _ in range(4)] == [["a5"], ["a4"], ["a3"], None]
    assert crowd.come("a") is None
    assert crowd.come("c") == ["a2"]
    assert crowd.come("c") == ["b9"]


def test_weights_say_what_is_much() -> None:
    crowd = Crowd(6)
    for _ in range(6):
        crowd.come("light", weight=1.0)
    for _ in range(10):
        crowd.come("heavy", weight=3.0)
    assert (crowd.of("light"), crowd.of("heavy")) == (2, 4), "beside one each, 1 : 3"
    assert crowd.come("tiny", weight=1e-6) is not None, "a first place is everybody's"
    assert crowd.come("tiny", weight=1e-6) is None


def test_more_tenants_than_places_do_not_put_each_other_out() -> None:
    crowd = Crowd(3)
    assert [crowd.come(name) for name in "abcdef"] == [[], [], [], None, None, None]


def test_of_a_tenant_it_is_the_user_who_has_most() -> None:
    crowd = Crowd(5)
    for _ in range(4):
        crowd.come("a", "greedy")
    crowd.come("a", "calm")
    assert crowd.come("a", "other") == ["a3"]
    assert crowd.come("b") == ["a2"]
    assert crowd.come("a", "calm") is None, "it has a second one now, as much as the most"
    assert crowd.come("a", "fourth") == ["a1"]
    assert crowd.come("a", "fifth") is None


def test_memory_is_bounded_as_places_are() -> None:
    crowd = Crowd(100, held_bytes=100)
    for _ in range(10):
        crowd.come("small", size=1)
    assert crowd.come("large", size=60) == []
    assert crowd.come("large", size=31) is None
    assert crowd.come("large", size=30) == []
    assert crowd.come("small", size=1) == ["large12"]
    assert crowd.come("other", size=101) is None, "never"
    assert crowd.come("large", size=29) == []
    assert crowd.come("new", size=35) == ["large15", "small13"] or crowd.of("new")


def test_nobody_goes_in_vain() -> None:
    """Two small ones would make room, then the newcomer turns out to be the one."""
    crowd = Crowd(100, held_bytes=100)
    for _ in range(4):
        crowd.come("a", size=20)
    before = list(crowd.here)
    assert crowd.come("b", size=15) == []
    assert crowd.come("b", size=99) is None
    assert list(crowd.here) == [*before, 4]
    assert crowd.come("c", size=10) == ["a3"]


@pytest.mark.parametrize("seed", range(8))
def test_18_whatever_comes_and_goes_the_bounds_hold_and_newcomers_find_a_place(seed: int) -> None:
    rng = Random(seed)
    crowd = Crowd(rng.randint(4, 20), held_bytes=rng.randint(40, 200))
    for at in range(300):
        tenant = rng.choice("aaaaaaabcd")
        came = crowd.come(tenant, rng.choice("uv"), size=rng.randint(1, 10))
        assert came is not None or crowd.of(tenant), "who has nothing here comes in"
        for name in came or ():
            assert crowd.of(name[0]), "nobody loses the last one"
        if crowd.here and rng.random() < 0.3:
            crowd.go(rng.choice(list(crowd.here.values()))[0], rng.choice([None, at]))
    for work, _ in list(crowd.here.values()):
        crowd.go(work)
    assert crowd.lobby.count == 0
    assert not crowd.lobby.leave(work), "twice is no harm"
    crowd.lobby.starts(work, 0)
    assert crowd.lobby.count == 0


def test_who_is_sent_away_or_leaves_is_no_place_that_came_free() -> None:
    """A flood and a client that opens and hangs up a hundred times between two starts."""
    calm, stormy = Crowd(1000), Crowd(1000)
    for at in range(100):
        for crowd in (calm, stormy):
            crowd.come("a")
            crowd.come("a")
            crowd.go(next(iter(crowd.here.values()))[0], at * 1000 * MS)
        for _ in range(100):
            stormy.come("b")
            stormy.go(stormy.here[max(stormy.here)][0])
    works = [next(iter(crowd.here.values()))[0] for crowd in (calm, stormy)]
    assert calm.lobby.retry_ms(works[0]) == stormy.lobby.retry_ms(works[1]) > 800


def test_when_to_come_back_is_as_places_came_free() -> None:
    crowd = Crowd(1000)
    for _ in range(200):
        crowd.come("a")
    for at, (work, _) in enumerate(list(crowd.here.values())[:150]):
        crowd.go(work, at * 20 * MS)
    (work, _) = next(iter(crowd.here.values()))
    assert crowd.lobby.retry_ms(work) == RETRY_MS_MIN, "it is about 20 ms"
    crowd.come("b", weight=4.0)
    fifth_ms = 5 * 20.5 * MARGIN
    assert (1 - JITTER) * fifth_ms <= crowd.lobby.retry_ms(work) <= (1 + JITTER) * fifth_ms * 1.28
