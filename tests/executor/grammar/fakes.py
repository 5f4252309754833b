"""Grammars without a compiler: what may come at each place is written in the text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from executor.contract import Cause, Grammar, GrammarKind, Submit
from executor.engine import Engine
from executor.grammar.protocol import Grammars, Key, News, User
from executor.settings import Settings
from tests.executor.fakes import Clock, FakeRunner, Harness, job

END = 11


def grammar(*places: Sequence[int]) -> Grammar:
    """`places[i]` are the tokens allowed i-th; after the last only END."""
    text = "|".join(" ".join(map(str, place)) for place in places)
    return Grammar(kind=GrammarKind.REGEX, text=text)


def constrained(request: int, *places: Sequence[int], **fields: Any) -> Submit:
    return job(
        request, grammar=grammar(*places), stop_token_ids=(END,), max_new_tokens=30, **fields
    )


class FakeGrammars:
    """`late(key, place)` says whether that mask (or, at place 0, the compiler) is still to come."""

    def __init__(self) -> None:
        self.late: Callable[[Key, int], bool] = lambda _key, _place: False
        self.refused: dict[str, tuple[Cause, str]] = {}
        self.opened: dict[Key, tuple[User, list[list[int]]]] = {}
        self.users: list[User] = []
        self._places: dict[Key, int] = {}
        self._untold: list[Key] = []
        self._news: list[News] = []

    def open(self, key: Key, user: User, grammar: Grammar) -> None:
        assert key not in self.opened
        self.users.append(user)
        if grammar.text in self.refused:
            self._news.append(News(key, *self.refused[grammar.text]))
            self.opened[key] = (user, [])
            return
        places = [list(map(int, place.split())) for place in grammar.text.split("|")]
        self.opened[key] = (user, [*places, [END]])
        self._places[key] = 0
        self._untold.append(key)

    def news(self) -> list[News]:
        ready = [key for key in self._untold if not self.late(key, 0)]
        self._untold = [key for key in self._untold if key not in ready]
        found, self._news = [*self._news, *map(News, ready)], []
        return found

    def mask(self, key: Key) -> bytes | None:
        place = self._places[key]
        if key in self._untold or (place and self.late(key, place)):
            return None
        bits = bytearray(8)
        for token in self.opened[key][1][place]:
            bits[token // 8] |= 1 << token % 8
        return bytes(bits)

    def advance(self, key: Key, token: int) -> None:
        assert token in self.opened[key][1][self._places[key]], "a token that was not allowed"
        self._places[key] += 1

    def close(self, key: Key) -> None:
        del self.opened[key]
        self._untold = [one for one in self._untold if one != key]

    def kill(self, key: Key) -> None:
        self._news.append(News(key, Cause.GRAMMAR_BUDGET, "it took too much"))


def house_with(
    grammars: Grammars | None,
    runner: FakeRunner | None = None,
    settings: Settings | None = None,
) -> Harness:
    house = Harness(runner, clock=Clock())
    house.engine = Engine(
        house.runner,
        house._take,
        clock_ns=house.clock,
        settings=settings or Settings(check_invariants=True),
        grammars=grammars,
    )
    return house
