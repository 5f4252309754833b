"""Several processes, one Redis, one limit: exactly as many are admitted as fit, by the server's own clock.

Rates refill while the processes ask, so what fits is between the burst and the burst with what the server's
clock allows for the time that it took; seats do not, and are exact.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.servers_valkey import Valkey

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
ASKS = 2_000
LONG_MS = 600_000


class Gateway:
    def __init__(
        self, server: Valkey, asks: int, *, rpm: int = 0, seats: int = 0, lease_ms: int = LONG_MS
    ) -> None:
        words = (server.url, *map(str, (asks, rpm, seats, lease_ms)))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.tenants.tempo_burst", *words],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def heard(self) -> dict[str, int]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "it died"
        said: dict[str, int] = json.loads(line)
        return said


@contextmanager
def gateways(*many: Gateway) -> Iterator[None]:
    """Ready, and gone at the end."""
    try:
        for each in many:
            assert each.heard() == {"ready": True}
        yield
    finally:
        for each in many:
            each.process.kill()
            each.process.communicate()


def server_ms(server: Valkey) -> int:
    seconds, micros = server.say("TIME").split()
    return int(seconds) * 1000 + int(micros) // 1000


def seats(server: Valkey, now_ms: int) -> int:
    return int(server.say("ZCOUNT", "{t:acme}s:tenant:acme", f"({now_ms}", "+inf"))


@pytest.mark.parametrize("count", (2, 4))
def test_exactly_as_many_are_seated_as_fit(valkey_server: Valkey, count: int) -> None:
    many = [Gateway(valkey_server, ASKS // count, seats=100) for _ in range(count)]
    with gateways(*many):
        for each in many:
            each.go()
        said = [each.heard() for each in many]
        assert sum(each["admitted"] for each in said) == 100
        assert sum(each["failed"] for each in said) == 0
        assert seats(valkey_server, server_ms(valkey_server)) == 100
        for each in many:
            each.go()
        assert [each.heard() for each in many] == [{"leases": 0, "owed": 0}] * count
        assert seats(valkey_server, 0) == 0


@pytest.mark.parametrize("count", (2, 4))
def test_a_rate_is_spent_once_whoever_spends_it(valkey_server: Valkey, count: int) -> None:
    burst = 142
    many = [Gateway(valkey_server, ASKS // count, rpm=burst) for _ in range(count)]
    with gateways(*many):
        before_ms = server_ms(valkey_server)
        for each in many:
            each.go()
        said = [each.heard() for each in many]
        refilled = burst * (server_ms(valkey_server) - before_ms) // 60_000
        assert burst <= sum(each["admitted"] for each in said) <= burst + refilled
        assert sum(each["failed"] for each in said) == 0


def test_a_wipe_in_the_middle_refills_once_and_leaves_nothing_stuck(valkey_server: Valkey) -> None:
    burst = 142
    many = [Gateway(valkey_server, ASKS // 2, rpm=burst) for _ in range(2)]
    with gateways(*many):
        before_ms = server_ms(valkey_server)
        for each in many:
            each.go()
        while valkey_server.say("EXISTS", "{t:acme}b:tenant:acme") != b"1":
            pass
        valkey_server.say("FLUSHALL")
        said = [each.heard() for each in many]
        refilled = burst * (server_ms(valkey_server) - before_ms) // 60_000
        assert burst <= sum(each["admitted"] for each in said) <= 2 * burst + refilled
        for each in many:
            each.go()
        assert [each.heard() for each in many] == [{"leases": 0, "owed": 0}] * 2


def test_a_gateway_that_dies_with_seats_gives_them_up_by_its_lease(valkey_server: Valkey) -> None:
    dying = Gateway(valkey_server, 5, seats=5, lease_ms=1_500)
    with gateways(dying):
        dying.go()
        assert dying.heard() == {"admitted": 5, "failed": 0}
        dying.process.kill()
        dying.process.wait()
    # It held them until a moment ago; the clock that counts is the server's.
    heir = Gateway(valkey_server, 5, seats=5, lease_ms=1_500)
    with gateways(heir):
        while seats(valkey_server, server_ms(valkey_server)):
            pass
        heir.go()
        assert heir.heard() == {"admitted": 5, "failed": 0}
