"""What only memory promises: it is atomic, it forgets, and it stays small."""

from __future__ import annotations

import asyncio
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.facts import Limits
from policies.verdict import Allow
from tenants.tempo import MemoryTempo, ScopeLimits, TempoAsk
from tenants.tempo.memory import TIDY_MOST
from tests.tenants.house import Clock, run


def scope(name: str, limits: Limits) -> tuple[ScopeLimits, ...]:
    return (ScopeLimits("user", name, limits),)


def test_21_concurrent_admissions_never_exceed_burst_and_rate() -> None:
    """A burst of 663 tokens and 66.3 more in six seconds; each takes ten."""

    async def test() -> None:
        clock = Clock()
        tempo = MemoryTempo(clock)
        shared = ScopeLimits("tenant", "acme", Limits(rpm=1000, output_tpm=663))

        async def admitted(first: int) -> int:
            asked = (
                TempoAsk(f"r{i}", "acme", (*scope(f"u{i}", Limits(rpm=5)), shared), 1, 10)
                for i in range(first, first + 200)
            )
            verdicts = await asyncio.gather(*map(tempo.admit, asked))
            return sum(isinstance(verdict, Allow) for verdict in verdicts)

        assert await admitted(0) == 66
        clock.ms += 6_000
        assert await admitted(200) == 6

    run(test)


def test_idle_users_are_forgotten() -> None:
    async def test() -> None:
        clock = Clock()
        tempo = MemoryTempo(clock)
        limits = Limits(rpm=60, output_tpm=6000, concurrent=4)
        users = 600
        for user in range(users):
            await tempo.admit(TempoAsk(f"r{user}", "acme", scope(f"u{user}", limits), 1, 1))
            await tempo.release(f"r{user}", 1)
        assert tempo.statistics()["buckets"] == 2 * users
        clock.ms += 60_000
        for _ in range(2 * users // TIDY_MOST + 1):
            await tempo.headroom("acme", ())
        assert tempo.statistics() == {"buckets": 0, "scheduled": 0, "seats": 0, "live": 0}

    run(test)


def test_memory_follows_the_last_minute_and_not_all_users_ever() -> None:
    async def test() -> None:
        clock = Clock()
        tempo = MemoryTempo(clock)
        limits = Limits(rpm=60, concurrent=4)
        most = 0
        for user in range(1_500):
            clock.ms += 60  # as many as a thousand a minute
            await tempo.admit(TempoAsk(f"r{user}", "acme", scope(f"u{user}", limits), 1, 1))
            most = max(most, tempo.statistics()["buckets"])
        assert most <= 20  # each refills within a second
        assert tempo.statistics()["live"] <= 1_001  # their leases lapse within a minute
        assert tempo.statistics()["scheduled"] == tempo.statistics()["buckets"]

    run(test)


def test_a_bucket_in_use_is_kept_beyond_its_first_refill() -> None:
    async def test() -> None:
        clock = Clock()
        tempo = MemoryTempo(clock)
        who = scope("u", Limits(rpm=2))
        await tempo.admit(TempoAsk("a", "acme", who, 1, 1))
        clock.ms += 20_000
        await tempo.admit(TempoAsk("b", "acme", who, 1, 1))
        clock.ms += 10_000
        room = (await tempo.headroom("acme", who)).requests
        assert room is not None
        assert (room.remaining, room.reset_ms) == (1, 30_000)
        assert tempo.statistics()["buckets"] == 1

    run(test)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_after_everything_has_ended_nothing_is_left(seed: int) -> None:
    """Whatever the order of admit, refund, release, renew and lapse: no seat, no bucket, no request
    remains."""

    async def test() -> None:
        rng = random.Random(seed)
        clock = Clock()
        tempo = MemoryTempo(clock)
        whole = ScopeLimits("tenant", "t", Limits(rpm=100, output_tpm=500, concurrent=3))
        ids: list[str] = []
        for step in range(60):
            clock.ms += rng.choice((0, 10, 500, 30_000))
            match rng.randrange(5):
                case 0 | 1:
                    ids.append(f"r{step}")
                    ask = TempoAsk(ids[-1], "t", (*scope("u", Limits(rpm=9)), whole), 1, 50)
                    await tempo.admit(ask)
                case 2 if ids:
                    await tempo.refund(rng.choice(ids))
                case 3 if ids:
                    await tempo.release(rng.choice(ids), rng.randrange(60))
                case _:
                    await tempo.renew(rng.sample(ids, min(2, len(ids))))
            counts = tempo.statistics()
            assert counts["seats"] == counts["live"] <= 3
        clock.ms += 120_000
        await tempo.headroom("acme", ())
        assert set(tempo.statistics().values()) == {0}

    run(test)
