"""Scripts and classes that were broken on purpose, and the test that each is caught by.

A test that catches nothing proves nothing.  A script is broken by a text in another's place, in the source
that the test's clock reads; a class by a method.  Caught means: by what the test asserts, or by a call that
fails where the test has none fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from policies.facts import Limits
from policies.outage import Breaker, Trouble
from tenants import epochs
from tenants.changes import Change, ChangeKind, Listeners
from tenants.directory import Directory
from tenants.epochs import Epochs
from tenants.tempo import shared as shared_module
from tenants.tempo.bell import KEY, RedisBell
from tenants.tempo.link import Failed, Link
from tenants.tempo.redis import _Keys
from tenants.tempo.scripts import shipped
from tenants.tempo.shared import SharedTempo
from tests.servers_valkey import Valkey
from tests.tenants import (
    redis_kit,
    test_epochs,
    test_tempo_machine,
    test_tempo_outage,
    test_tempo_redis,
)
from tests.tenants.redis_kit import shared
from tests.twins.test_tempo import STORIES, Clock, tell

pytestmark = pytest.mark.slow

Test = Callable[[Valkey], None]


def story(name: str) -> Test:
    """One of the table of cases, told to Redis."""

    def test(server: Valkey) -> None:
        async def go() -> None:
            clock = Clock()
            async with shared(server, clock) as tempo:
                await tell(tempo, clock, STORIES[name])

        asyncio.run(go())

    return test


def machine(server: Valkey) -> None:
    test_tempo_machine.check(server, 20, 40)


@dataclass(frozen=True)
class Script:
    """`old` stands in the file exactly once."""

    name: str
    file: str
    old: str
    new: str
    killed_by: Test


SCRIPTS = (
    Script(
        "a_check_after_a_write",
        "admit",
        "    draws[place] = draw\n",
        "    draws[place] = draw\n    if fits and draw.cost > 0 then\n"
        "      keep(draw.key, draw.field, draw.parts - draw.cost * PARTS, draw.at)\n    end\n",
        test_tempo_redis.test_nothing_is_written_where_anything_is_wrong,
    ),
    Script(
        "only_the_narrowest_bucket_is_asked",
        "admit",
        "if draw.cost > 0 and (draw.cost",
        "if place == 1 and draw.cost > 0 and (draw.cost",
        machine,
    ),
    Script(
        "a_replay_takes_twice",
        "admit",
        "if state == 'live' and until_ms > now then",
        "if false then",
        test_tempo_redis.test_the_same_admission_sent_twice_takes_once,
    ),
    Script(
        "a_replay_is_answered_by_what_is_so_now",
        "admit",
        "return nonce .. ' ' .. first\n",
        "return nonce .. ' 1 ' .. text(now) .. string.match(first, '^1 %d+(.*)$')\n",
        test_tempo_redis.test_the_same_admission_sent_twice_takes_once,
    ),
    Script(
        "a_refused_request_keeps_a_seat",
        "admit",
        "  if fits then\n    -- From",
        "  for _, seat in ipairs(seats) do\n"
        "    redis.call('ZADD', seat.key, text(now + lease_ms), request)\n"
        "    redis.call('PEXPIRE', seat.key, text(lease_ms))\n  end\n"
        "  if fits then\n    -- From",
        machine,
    ),
    Script(
        "seats_never_lapse",
        "admit",
        "'(' .. text(now), text(now + 2 * lease_ms)",
        "'-inf', text(now + 2 * lease_ms)",
        story("a lapsed seat is free"),
    ),
    Script(
        "a_seat_may_be_of_another_clock",
        "admit",
        "'(' .. text(now), text(now + 2 * lease_ms)",
        "'(' .. text(now), '+inf'",
        test_tempo_redis.test_a_clock_that_stepped_back_freezes_nothing,
    ),
    Script(
        "one_seat_too_many",
        "admit",
        "if seat.taken >= seat.limit then",
        "if seat.taken > seat.limit then",
        story("seats are leases at every scope"),
    ),
    Script(
        "a_refund_without_a_look_at_its_state",
        "leave",
        "local mine = state == 'live' and until_ms > now",
        "local mine = true",
        test_tempo_redis.test_the_same_refund_sent_twice_gives_once,
    ),
    Script(
        "an_end_leaves_no_mark",
        "leave",
        "redis.call('SET', KEYS[1], 'ended', 'PX', text(ended_ms))",
        "redis.call('DEL', KEYS[1])",
        test_tempo_redis.test_an_admission_that_arrives_after_its_refund_takes_nothing,
    ),
    Script(
        "more_comes_back_than_there_is_room_for",
        "leave",
        "gift.parts = math.min(gift.parts, gift.limit * PARTS)",
        "gift.parts = gift.parts + 0",
        story("what comes back to a plan that was raised meanwhile is no more than its brim"),
    ),
    Script(
        "a_seat_is_not_given_back",
        "leave",
        "redis.call('ZREM', key, request)",
        "redis.call('EXISTS', key)",
        story("seats are leases at every scope"),
    ),
    Script(
        "a_bucket_fills_above_its_brim",
        "common",
        "parts = math.min(most, parts + math.min(now - at, MINUTE_MS) * limit)",
        "parts = parts + math.min(now - at, MINUTE_MS) * limit",
        story("a minute fills a bucket to its brim and no further"),
    ),
    Script(
        "a_bucket_may_be_of_another_clock",
        "common",
        "if at > now + MINUTE_MS then",
        "if false then",
        test_tempo_redis.test_a_clock_that_stepped_back_freezes_nothing,
    ),
    Script(
        "doubles_instead_of_whole_numbers",
        "common",
        "return string.format('%.0f', number)",
        "return tostring(number)",
        test_tempo_redis.test_21_amounts_near_2_to_53_are_exact,
    ),
    Script(
        "a_bucket_for_ever",
        "common",
        "  redis.call('PEXPIRE', key, text(MINUTE_MS))\n",
        "",
        test_tempo_redis.test_every_key_goes_away_by_itself,
    ),
    Script(
        "a_seat_for_ever",
        "admit",
        "      redis.call('PEXPIRE', seat.key, text(lease_ms))\n",
        "",
        test_tempo_redis.test_every_key_goes_away_by_itself,
    ),
    Script(
        "a_record_for_ever",
        "admit",
        "live(now + lease_ms, answer), 'PX', text(lease_ms))",
        "live(now + lease_ms, answer))",
        test_tempo_redis.test_every_key_goes_away_by_itself,
    ),
    Script(
        "a_renewal_seats_nobody_anew",
        "renew",
        "local mine = state == 'absent' or (",
        "local mine = (",
        test_tempo_redis.test_a_wipe_refills_rates_and_renewal_seats_who_runs,
    ),
    Script(
        "a_renewal_brings_back_who_has_ended",
        "renew",
        "local mine = state == 'absent' or (",
        "local mine = state ~= 'live' or (",
        test_tempo_redis.test_an_admission_that_arrives_after_its_refund_takes_nothing,
    ),
)


def caught(test: Test, server: Valkey) -> bool:
    try:
        test(server)
    except (AssertionError, pytest.fail.Exception, Failed):
        return True
    return False


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_broken_script_is_caught(
    script: Script, valkey_server: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shipped(script.file).count(script.old) == 1
    broken = shipped(script.file).replace(script.old, script.new)
    monkeypatch.setattr(
        redis_kit, "source", lambda name: broken if name == script.file else shipped(name)
    )
    assert caught(script.killed_by, valkey_server)
    valkey_server.say("FLUSHALL")  # what it has left for ever is its fault, and seen


def _nothing_is_owed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SharedTempo, "_owe", lambda *_: None)


def _never_given_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shared_module, "failed", lambda *_: Breaker())


def _never_tried_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shared_module, "due", lambda *_: False)


def _each_process_allows_the_whole(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shared_module, "share", lambda limits, _: limits)


def _a_part_of_nothing(patch: pytest.MonkeyPatch) -> None:
    def part(limits: Limits, processes: int) -> Limits:
        cut = {name: (getattr(limits, name) or 0) // processes for name in ("rpm", "concurrent")}
        return replace(limits, **cut)

    patch.setattr(shared_module, "share", part)


def _every_failure_is_told(patch: pytest.MonkeyPatch) -> None:
    def fail(self: SharedTempo, trouble: Trouble) -> None:
        self._told(trouble)
        FAIL(self, trouble)

    patch.setattr(SharedTempo, "_fail", fail)


def _no_reply_is_looked_at(patch: pytest.MonkeyPatch) -> None:
    async def run(
        self: Link, name: str, keys: list[str], *args: object, forced: bool = False
    ) -> list[str]:
        said: str = await self._run(name, keys, ["7", *map(str, args)], forced=forced)
        return said.split(" ")[1:]

    patch.setattr(Link, "run", run)


def _a_key_for_each_scope(patch: pytest.MonkeyPatch) -> None:
    def place(self: _Keys, name: str) -> int:
        return self.places.setdefault(f"{{t:{self.tenant}:{name}}}", len(self.places) + 1)

    patch.setattr(_Keys, "_place", place)


def _nobody_rings(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Epochs, "changed", lambda _: None)


def _the_bell_is_trusted_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(epochs, "ANYWAY_MS", 10**9)


def _the_bell_is_a_counter(patch: pytest.MonkeyPatch) -> None:
    async def ring(self: RedisBell) -> None:
        await self.link.ask("INCR", KEY)
        await self.link.ask("PEXPIRE", KEY, "60000")

    patch.setattr(RedisBell, "ring", ring)


def _it_is_never_too_old(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Epochs, "stale", lambda _: False)


def _an_older_reading_counts(patch: pytest.MonkeyPatch) -> None:
    nothing = property(lambda _: 0, lambda *_: None)
    patch.setattr(Directory, "_written", nothing, raising=False)


def _what_was_learned_is_not_told(patch: pytest.MonkeyPatch) -> None:
    tell = Listeners.publish

    def publish(self: Listeners, change: Change) -> None:
        if change.kind is not ChangeKind.LEARNED:
            tell(self, change)

    patch.setattr(Listeners, "publish", publish)


FAIL = SharedTempo._fail


def on_its_own(test: Callable[[], None]) -> Test:
    return lambda _: test()


def crash(server: Valkey) -> None:
    test_tempo_outage.test_whatever_it_cannot_do_is_noticed_told_once_and_over_by_itself(
        test_tempo_outage.crash, Trouble.UNREACHABLE
    )


CLASSES: tuple[tuple[Callable[[pytest.MonkeyPatch], None], Test], ...] = (
    (_nothing_is_owed, test_tempo_outage.test_a_frozen_server_is_given_up_and_nobody_waits_for_it),
    (_never_given_up, test_tempo_outage.test_a_frozen_server_is_given_up_and_nobody_waits_for_it),
    (_never_tried_again, crash),
    (_every_failure_is_told, crash),
    (
        _each_process_allows_the_whole,
        on_its_own(
            test_tempo_outage.test_processes_that_cannot_count_together_allow_no_more_than_the_whole
        ),
    ),
    (
        _a_part_of_nothing,
        on_its_own(
            test_tempo_outage.test_a_small_plan_is_not_shut_out_and_a_large_request_takes_its_whole_part
        ),
    ),
    (_nobody_rings, on_its_own(test_epochs.test_every_kind_of_change_is_learned_both_ways)),
    (
        _the_bell_is_trusted_alone,
        on_its_own(test_epochs.test_a_bell_that_only_the_writer_cannot_ring_is_made_up_for),
    ),
    (_the_bell_is_a_counter, test_epochs.test_the_bell_in_redis),
    (_it_is_never_too_old, on_its_own(test_epochs.test_who_cannot_know_allows_nobody)),
    (
        _an_older_reading_counts,
        on_its_own(test_epochs.test_a_change_of_ours_is_never_undone_by_an_older_reading),
    ),
    (
        _what_was_learned_is_not_told,
        on_its_own(
            lambda: test_epochs.test_a_revocation_is_heard_within_the_bound_and_told_once(
                test_epochs.alone, epochs.ALONE_MS
            )
        ),
    ),
    (_no_reply_is_looked_at, test_tempo_redis.test_a_reply_that_is_not_ours_is_noticed),
    (
        _a_key_for_each_scope,
        test_tempo_redis.test_every_key_of_a_tenant_is_in_its_slot_and_every_user_has_a_pseudonym,
    ),
)


@pytest.mark.parametrize(
    ("broken", "killed_by"), CLASSES, ids=[each[0].__name__.strip("_") for each in CLASSES]
)
def test_a_broken_class_is_caught(
    broken: Callable[[pytest.MonkeyPatch], None],
    killed_by: Test,
    valkey_server: Valkey,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken(monkeypatch)
    assert caught(killed_by, valkey_server)
    valkey_server.thaw()
    valkey_server.say("FLUSHALL")
