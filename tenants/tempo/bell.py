"""The bell of `tenants.epochs` in Redis: a key that holds something new whenever somebody rings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tenants.epochs import Unheard
from tenants.tempo.link import Failed, Link

KEY: Final = "{lockgate}epoch"
KEPT_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class RedisBell:
    """`draw`: never the same twice.  No counter: after a wipe it would say again what it has said."""

    link: Link
    draw: Callable[[], str]

    async def ring(self) -> None:
        await self._ask("SET", KEY, self.draw(), "PX", str(KEPT_MS))

    async def heard(self) -> str | None:
        said = await self._ask("GET", KEY)
        return said if isinstance(said, str) else None

    async def _ask(self, *command: str) -> object:
        if self.link.given_up is not None:
            raise Unheard
        try:
            said: object = await self.link.ask(*command)
        except Failed as why:
            raise Unheard from why
        return said
