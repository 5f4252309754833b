"""Whose grammar is compiled next: nobody is kept from it by what another tenant sends."""

from __future__ import annotations

from dataclasses import dataclass

from executor.grammar.lines import Lines, Room
from executor.grammar.protocol import Key, User


@dataclass
class Job:
    key: Key
    user: User
    compiled: bool = False


class House:
    def __init__(self, processes: int = 8, compiling: int = 4) -> None:
        self.lines: Lines[Job] = Lines(Room(processes, compiling))
        self.holding: list[Job] = []
        self._made = 0

    def join(self, *users: str, first: bool = False) -> None:
        """`t/u`: a user of a tenant."""
        for user in users:
            self._made += 1
            self.lines.join(Job((0, self._made), tuple(user.split("/"))), first=first)

    def call(self) -> str | None:
        job = self.lines.next(self.holding)
        if job is None:
            return None
        self.holding.append(job)
        return f"{'/'.join(job.user)}{job.key[1]}"

    def compile(self) -> None:
        for job in self.holding:
            job.compiled = True

    def all(self) -> list[str]:
        """Called one after another, each compiled before the next."""
        found = []
        while (one := self.call()) is not None:
            found.append(one)
            self.compile()
        return found


def test_tenants_take_turns_however_many_users_they_send() -> None:
    house = House(100)
    house.join(*(f"a/{n}" for n in range(40)), *(f"b/{n}" for n in range(40)), "c/x")
    assert house.all()[:4] == ["a/01", "b/041", "c/x81", "a/12"]


def test_one_of_a_user_and_two_of_a_tenant_compile_at_once() -> None:
    house = House(100)
    house.join("a/x", "a/x", "a/y", "a/z", "b/x")
    assert [house.call() for _ in range(4)] == ["a/x1", "b/x5", "a/y3", None]
    house.compile()
    assert [house.call() for _ in range(3)] == ["a/z4", "a/x2", None]


def test_no_more_compile_at_once_than_may() -> None:
    house = House(100, compiling=1)
    house.join("a/x", "b/x")
    assert [house.call(), house.call()] == ["a/x1", None]


def test_who_compiles_far_ahead_leaves_room_for_who_comes_later() -> None:
    """All of what is held was compiled and waits for its turn at the model."""
    house = House(9)
    house.join(*["a/x"] * 50)
    assert len(house.all()) == 6, "alone two thirds"
    house.join(*["b/x"] * 50)
    assert len(house.all()) == 2, "the second takes of what is left"
    house.join(*["c/x"] * 50)
    assert len(house.all()) == 1
    del house.holding[0]
    assert house.all()[0].startswith("c"), "who holds least comes next"


def test_who_leaves_is_not_called_and_who_is_tried_again_goes_first() -> None:
    house = House()
    house.join("a/x", "a/x")
    house.lines.leave((0, 1))
    house.lines.leave((0, 1))
    house.join("a/x", first=True)
    assert len(house.lines) == 2
    assert house.all() == ["a/x3", "a/x2"]
    assert house.lines.clear() == []
    house.join("a/x")
    assert [job.key for job in house.lines.clear()] == [(0, 4)]
    assert (len(house.lines), house.call()) == (0, None)
