"""Redis lost, slow, read-only or full: each process keeps its part of the limits, and it comes back by itself.

Source: MONEY.md §1 (Outages), §5 (5), §6 (28, 29).  Deadlines here are real and short; pauses go by the
test's clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from redis import exceptions

from policies.facts import Limits
from policies.outage import FAILURES_MOST, LONGEST_PAUSE_MS, Trouble
from policies.verdict import Allow, Deny, Reason
from tenants.tempo import ScopeLimits, TempoAsk
from tenants.tempo.link import Deadlines, Failed, Link, trouble_of
from tenants.tempo.redis import RedisTempo
from tenants.tempo.shared import OWED_MOST, SharedTempo
from tests.servers_valkey import Valkey, valkey
from tests.tenants.house import Clock, folder, run
from tests.tenants.redis_kit import PATIENT, Told, plain

SHORT = Deadlines(call_ms=25, connect_ms=25, queue_ms=2_000, attempts=2, connections=4)
LONG = replace(PATIENT, attempts=1)
USER = ScopeLimits("user", "u", Limits(rpm=10, output_tpm=100, concurrent=4))


def ask(request_id: str, out: int = 10, scopes: tuple[ScopeLimits, ...] = (USER,)) -> TempoAsk:
    return TempoAsk(request_id, "acme", scopes, 1, out)


@dataclass
class Bench:
    tempo: SharedTempo
    clock: Clock
    told: Told

    async def until_back(self) -> None:
        """However busy the machine is: tried again and again, as the process would."""
        for _ in range(200):
            self.clock.ms += LONGEST_PAUSE_MS
            await self.tempo.tend()
            if self.tempo.trouble is None and not self.tempo.owed:
                return
        raise AssertionError("it does not come back")

    async def remaining(self) -> tuple[int, int]:
        room = await self.tempo.headroom("acme", (USER,))
        assert room.requests is not None
        assert room.tokens is not None
        return room.requests.remaining, room.tokens.remaining


@asynccontextmanager
async def bench(
    url: str, *, deadlines: Deadlines = LONG, processes: int = 1
) -> AsyncIterator[Bench]:
    """By the server's own clock for what is in it."""
    clock, told = Clock(), Told([])
    link = Link(url, deadlines=deadlines)
    try:
        yield Bench(
            SharedTempo(RedisTempo(link, plain), clock_ms=clock, processes=processes, told=told),
            clock,
            told,
        )
    finally:
        await link.aclose()


@pytest.mark.slow
def test_a_frozen_server_is_given_up_and_nobody_waits_for_it(valkey_server: Valkey) -> None:
    async def test() -> None:
        async with bench(valkey_server.url, deadlines=SHORT) as at:
            await at.until_back()
            valkey_server.freeze()
            try:
                for number in range(FAILURES_MOST):
                    assert isinstance(await at.tempo.admit(ask(f"a{number}")), Allow)
                assert at.told.heard == [Trouble.SLOW]
                asked = at.tempo.failures.total()
                for number in range(3):
                    await at.tempo.release(f"a{number}", 10)
                    await at.tempo.admit(ask(f"b{number}"))
                assert at.tempo.failures.total() == asked
                assert at.tempo.trouble is Trouble.SLOW
                assert at.tempo.owed == FAILURES_MOST  # unknown, each of them
            finally:
                valkey_server.thaw()
            await at.until_back()
            assert at.told.heard == [Trouble.SLOW, None]
            for number in range(3):
                await at.tempo.release(f"b{number}", 10)
            # What had been sent while it was frozen has taken nothing, or was given back.
            assert await at.remaining() == (10, 100)
            assert valkey_server.say("EXISTS", "{t:acme}s:user:u") == b"0"
            assert at.tempo.leases == 0

    run(test)


@pytest.mark.slow
def test_a_crowd_that_waits_for_a_frozen_server_is_let_go_when_it_is_given_up() -> None:
    with valkey() as server:

        async def test() -> None:
            crowd = (ScopeLimits("user", "u", Limits(rpm=1_000)),)
            async with bench(server.url, deadlines=SHORT) as at:
                await at.until_back()
                server.freeze()
                asked = (at.tempo.admit(ask(f"a{each}", scopes=crowd)) for each in range(500))
                verdicts = await asyncio.gather(*asked)
                assert all(isinstance(verdict, Allow) for verdict in verdicts)
                assert at.tempo.failures.total() <= 4 * SHORT.connections
                assert at.tempo.owed == at.tempo.failures.total()  # the others were not even sent
                assert at.tempo.decided_alone == 500
                server.thaw()
                await at.until_back()

        run(test)


@contextmanager
def crash(server: Valkey) -> Iterator[None]:
    server.stop()
    yield
    server.start()


@contextmanager
def read_only(server: Valkey) -> Iterator[None]:
    server.say("REPLICAOF", "127.0.0.1", "1")
    yield
    server.say("REPLICAOF", "NO", "ONE")


@contextmanager
def full(server: Valkey) -> Iterator[None]:
    server.say("CONFIG", "SET", "maxmemory", "1")
    yield
    server.say("CONFIG", "SET", "maxmemory", "0")


@contextmanager
def no_rights(server: Valkey) -> Iterator[None]:
    server.say("ACL", "SETUSER", "default", "-fcall", "-eval", "-evalsha")
    yield
    server.say("ACL", "SETUSER", "default", "+@all")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("outage", "trouble"),
    (
        (crash, Trouble.UNREACHABLE),
        (read_only, Trouble.READ_ONLY),
        (full, Trouble.OUT_OF_MEMORY),
        (no_rights, Trouble.REFUSED),
    ),
)
def test_whatever_it_cannot_do_is_noticed_told_once_and_over_by_itself(
    outage: Callable[[Valkey], object], trouble: Trouble
) -> None:
    with valkey() as server:

        async def test() -> None:
            async with bench(server.url) as at:
                assert isinstance(await at.tempo.admit(ask("before", out=50)), Allow)
                with outage(server):  # type: ignore[attr-defined]
                    for number in range(FAILURES_MOST):
                        assert isinstance(await at.tempo.admit(ask(f"a{number}")), Allow)
                    assert at.told.heard == [trouble]
                    await at.tempo.release("before", 20)  # Redis will hear of it
                    await at.tempo.release("a0", 0)
                    for _ in range(3):
                        at.clock.ms += LONGEST_PAUSE_MS
                        await at.tempo.tend()
                    assert at.told.heard == [trouble]
                    room = await at.remaining()
                    assert room[0] >= 7
                await at.until_back()
                assert at.told.heard == [trouble, None]
                assert isinstance(await at.tempo.admit(ask("after", out=80)), Allow)
                assert server.say("ZCARD", "{t:acme}s:user:u") == b"1"
                for name in ("a1", "a2", "after"):
                    await at.tempo.release(name, 0)
                assert at.tempo.statistics()["seats"] == at.tempo.leases == 0
                assert server.say("EXISTS", "{t:acme}s:user:u") == b"0"

        run(test)


@pytest.mark.slow
def test_a_cluster_without_its_slots_is_down() -> None:
    with valkey(cluster_enabled="yes") as server:

        async def test() -> None:
            async with bench(server.url) as at:
                await at.tempo.admit(ask("a"))
                assert at.told.heard == [Trouble.CLUSTER_DOWN]

        run(test)


def nowhere(path: Path) -> str:
    return f"unix://{path}/nothing"


def test_processes_that_cannot_count_together_allow_no_more_than_the_whole() -> None:
    """Four of them, one limit: of requests, seats and output."""

    async def test() -> None:
        with folder() as path:
            allowed = {"rpm": 0, "concurrent": 0, "output_tpm": 0}
            for _ in range(4):
                async with bench(nowhere(path), processes=4) as at:
                    for name in allowed:
                        scopes = (ScopeLimits("user", name, Limits(**{name: 10})),)
                        for number in range(20):
                            asked = ask(f"{name}{number}", out=1, scopes=scopes)
                            allowed[name] += isinstance(await at.tempo.admit(asked), Allow)
            assert allowed == {"rpm": 8, "concurrent": 8, "output_tpm": 8}

    run(test)


def test_a_small_plan_is_not_shut_out_and_a_large_request_takes_its_whole_part() -> None:
    async def test() -> None:
        with folder() as path:
            async with bench(nowhere(path), processes=4) as at:
                small = (ScopeLimits("user", "u", Limits(rpm=2, output_tpm=400, concurrent=1)),)
                assert isinstance(await at.tempo.admit(ask("a", 300, small)), Allow)
                refused = await at.tempo.admit(ask("b", 1, small))
                assert isinstance(refused, Deny)
                assert refused.reason in {Reason.RATE_REQUESTS, Reason.RATE_OUTPUT_TOKENS}
                await at.tempo.release("a", 60)  # 40 of its part of 100 were not used
                room = await at.tempo.headroom("acme", small)
                assert room.tokens is not None
                assert (room.tokens.limit, room.tokens.remaining) == (100, 40)
                at.clock.ms += 60_000
                never = await at.tempo.admit(ask("c", 401, small))
                assert isinstance(never, Deny)
                assert (never.reason, never.limit) == (Reason.NEVER_FITS, 400)
                shut = (ScopeLimits("user", "v", Limits(concurrent=0)),)
                assert isinstance(await at.tempo.admit(ask("d", 1, shut)), Deny)

    run(test)


def test_an_outage_renews_what_runs_and_forgets_what_lapsed() -> None:
    async def test() -> None:
        with folder() as path:
            async with bench(nowhere(path)) as at:
                await at.tempo.admit(ask("a"))
                await at.tempo.admit(ask("b"))
                at.clock.ms += 40_000
                assert await at.tempo.renew(["a", "never"]) == ("never",)
                at.clock.ms += 20_000
                assert await at.tempo.renew(["a", "b"]) == ("b",)
                assert at.tempo.leases == 1
                await at.tempo.refund("a")
                at.clock.ms += 120_000
                await at.tempo.headroom("acme", ())
                assert at.tempo.owed == at.tempo.leases == 0

    run(test)


def test_what_is_owed_has_a_bound() -> None:
    async def test() -> None:
        with folder() as path:
            async with bench(nowhere(path)) as at:
                at.tempo._breaker = replace(at.tempo._breaker, trouble=None)
                for number in range(OWED_MOST + 5):
                    at.tempo._owe(ask(f"a{number}"), ())
                assert at.tempo.owed == OWED_MOST
                at.clock.ms += 60_001
                await at.tempo.tend()
                assert at.tempo.owed == 0

    run(test)


@pytest.mark.parametrize(
    ("said", "trouble"),
    (
        ("LOADING Valkey is loading the dataset in memory", Trouble.LOADING),
        ("MISCONF Valkey is configured to save RDB snapshots", Trouble.MISCONFIGURED),
        ("READONLY You can't write against a read only replica.", Trouble.READ_ONLY),
        ("OOM command not allowed when used memory > 'maxmemory'.", Trouble.OUT_OF_MEMORY),
        ("CLUSTERDOWN Hash slot not served", Trouble.CLUSTER_DOWN),
        ("MOVED 866 127.0.0.1:7001", Trouble.CLUSTER_DOWN),
        ("MASTERDOWN Link with MASTER is down", Trouble.READ_ONLY),
        ("NOREPLICAS Not enough good replicas to write.", Trouble.MISCONFIGURED),
        ("BUSY Valkey is busy running a script.", Trouble.SLOW),
        ("NOAUTH Authentication required.", Trouble.REFUSED),
        ("NOPERM this user has no permissions", Trouble.REFUSED),
        ("ERR something of which nobody has heard", Trouble.WRONG),
    ),
)
def test_every_word_of_a_server_that_cannot(said: str, trouble: Trouble) -> None:
    """Told by a server that says nothing else, over a real connection."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65_536):
            writer.write(f"-{said}\r\n".encode())
        writer.close()

    async def test() -> None:
        with folder() as path:
            server = await asyncio.start_unix_server(answer, path / "s")
            async with server, bench(f"unix://{path}/s") as at:
                await at.tempo.admit(ask("a"))
                assert set(at.tempo.failures) == {trouble}
                with pytest.raises(Failed, match=f"^{trouble.value}$"):
                    await at.tempo._redis.attempt()

    run(test)


def test_what_the_library_raises_is_worded_by_us() -> None:
    """Its messages may quote the URL, and with it a password."""
    link = Link("redis://user:hunter2@127.0.0.1:1/0", deadlines=SHORT)

    async def test() -> None:
        with pytest.raises(Failed) as caught:
            await link.ask("PING")
        assert str(caught.value) == "unreachable"
        await link.aclose()

    run(test)
    assert trouble_of(exceptions.TimeoutError("x")) is Trouble.SLOW
    assert trouble_of(TimeoutError()) is Trouble.SLOW
    assert trouble_of(ConnectionResetError()) is Trouble.UNREACHABLE
    assert trouble_of(exceptions.InvalidResponse("x")) is Trouble.WRONG


def test_garbage_for_an_answer_is_an_outage_and_no_exception() -> None:
    async def test() -> None:
        for garbage in (
            b"\0\0\0\0\r\n",
            b"+1 1 x\r\n",
            b":5\r\n",
            b"$-1\r\n",
            b"+\r\n",
            b"*1\r\n+1\r\n",
            b"",
        ):

            async def answer(
                reader: asyncio.StreamReader,
                writer: asyncio.StreamWriter,
                garbage: bytes = garbage,
            ) -> None:
                if await reader.read(65_536):
                    writer.write(garbage)
                writer.close()

            with folder() as path:
                server = await asyncio.start_unix_server(answer, path / "s")
                async with server, bench(f"unix://{path}/s") as at:
                    for number in range(2):
                        assert isinstance(await at.tempo.admit(ask(f"a{number}")), Allow)
                    assert at.tempo.failures.total() == 2
                    assert await at.tempo.renew(["a0"]) == ()

    run(test)
