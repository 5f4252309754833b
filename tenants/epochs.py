"""What one gateway changes, the others learn, within a bound: who is revoked here is revoked everywhere.

SQL has the truth and a number that grows with each change (`generations`).  A bell, where there is one, says
that somebody changed something, and no more; so it may be lost, wiped or rung for nothing.  Refuses to
know: what is changed, how it is read anew (`follow`), Redis (`Bell`).  Source: DESIGN.md ("tempo").

Bounds, beside what reading anew takes.  With a bell that works on both sides: two looks, half a second.
Without one: `ALONE_MS`.  Where only the writer's does not ring: it is tried again at each look, and SQL is
read every `ANYWAY_MS` in any case.  Where SQL cannot be read for `STALE_MS`, nobody can know, and `stale`
says so: fail closed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

LOOK_S: Final = 0.25
ALONE_MS: Final = 1_000
ANYWAY_MS: Final = 5_000
STALE_MS: Final = 30_000


class Unheard(Exception):
    """The bell does not answer."""


class Bell(Protocol):
    async def ring(self) -> None:
        """From now on `heard` says something that it never said before, to everybody.  Unheard."""
        ...

    async def heard(self) -> str | None:
        """Unheard."""
        ...


class Epochs:
    """`clock_ms` is monotonic; `look` is called every `LOOK_S`."""

    def __init__(self, clock_ms: Callable[[], int], bell: Bell | None = None) -> None:
        self._clock_ms = clock_ms
        self._bell = bell
        self._sources: list[Callable[[], Awaitable[object]]] = []
        self._ours = False
        self._word: str | None = None
        self._read_ms = clock_ms()
        self._read = False

    def follow(self, source: Callable[[], Awaitable[object]]) -> None:
        """`source` reads anew what another has changed, if anybody has; StoreUnavailable."""
        self._sources.append(source)

    def changed(self) -> None:
        """Something of ours is durable: the others are to hear of it."""
        self._ours = True

    def stale(self) -> bool:
        """Whether for too long nobody could tell what others have changed."""
        return bool(self._sources) and self._clock_ms() - self._read_ms > STALE_MS

    async def look(self) -> None:
        """Raises what a source raised; then the next look asks it again."""
        now_ms = self._clock_ms()
        word, answered = await self._listen()
        pause_ms = ANYWAY_MS if answered else ALONE_MS
        if self._read and word == self._word and now_ms - self._read_ms < pause_ms:
            return
        self._read = False
        for source in self._sources:
            await source()
        self._word, self._read_ms, self._read = word, now_ms, True

    async def _listen(self) -> tuple[str | None, bool]:
        """What the bell says, and whether it does."""
        if self._bell is None:
            return self._word, False
        try:
            if self._ours:
                await self._bell.ring()
                self._ours = False
            return await self._bell.heard(), True
        except Unheard:
            return self._word, False
