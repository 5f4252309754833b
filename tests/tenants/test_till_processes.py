"""Two gateway processes under one budget with a till, and a Redis that is well, wiped, or time and again as it
was before: never more than what fits, and exactly that.

Source: MONEY.md §1 ("Two enforcement modes"), §5 cases 1 and 5.  The processes are real: each is this module.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from policies.facts import Budget
from policies.verdict import Allow, Deny
from tenants.book import Book, BudgetAccount
from tenants.journal import Journal
from tenants.store import Store
from tenants.tempo.link import Deadlines, Link
from tenants.till.front import Front
from tenants.till.redis import RedisTills
from tests.servers_postgres import database, needs_postgres
from tests.servers_valkey import Valkey, valkey
from tests.tenants.house import ask, user_budget
from tests.tenants.test_many_gateways import WHOLE, processes, totals

pytestmark = [pytest.mark.slow, needs_postgres]

AT_ONCE = 64
PATIENT = Deadlines(call_ms=5_000, connect_ms=5_000, queue_ms=60_000)


def hot(fits: int) -> BudgetAccount:
    return BudgetAccount("tenant", "acme", Budget(fits * WHOLE, till=True))


async def admits(
    url: str, folder: str, name: str, count: int, fits: int, redis_url: str
) -> dict[str, Any]:
    """Ask for `count` holds, as many at once as a busy gateway has."""
    store = Store.open(url)
    link = Link(redis_url, deadlines=PATIENT)
    till = Front(RedisTills(link, lambda text: text), lambda: time.monotonic_ns() // 10**6)
    journal = Journal(Path(folder) / f"{name}.jsonl")
    book = Book(store, owner=name, clock_ms=lambda: 0, journal=journal, till=till)
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(request_id: str) -> bool:
        async with turns:
            verdict = await book.hold(ask(request_id, user_budget(10**15), hot(fits)))
        assert isinstance(verdict, Allow) or verdict == Deny(
            verdict.reason, scope="tenant", limit_name="budget", account="acme"
        )
        return isinstance(verdict, Allow)

    granted = await asyncio.gather(*(one(f"{name}-{at}") for at in range(count)))
    await till.aclose()
    await link.aclose()
    await asyncio.to_thread(store.close)
    return {"granted": sum(granted), **till.outcomes}


def together(found: list[dict[str, int]]) -> Counter[str]:
    return sum(map(Counter, found), Counter())


@pytest.mark.parametrize(("fits", "drawn"), ((100, 1), (1_500, 200)))
def test_what_fits_of_two_thousand_and_the_rest_is_refused_by_the_till(
    fits: int, drawn: int
) -> None:
    with database() as url, valkey() as redis:
        found = together(processes(url, ("a", "b"), 1000, fits, redis.url, module=__name__))
        assert found["granted"] == fits
        assert found["drawn"] >= drawn
        assert found["dry"] > (2000 - fits) // 2  # which asked nobody's database
        assert asyncio.run(totals(url)) == (fits * WHOLE, fits * WHOLE)
        kinds = {key.partition("}")[2][:1] for key in redis.lives()}
        assert kinds <= {"d", "e", "f"}
        assert all(0 < ttl_ms <= 600_000 for ttl_ms in redis.lives().values())


def test_a_redis_that_is_wiped_all_the_while() -> None:
    wiped = 0

    with database() as url, valkey() as redis:

        def wipe() -> None:
            nonlocal wiped
            redis.say("FLUSHALL")
            wiped += 1

        found = together(
            processes(url, ("a", "b"), 1000, 100, redis.url, meanwhile=wipe, module=__name__)
        )
        assert found["granted"] == 100
        assert wiped > 2
        assert asyncio.run(totals(url)) == (100 * WHOLE, 100 * WHOLE)


class Snapshots:
    """Of all that a Redis knows, put back at random: what a failover to a replica that lags does, or a
    restart from an old file.  Each is one script, so that it is of one moment."""

    _TAKE = """
    for _, key in ipairs(redis.call('KEYS', '{t:*')) do
      redis.call('COPY', key, 'snap' .. ARGV[1] .. key, 'REPLACE')
    end
    """
    _PUT_BACK = """
    for _, key in ipairs(redis.call('KEYS', '{t:*')) do redis.call('DEL', key) end
    for _, key in ipairs(redis.call('KEYS', 'snap' .. ARGV[1] .. '{t:*')) do
      redis.call('COPY', key, string.sub(key, 6), 'REPLACE')
    end
    """

    def __init__(self, redis: Valkey, seed: int) -> None:
        self.redis, self.dice = redis, random.Random(seed)
        self.put_back = 0

    def __call__(self) -> None:
        for _ in range(4):
            number = str(self.dice.randrange(8))
            if self.dice.random() < 0.5:
                self.redis.say("EVAL", self._TAKE, "0", number)
            else:
                self.redis.say("EVAL", self._PUT_BACK, "0", number)
                self.put_back += 1
            time.sleep(0.005)


@pytest.mark.parametrize("seed", range(3))
def test_a_redis_that_is_put_back_to_any_earlier_state(seed: int) -> None:
    with database() as url, valkey() as redis:
        restored = Snapshots(redis, seed)
        found = together(
            processes(url, ("a", "b"), 1000, 100, redis.url, meanwhile=restored, module=__name__)
        )
        assert found["granted"] == 100, f"seed {seed}"
        assert restored.put_back > 10
        assert asyncio.run(totals(url)) == (100 * WHOLE, 100 * WHOLE)


if __name__ == "__main__":
    url, where, name, count, fits, redis = sys.argv[1:]
    print(json.dumps(asyncio.run(admits(url, where, name, int(count), int(fits), redis))))
