"""A gateway's worth of admissions, as a process of its own: what several of them do to one Redis at once.

    python -m tests.tenants.tempo_burst URL ASKS RPM SEATS LEASE_MS

Says `ready`, waits for a line, asks all at once, says how many were admitted and how many failed, and holds
what it has until its standard input ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from policies.facts import Limits
from policies.verdict import Allow
from tenants.tempo import ScopeLimits, TempoAsk
from tenants.tempo.link import Deadlines, Link
from tenants.tempo.redis import RedisTempo
from tenants.tempo.shared import SharedTempo

PATIENT = Deadlines(call_ms=60_000, connect_ms=60_000, queue_ms=120_000)


async def burst(url: str, asks: int, rpm: int, seats: int, lease_ms: int) -> None:
    link = Link(url, deadlines=PATIENT)
    loop = asyncio.get_running_loop()
    tempo = SharedTempo(
        RedisTempo(link, str, lease_ms=lease_ms),
        clock_ms=lambda: int(loop.time() * 1000),
        processes=1,
    )
    limits = Limits(rpm=rpm or None, concurrent=seats or None)
    scopes = (ScopeLimits("user", "u", limits), ScopeLimits("tenant", "acme", limits))
    await tempo.headroom("acme", scopes)
    say(ready=True)
    await asyncio.to_thread(sys.stdin.readline)
    verdicts = await asyncio.gather(
        *(
            tempo.admit(TempoAsk(f"{os.getpid()}.{each}", "acme", scopes, 0, 0))
            for each in range(asks)
        )
    )
    say(
        admitted=sum(isinstance(verdict, Allow) for verdict in verdicts),
        failed=tempo.failures.total(),
    )
    await asyncio.to_thread(sys.stdin.readline)
    for each in range(asks):
        await tempo.release(f"{os.getpid()}.{each}", 0)
    say(leases=tempo.leases, owed=tempo.owed)
    await link.aclose()


def say(**words: object) -> None:
    print(json.dumps(words), flush=True)


if __name__ == "__main__":
    asyncio.run(burst(sys.argv[1], *map(int, sys.argv[2:])))
