"""Redis tempo and memory tempo, whatever happens to them in whatever order: the same answers.

The one is real scripts on a real server by the test's clock, the other the specification.  Beside what a
gateway does, things happen that only Redis has: replies that were lost, so that calls are sent again and
late, gateways that crash between taking and releasing, a server that is wiped.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from policies.facts import Limits
from policies.verdict import Allow, Deny
from tenants.tempo import Headroom, MemoryTempo, ScopeLimits, TempoAsk
from tenants.tempo.contract import costs
from tenants.tempo.link import Failed
from tenants.tempo.memory import _Admitted
from tenants.tempo.redis import RedisTempo
from tenants.tempo.shared import SharedTempo
from tests.servers_valkey import Valkey
from tests.tenants.house import Clock
from tests.tenants.machines import hold_out
from tests.tenants.redis_kit import PATIENT, ClockedLink, by_the_tests_clock, plain

pytestmark = pytest.mark.slow

LEASE_MS = 40_000
USERS = ("alice", "bob")
PLANS = (Limits(rpm=7, output_tpm=90, concurrent=2), Limits(rpm=13, output_tpm=60, concurrent=3))
WHOLE = ScopeLimits("tenant", "acme", Limits(rpm=23, input_tpm=50, output_tpm=151, concurrent=4))


class Tempos(RuleBasedStateMachine):
    server: ClassVar[Valkey]

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.server.say("FLUSHALL")
        self.clock = Clock()
        self.plan = PLANS[0]
        self.link = ClockedLink(self.server.url, deadlines=PATIENT, scripts=by_the_tests_clock())
        self.link.clock = self.clock
        self.raw = RedisTempo(self.link, plain, lease_ms=LEASE_MS)
        self.asks: dict[str, TempoAsk] = {}
        self.answers: dict[str, Allow[Headroom]] = {}
        self.ended: set[str] = set()
        self.seated_anew: set[str] = set()
        self.count = 0
        self.restart()
        self.model = MemoryTempo(self.clock, lease_ms=LEASE_MS)

    def restart(self) -> None:
        self.mine: list[str] = []
        self.tempo = SharedTempo(self.raw, clock_ms=self.clock, processes=1)

    def teardown(self) -> None:
        self.runner.run(self.link.aclose())
        self.runner.close()
        lives = self.server.lives()
        assert all(ttl_ms > 0 for ttl_ms in lives.values()), lives

    def scopes(self, user: str) -> tuple[ScopeLimits, ...]:
        return ScopeLimits("user", user, self.plan), WHOLE

    @rule(user=st.sampled_from(USERS), inp=st.integers(0, 30), out=st.integers(0, 100))
    def admit(self, user: str, inp: int, out: int) -> None:
        self.count += 1
        ask = TempoAsk(f"r{self.count}", "acme", self.scopes(user), inp, out)
        said = self.runner.run(self.tempo.admit(ask))
        assert said == self.runner.run(self.model.admit(ask))
        if isinstance(said, Allow):
            self.asks[ask.request_id] = ask
            self.answers[ask.request_id] = said
            self.mine.append(ask.request_id)

    @precondition(lambda self: self.asks)
    @rule(data=st.data())
    def admission_is_sent_again(self, data: st.DataObject) -> None:
        """By a client that had no answer; also long after it was given up."""
        name = data.draw(st.sampled_from(sorted(self.asks)))
        self.runner.run(self.model.renew(()))  # what lapses until now has lapsed
        live = name in self.model._live
        if name in self.ended or (live and name in self.seated_anew):
            with pytest.raises(Failed):
                self.runner.run(self.raw.admit(self.asks[name]))
        elif live:
            assert self.runner.run(self.raw.admit(self.asks[name])) == self.answers[name]

    @precondition(lambda self: self.mine)
    @rule(data=st.data(), used=st.integers(0, 120), refund=st.booleans())
    def leave(self, data: st.DataObject, used: int, refund: bool) -> None:
        name = data.draw(st.sampled_from(self.mine))
        self.mine.remove(name)
        for tempo in (self.tempo, self.model):
            self.runner.run(tempo.refund(name) if refund else tempo.release(name, used))
        assert self.tempo.owed == 0
        # Of one that had lapsed neither heard: its id may be used again.
        if self.server.say("GET", f"{{t:acme}}r:{name}") == b"ended":
            self.ended.add(name)

    @precondition(lambda self: self.ended)
    @rule(data=st.data())
    def refund_is_sent_again(self, data: st.DataObject) -> None:
        ask = self.asks[data.draw(st.sampled_from(sorted(self.ended)))]
        assert not self.runner.run(self.raw.leave(ask, costs(ask.scopes, ask)))

    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        names = data.draw(st.lists(st.sampled_from([*self.mine, "never"]), unique=True))
        lost = self.runner.run(self.tempo.renew(names))
        assert lost == self.runner.run(self.model.renew(names))
        self.mine = [name for name in self.mine if name not in lost]

    @rule(ms=st.sampled_from((0, 1, 13, 997, 4_999, 17_000, LEASE_MS - 1, LEASE_MS, 61_000)))
    def time_passes(self, ms: int) -> None:
        self.clock.ms += ms

    @rule(plan=st.sampled_from(PLANS))
    def limits_change(self, plan: Limits) -> None:
        """While somebody sits there.  Buckets are full first: of one that is dropped as full, memory forgets
        at once by which limit it was; the table of cases (tests/twins) has the others."""
        for ms in (31_000, 31_000):
            assert self.runner.run(self.tempo.renew(self.mine)) == self.runner.run(
                self.model.renew(self.mine)
            )
            self.mine = [name for name in self.mine if name in self.tempo._live]
            self.clock.ms += ms
        self.plan = plan
        # Keys go away by the server's own clock, which has not moved.
        self.server.say(
            "DEL", *(f"{{t:acme}}b:user:{user}" for user in USERS), "{t:acme}b:tenant:acme"
        )

    @rule()
    def gateway_crashes(self) -> None:
        """What it had taken lapses; nobody gives it back."""
        self.restart()

    @rule()
    def server_is_wiped(self) -> None:
        """Rates refill, and who runs is seated anew with the next renewal."""
        self.runner.run(self.tempo.renew(()))  # what lapses until now has lapsed
        self.server.say("FLUSHALL")
        self.mine = [name for name in self.mine if name in self.tempo._live]
        self.model = MemoryTempo(self.clock, lease_ms=LEASE_MS)
        until_ms, unknown = self.clock.ms + LEASE_MS, Allow(Headroom(None, None))
        for name in self.mine:
            self.model._live[name] = _Admitted(self.asks[name], unknown, until_ms)
            for scope in self.asks[name].scopes:
                self.model._seats.setdefault((scope.scope, scope.id), set()).add(name)
        assert self.runner.run(self.tempo.renew(self.mine)) == ()
        # The first answers were lost with the rest, and nobody may be admitted twice.
        self.ended, self.seated_anew = set(), set(self.mine)
        self.asks = {name: self.asks[name] for name in self.mine}

    @invariant()
    def what_is_left_is_the_same(self) -> None:
        for user in USERS:
            scopes = self.scopes(user)
            for some in (scopes, scopes[:1], scopes[1:]):
                here = self.runner.run(self.tempo.headroom("acme", some))
                assert here == self.runner.run(self.model.headroom("acme", some))
        for scope in (*(ScopeLimits("user", user, self.plan) for user in USERS), WHOLE):
            key = f"{{t:acme}}s:{scope.scope}:{scope.id}"
            here_taken = int(self.server.say("ZCOUNT", key, f"({self.clock.ms}", "+inf"))
            assert here_taken == len(self.model._seats.get((scope.scope, scope.id), ()))


def check(server: Valkey, examples: int, steps: int) -> None:
    Tempos.server = server
    hold_out(Tempos, examples, steps, shrink=False)


def test_redis_answers_as_memory_does(valkey_server: Valkey) -> None:
    check(valkey_server, 15, 40)


def test_a_refusal_is_worded_alike(valkey_server: Valkey) -> None:
    """The machine draws few of the ways to be refused by several limits at once; this draws only those."""
    import random

    async def test() -> None:
        rng, clock = random.Random(8), Clock()
        limits = {
            (scope, who): Limits(*rng.choices((None, 3, 50, 400, 0), (40, 10, 10, 10, 1), k=4))
            for scope in ("key", "user", "tenant")
            for who in "abcdefgh"
        }
        link = ClockedLink(valkey_server.url, deadlines=PATIENT, scripts=by_the_tests_clock())
        link.clock = clock
        tempo, model = RedisTempo(link, plain), MemoryTempo(clock)
        refused = 0
        for number in range(400):
            clock.ms += rng.choice((0, 0, 500, 5_000))
            scopes = tuple(
                ScopeLimits(scope, who, limits[scope, who])
                for scope in ("key", "user", "tenant")
                for who in [rng.choice("abcdefgh")]
            )
            ask = TempoAsk(f"r{number}", "acme", scopes, rng.randrange(60), rng.randrange(60))
            said = await tempo.admit(ask)
            assert said == await model.admit(ask)
            refused += isinstance(said, Deny)
        assert 50 < refused < 350
        await link.aclose()

    asyncio.run(test())
