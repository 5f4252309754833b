"""What the engine asks of grammars: open one, hear whether it compiles, and which tokens may come next.

`grammar.desk.Desk` does it in processes of their own; `NoGrammars` refuses; the tests have theirs.
Refuses to know: what a grammar says, logits, processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from executor.contract import Cause, Grammar

Key = tuple[int, int]
User = tuple[str, ...]
"""The share path by its names, widest first."""


@dataclass(frozen=True, slots=True)
class News:
    """`cause` None: compiled, and the first mask is there.  Otherwise the request is to end so."""

    key: Key
    cause: Cause | None = None
    detail: str = ""


class Grammars(Protocol):
    """What the engine needs; nothing here waits.  A key is opened once and never used again."""

    def open(self, key: Key, user: User, grammar: Grammar) -> None: ...

    def news(self) -> list[News]:
        """What became known since the last call; keys that were closed meanwhile included."""
        ...

    def mask(self, key: Key) -> bytes | None:
        """Which tokens may come next, or None while that is being worked out."""
        ...

    def advance(self, key: Key, token: int) -> None:
        """`token`, which the last mask allowed, was said.  Heard at the next `news`, so that one
        step's tokens are handed over together."""
        ...

    def close(self, key: Key) -> None: ...


class NoGrammars:
    """Implements `Grammars` where there are none."""

    def __init__(self) -> None:
        self._news: list[News] = []

    def open(self, key: Key, user: User, grammar: Grammar) -> None:
        self._news.append(News(key, Cause.GRAMMAR, "this executor was started without grammars"))

    def news(self) -> list[News]:
        found, self._news = self._news, []
        return found

    def mask(self, key: Key) -> bytes | None:
        return None

    def advance(self, key: Key, token: int) -> None: ...

    def close(self, key: Key) -> None: ...
