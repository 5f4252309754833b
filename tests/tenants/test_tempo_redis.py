"""What Redis promises beyond the table that it shares with memory (tests/twins): replays, exactness, one
slot, no key for ever, scripts that are there after whatever was flushed."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from policies.admission import SEAT_RETRY_MS
from policies.facts import Limits
from policies.outage import Trouble
from policies.rate import PARTS, PER_MINUTE_MAX, Window
from policies.till import Seen
from policies.verdict import Allow, Deny, Reason
from tenants.places import Place
from tenants.tempo import Headroom, MemoryTempo, ScopeLimits, TempoAsk
from tenants.tempo.contract import costs
from tenants.tempo.link import Failed, Link
from tenants.tempo.proofs_redis import RedisProofs
from tenants.tempo.redis import RedisTempo
from tenants.tempo.scripts import NAMES, Scripts, shipped
from tenants.till import DrawAsk, Told
from tenants.till.redis import RedisTills
from tests.servers_valkey import Valkey, valkey
from tests.tenants.house import Clock, run
from tests.tenants.redis_kit import (
    CLOCK_KEY,
    PATIENT,
    ClockedLink,
    by_the_tests_clock,
    plain,
    shared,
)

pytestmark = pytest.mark.slow

USER = ScopeLimits("user", "u", Limits(rpm=10, output_tpm=100, concurrent=2))
TENANT = ScopeLimits("tenant", "acme", Limits(rpm=100, input_tpm=1_000, concurrent=5))
BOTH = (USER, TENANT)


def ask(request_id: str, out: int = 10, scopes: tuple[ScopeLimits, ...] = BOTH) -> TempoAsk:
    return TempoAsk(request_id, "acme", scopes, 5, out)


def left(room: Headroom) -> tuple[int, int]:
    assert room.requests is not None
    assert room.tokens is not None
    return room.requests.remaining, room.tokens.remaining


def told(server: Valkey, test: Callable[[RedisTempo, Clock], Awaitable[None]]) -> None:
    """With a fresh link, by the test's clock."""

    async def go() -> None:
        clock = Clock()
        link = ClockedLink(server.url, deadlines=PATIENT, scripts=by_the_tests_clock())
        link.clock = clock
        try:
            await test(RedisTempo(link, plain), clock)
        finally:
            await link.aclose()

    run(go)


def kept(server: Valkey) -> dict[str, int]:
    return {key: ttl_ms for key, ttl_ms in server.lives().items() if key != CLOCK_KEY}


def test_the_same_admission_sent_twice_takes_once(valkey_server: Valkey) -> None:
    async def test(tempo: RedisTempo, clock: Clock) -> None:
        first = await tempo.admit(ask("a"))
        clock.ms += 100
        assert await tempo.admit(ask("a")) == first
        assert left(await tempo.headroom("acme", (USER,))) == (9, 90)
        assert valkey_server.say("ZCARD", "{t:acme}s:user:u") == b"1"

    told(valkey_server, test)


def test_the_same_refund_sent_twice_gives_once(valkey_server: Valkey) -> None:
    async def test(tempo: RedisTempo, clock: Clock) -> None:
        for name in ("a", "b"):
            await tempo.admit(ask(name, 40))
        assert await tempo.leave(ask("a", 40), costs(BOTH, ask("a", 40)))
        assert left(await tempo.headroom("acme", (USER,))) == (9, 60)
        assert not await tempo.leave(ask("a", 40), costs(BOTH, ask("a", 40)))
        assert left(await tempo.headroom("acme", (USER,))) == (9, 60)
        assert valkey_server.say("ZCARD", "{t:acme}s:user:u") == b"1"

    told(valkey_server, test)


def test_an_admission_that_arrives_after_its_refund_takes_nothing(valkey_server: Valkey) -> None:
    """It was given up on, and had been under way all the while."""

    async def test(tempo: RedisTempo, clock: Clock) -> None:
        assert not await tempo.leave(ask("a"), costs(BOTH, ask("a")))
        before = kept(valkey_server)
        with pytest.raises(Failed):
            await tempo.admit(ask("a"))
        assert kept(valkey_server).keys() == before.keys() == {"{t:acme}r:a"}
        assert await tempo.renew([ask("a")]) == ("a",)
        assert kept(valkey_server).keys() == {"{t:acme}r:a"}

    told(valkey_server, test)


def test_an_id_that_comes_again_is_no_outage(valkey_server: Valkey) -> None:
    """Ours are never used twice.  Whoever did would be counted by this process alone."""

    async def test() -> None:
        async with shared(valkey_server, Clock()) as tempo:
            for _ in range(6):
                assert isinstance(await tempo.admit(ask("a")), Allow)
                await tempo.release("a", 0)
            assert tempo.trouble is None
            assert tempo.failures.total() == tempo.owed == tempo.leases == 0
            assert left(await tempo.headroom("acme", (USER,))) == (9, 100)

    run(test)


def test_every_key_goes_away_by_itself(valkey_server: Valkey) -> None:
    """None lives longer than a lease or a refill; and whoever is admitted has three kinds."""

    async def test(tempo: RedisTempo, clock: Clock) -> None:
        kinds = set()
        steps: tuple[Callable[[], Awaitable[object]], ...] = (
            lambda: tempo.admit(ask("a")),
            lambda: tempo.admit(ask("b")),
            lambda: tempo.renew([ask("a")]),
            lambda: tempo.leave(ask("b"), costs(BOTH, ask("b"))),
            tempo.attempt,
        )
        for step in steps:
            await step()
            lives = kept(valkey_server)
            kinds |= {key.partition("}")[2][:1] for key in lives}
            assert all(0 < ttl_ms <= 60_000 for ttl_ms in lives.values())
        assert kinds == {"r", "b", "s", "t"}  # records, buckets, seats, the try

    told(valkey_server, test)


def test_a_wipe_refills_rates_and_renewal_seats_who_runs(valkey_server: Valkey) -> None:
    async def test(tempo: RedisTempo, clock: Clock) -> None:
        one_seat = (ScopeLimits("user", "u", Limits(rpm=10, concurrent=1)),)
        await tempo.admit(ask("a", scopes=one_seat))
        valkey_server.say("FLUSHALL")
        assert await tempo.renew([ask("a", scopes=one_seat)]) == ()
        refused = await tempo.admit(ask("b", scopes=one_seat))
        assert refused == Deny(
            Reason.CONCURRENCY, SEAT_RETRY_MS, 1, 1, "user", limit_name="concurrent"
        )
        room = await tempo.headroom("acme", one_seat)
        assert room.requests == Window(10, 10, 0)
        assert await tempo.leave(ask("a", scopes=one_seat), ())
        assert isinstance(await tempo.admit(ask("b", scopes=one_seat)), Allow)

    told(valkey_server, test)


def test_a_clock_that_stepped_back_freezes_nothing(valkey_server: Valkey) -> None:
    """The server's clock is a wall clock; or another server took over, with another one."""

    async def test(tempo: RedisTempo, clock: Clock) -> None:
        for name in ("a", "b"):
            await tempo.admit(ask(name, 50))
        clock.ms -= 3_600_000
        assert left(await tempo.headroom("acme", (USER,))) == (8, 0)  # nothing for free
        assert isinstance(await tempo.admit(ask("c", 0)), Allow)  # and no seat for an hour
        clock.ms += 30_000
        assert left(await tempo.headroom("acme", (USER,))) == (10, 0)
        await tempo.renew([ask("a"), ask("b")])
        refused = await tempo.admit(ask("d", 0))
        assert isinstance(refused, Deny)
        assert refused.reason is Reason.CONCURRENCY

    told(valkey_server, test)


def test_what_is_no_bucket_counts_as_none(valkey_server: Valkey) -> None:
    async def test(tempo: RedisTempo, clock: Clock) -> None:
        key = "{t:acme}b:user:u"
        for garbage in ("", "7", "-1 5", "1e9 1", "9" * 40 + " 1", "1 2 3", "x y"):
            valkey_server.say("HSET", key, "rpm", garbage)
            valkey_server.say("PEXPIRE", key, "60000")
            room = await tempo.headroom("acme", (USER,))
            assert room.requests is not None
            assert 0 <= room.requests.remaining <= 10

    told(valkey_server, test)


def test_nothing_is_written_where_anything_is_wrong(valkey_server: Valkey) -> None:
    """A script that failed half way would not be undone: it looks at everything first."""

    async def test(tempo: RedisTempo, clock: Clock) -> None:
        await tempo.headroom("acme", BOTH)
        good = ("a", 60_000, 1, 2, "rpm", 10, 1, 1, 3, 2)
        keys = ["{t:acme}r:a", "{t:acme}b:user:u", "{t:acme}s:user:u"]
        for place in (1, 2, 3, 5, 6, 7, 8, 9):
            for wrong in ("", "-1", "1.5", "1e3", "x", str(10**30), "0x10"):
                args = [*good[:place], wrong, *good[place + 1 :]]
                with pytest.raises(Failed) as caught:
                    await tempo.link.run("admit", keys, *args)
                assert caught.value.trouble is Trouble.WRONG
        for count in range(1, len(good)):
            with pytest.raises(Failed):
                await tempo.link.run("admit", keys, *good[:count])
        assert kept(valkey_server) == {}
        # A key of another kind, read last: the request before it must not have taken anything.
        valkey_server.say("SET", "{t:acme}s:tenant:acme", "no seats", "PX", "60000")
        with pytest.raises(Failed):
            await tempo.admit(ask("a"))
        assert kept(valkey_server).keys() == {"{t:acme}s:tenant:acme"}
        valkey_server.say("FLUSHALL")
        await tempo.admit(ask("a", 40))
        valkey_server.say("DEL", "{t:acme}b:tenant:acme")
        valkey_server.say("SET", "{t:acme}b:tenant:acme", "no buckets", "PX", "60000")
        with pytest.raises(Failed):
            await tempo.leave(ask("a", 40), costs(BOTH, ask("a", 40)))
        assert left(await tempo.headroom("acme", (USER,))) == (9, 60)

    told(valkey_server, test)


def test_21_amounts_near_2_to_53_are_exact(valkey_server: Valkey) -> None:
    """The largest limit, odd costs and odd times, against the twin in whole numbers."""
    assert PER_MINUTE_MAX * PARTS <= 2**52
    assert f"LIMIT_MAX = {PER_MINUTE_MAX}\n" in shipped("common")

    async def test(tempo: RedisTempo, clock: Clock) -> None:
        rng = random.Random(21)
        for limit in (PER_MINUTE_MAX, PER_MINUTE_MAX - 1, 2**36 + 1):
            scopes = (ScopeLimits("user", f"u{limit}", Limits(input_tpm=limit, output_tpm=limit)),)
            twin = MemoryTempo(clock)
            for step in range(60):
                clock.ms += rng.choice((0, 1, 7, 997, 59_999))
                out = rng.choice((1, limit // 7, limit - 1, limit, limit + 1, 2**62))
                asked = TempoAsk(f"{limit}.{step}", "acme", scopes, 3, out)
                assert await tempo.admit(asked) == await twin.admit(asked)

    told(valkey_server, test)


def test_a_limit_past_the_exact_is_cut(valkey_server: Valkey) -> None:
    async def test(tempo: RedisTempo, clock: Clock) -> None:
        scopes = (ScopeLimits("user", "u", Limits(rpm=10**15, concurrent=10**15)),)
        assert await tempo.admit(ask("a", scopes=scopes)) == Allow(
            Headroom(Window(PER_MINUTE_MAX, PER_MINUTE_MAX - 1, 1), None)
        )

    told(valkey_server, test)


def test_every_key_of_a_tenant_is_in_its_slot_and_every_user_has_a_pseudonym(
    valkey_server: Valkey,
) -> None:
    async def test(tempo: RedisTempo, clock: Clock) -> None:
        named = RedisTempo(tempo.link, lambda text: f"p{len(text)}")
        odd = TempoAsk("a", "ac}{me", (ScopeLimits("user", "alice@x", Limits(rpm=1)),), 1, 1)
        await named.admit(odd)
        await named.admit(ask("b"))
        assert {key.partition("}")[0] for key in kept(valkey_server)} == {
            "{t:acme",
            "{t:ac%7D%7Bme",
        }
        assert not any("alice" in key for key in kept(valkey_server))

    told(valkey_server, test)


async def tills_do(link: Link, name: str = "t") -> None:
    """Every script of theirs, and each of its branches that writes."""
    tills, place = RedisTills(link, plain), Place("tenant", "acme")
    of = DrawAsk(name, "acme", (place, Place("user", "u")), 5, 5)
    before = await tills.draw(replace(of, request_id=f"{name}0"))
    assert isinstance(before, tuple)
    epoch = before[0].epoch + 1
    await tills.fill("acme", (Told(place, epoch, 0, 0, 9), Told(Place("user", "u"), epoch, 0, 0)))
    await tills.fill("acme", (Told(place, epoch, 0, 9),))
    assert await tills.draw(of) == (Seen(epoch, 9, 5), Seen(epoch, 0, 0))
    await tills.give_back(of)


def test_a_cluster_takes_every_script() -> None:
    """One node that has all slots refuses what reaches across two, and keys that were not named."""
    with valkey(cluster_enabled="yes") as server:
        server.say("CLUSTER", "ADDSLOTSRANGE", "0", "16383")

        async def test() -> None:
            link = Link(server.url, deadlines=PATIENT)
            tempo = RedisTempo(link, plain)
            for by_function in (True, False):
                link._by_function = by_function
                for number in range(3):
                    name = f"{by_function}{number}"
                    assert isinstance(await tempo.admit(ask(name)), Allow)
                    assert await tempo.renew([ask(name)]) == ()
                    await tempo.headroom("acme", BOTH)
                    assert await tempo.leave(ask(name), ())
                await tempo.attempt()
                await tills_do(link, f"{by_function}")
            await link.aclose()

        while b"cluster_state:ok" not in server.say("CLUSTER", "INFO"):
            pass
        run(test)


@pytest.mark.parametrize(
    "flushed", (("SCRIPT", "FLUSH"), ("FUNCTION", "FLUSH"), ("FLUSHALL",), ("restart",))
)
@pytest.mark.parametrize("by_function", (True, False), ids=("function", "script"))
def test_scripts_are_there_after_whatever_was_flushed(
    flushed: tuple[str, ...], by_function: bool
) -> None:
    with valkey() as server:

        async def test() -> None:
            link = Link(server.url, deadlines=PATIENT)
            link._by_function = by_function
            tempo = RedisTempo(link, plain)
            for number in range(3):
                some = [tempo.admit(ask(f"{number}.{each}")) for each in range(2)]
                assert all(isinstance(each, Allow) for each in await asyncio.gather(*some))
                for each in range(2):
                    assert await tempo.leave(ask(f"{number}.{each}"), ())
                if flushed == ("restart",):
                    server.stop()
                    server.start()
                else:
                    assert server.say(*flushed) == b"OK"
            assert link._by_function is by_function
            await link.aclose()

        run(test)


def test_a_server_without_functions_runs_scripts() -> None:
    with valkey(rename_command="FCALL no-fcall") as server:

        async def test() -> None:
            link = Link(server.url, deadlines=PATIENT)
            assert isinstance(await RedisTempo(link, plain).admit(ask("a")), Allow)
            assert not link._by_function
            await link.aclose()

        run(test)


def test_a_user_without_a_right_to_run_what_is_sent_uses_functions(valkey_server: Valkey) -> None:
    """The strictest rights that do (security/THREATS.md): no EVAL, our keys only."""
    say = valkey_server.say
    say(
        *("ACL", "SETUSER", "lg", "on", ">pw", "resetkeys", "~{t:*", "~{lockgate}*"),
        *("-@all", "+fcall", "+function|load", "+hget", "+hset", "+hexists", "+zcount", "+zadd"),
        *("+zrem", "+zremrangebyscore", "+zscore", "+pexpire", "+get", "+set", "+time"),
    )

    async def test() -> None:
        link = Link(valkey_server.url.replace("unix://", "unix://lg:pw@"), deadlines=PATIENT)
        tempo = RedisTempo(link, plain)
        assert isinstance(await tempo.admit(ask("a")), Allow)
        assert await tempo.renew([ask("a")]) == ()
        await tempo.headroom("acme", BOTH)
        assert await tempo.leave(ask("a"), ())
        await tempo.attempt()
        proofs = RedisProofs(link, lambda: "call", 1000)
        assert (await proofs.first("acme", "a"), await proofs.first("acme", "a")) == (True, True)
        await tills_do(link)
        await link.aclose()
        wrong = Link(valkey_server.url.replace("unix://", "unix://lg:no@"), deadlines=PATIENT)
        with pytest.raises(Failed) as caught:
            await RedisTempo(wrong, plain).admit(ask("b"))
        assert caught.value.trouble is Trouble.REFUSED
        await wrong.aclose()

    try:
        run(test)
    finally:
        say("ACL", "DELUSER", "lg")


def test_a_reply_that_is_not_ours_is_noticed(valkey_server: Valkey) -> None:
    """Whatever shifted it: it names another call."""

    async def test(tempo: RedisTempo, clock: Clock) -> None:
        original = tempo.link._send

        async def shifted(command: tuple[str, ...], *, forced: bool) -> object:
            said = await original(command, forced=forced)
            return f"9{said}" if command[0] == "FCALL" else said

        tempo.link._send = shifted  # type: ignore[assignment,method-assign]
        with pytest.raises(Failed) as caught:
            await tempo.headroom("acme", BOTH)
        assert caught.value.trouble is Trouble.WRONG

    told(valkey_server, test)


def test_callers_that_go_away_leave_no_reply_to_the_next(valkey_server: Valkey) -> None:
    async def test() -> None:
        link = Link(valkey_server.url, deadlines=PATIENT)
        rng = random.Random(3)
        tempo = RedisTempo(link, plain)

        async def one(number: int) -> None:
            who = f"u{number}"
            scopes = (ScopeLimits("user", who, Limits(rpm=number + 1)),)
            for _ in range(4):
                room = await tempo.headroom("acme", scopes)
                assert room.requests is not None
                assert room.requests.limit == number + 1 == room.requests.remaining

        tasks = [asyncio.create_task(one(number)) for number in range(120)]
        for _ in range(200):
            await asyncio.sleep(0)
            rng.choice(tasks).cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert result is None or isinstance(result, asyncio.CancelledError)
        await link.aclose()
        assert not link._calls

    run(test)


def test_who_leaves_in_the_middle_of_an_admission_holds_nothing(valkey_server: Valkey) -> None:
    async def test() -> None:
        clock = Clock()
        async with shared(valkey_server, clock) as tempo:
            for wait in range(12):
                task = asyncio.create_task(tempo.admit(ask(f"a{wait}")))
                for _ in range(wait):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                if not task.cancelled():
                    await tempo.refund(f"a{wait}")
            for _ in range(3):
                await tempo.tend()
            assert tempo.statistics()["owed"] == tempo.leases == 0
            assert left(await tempo.headroom("acme", (USER,))) == (10, 100)
            assert valkey_server.say("EXISTS", "{t:acme}s:user:u") == b"0"

    run(test)


def test_what_is_shipped_says_its_twin_and_has_no_clock_but_one() -> None:
    for name in NAMES:
        text = shipped(name)
        assert "Twin" in text
        assert "TIME" not in text
        assert re.search(rf"^local function {name}\(KEYS, ARGV\)$", text, re.MULTILINE)
    assert len({Scripts().digest, by_the_tests_clock().digest}) == 2
