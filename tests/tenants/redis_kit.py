"""A tempo over a real server, whose scripts read the test's clock in place of the server's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from policies.outage import Trouble
from tenants.tempo import scripts as files
from tenants.tempo.link import Deadlines, Link
from tenants.tempo.redis import RedisTempo
from tenants.tempo.scripts import Scripts
from tenants.tempo.shared import SharedTempo
from tests.servers_valkey import Valkey

CLOCK_KEY = "{lockgate}clock"
CLOCK_LUA = f"""
local function now_ms()
  return tonumber(redis.call('GET', '{CLOCK_KEY}'))
end
"""
PATIENT = Deadlines(call_ms=20_000, connect_ms=20_000, queue_ms=60_000)
"""For a machine that is busy with other tests: what is tested is not how fast it is."""


def source(name: str) -> str:
    """What ships; tests of broken scripts put theirs in its place."""
    return files.shipped(name)


def by_the_tests_clock() -> Scripts:
    return Scripts(lambda name: CLOCK_LUA if name == "clock" else source(name))


class ClockedLink(Link):
    """Sets the server's clock before each call."""

    clock: Callable[[], int]

    async def run(
        self, name: str, keys: Sequence[str], *args: object, forced: bool = False
    ) -> list[str]:
        await self.ask("SET", CLOCK_KEY, str(self.clock()), "EX", "600")
        return await super().run(name, keys, *args, forced=forced)


@dataclass
class Told:
    """What a tempo says of its server, in order."""

    heard: list[Trouble | None]

    def __call__(self, trouble: Trouble | None) -> None:
        self.heard.append(trouble)


def plain(text: str) -> str:
    return text


@asynccontextmanager
async def shared(
    server: Valkey,
    clock: Callable[[], int],
    *,
    scripts: Scripts | None = None,
    deadlines: Deadlines = PATIENT,
    processes: int = 1,
    told: Callable[[Trouble | None], None] = lambda _: None,
    lease_ms: int = 60_000,
) -> AsyncIterator[SharedTempo]:
    """By the test's clock."""
    link = ClockedLink(server.url, deadlines=deadlines, scripts=scripts or by_the_tests_clock())
    link.clock = clock
    try:
        yield SharedTempo(
            RedisTempo(link, plain, lease_ms=lease_ms),
            clock_ms=clock,
            processes=processes,
            told=told,
        )
    finally:
        await link.aclose()
