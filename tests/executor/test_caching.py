"""Kept prefixes, seen from outside: what a second request finds, and what it must not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import msgspec
import pytest

from executor.batch import Batch
from executor.caching import fault
from executor.contract import (
    Caching,
    Cause,
    Ended,
    Prefilling,
    Purged,
    Quota,
    Quotas,
    Revoked,
    Scope,
    Submit,
    Update,
)
from executor.cost import Rates, StepTimes
from executor.scheduler.protocol import Charge
from executor.sequence import Sequence
from executor.settings import Policy
from policies.scope.chain import Chain, ScopeKey
from policies.scope.residency import Hit, Source, disclosed_tokens
from tests.executor.fakes import COMPUTES, FREE, Clock, FakeRunner, Harness, job
from tests.executor.labelled import (
    CONTEXT,
    HOUR_MS,
    SIZE,
    ask,
    cached,
    house_of,
    labelled,
    purge,
    revoke,
    scope,
    tag,
)
from tests.executor.test_engine import greedy

PROMPT = tuple(range(1, 19))  # four full blocks, and two tokens
DOC = tuple(range(1, 13))  # three full blocks
WORDS = (20, 21, 22, 23, 24, 25)


def of_doc(
    request: int, words: tuple[int, ...] = WORDS, owner: str = "a", **fields: object
) -> Submit:
    """A question about a registered document."""
    who = fields.pop("who", f"{owner}/user")
    prompt = DOC + words
    return labelled(
        request,
        prompt,
        scope("doc", len(DOC), pinned=True, covers="doc@1"),
        scope(str(who), len(prompt), covers="doc@1"),
        owner=owner,
        **fields,
    )


def warm(request: int, owner: str = "a", **fields: object) -> Submit:
    doc = scope("doc", len(DOC), pinned=True, covers="doc@1")
    return labelled(request, DOC, doc, owner=owner, warm=True, **fields)


def unlike(request: int, n: int, owner: str = "a") -> Submit:
    """A prompt of four full blocks like no other."""
    return labelled(request, tuple((n + 7 * at) % 32 for at in range(17)), owner=owner)


# What is found


def test_the_same_user_finds_what_it_said_before_and_its_answer() -> None:
    house = house_of()
    assert ask(house, labelled(1, PROMPT, max_new_tokens=7)) == 0
    answer = house.tokens(1)
    assert ask(house, labelled(2, PROMPT)) == 16
    last = house.ended(2)
    assert (last.prefilled, last.pinned) == (2, 0)
    longer = (*PROMPT, *answer, 5)
    assert ask(house, labelled(3, longer)) == 24  # its last word was not computed
    assert house.tokens(3) == greedy(longer, 1)
    assert house.tokens(2) == house.tokens(1)[:1]
    house.assert_empty()


def test_a_running_request_is_read_while_it_speaks() -> None:
    house = house_of()
    house.submit(labelled(1, PROMPT, max_new_tokens=30))
    house.step()
    house.submit(labelled(2, PROMPT))
    house.step()
    assert cached(house, 2) == 16
    assert not house.ended(2).preemptions
    house.run()
    assert house.tokens(1) == greedy(PROMPT, 30)
    house.assert_empty()


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    house = house_of()
    for n in (1, 2, 3):
        ask(house, labelled(n, PROMPT[:16]))
    assert [cached(house, n) for n in (1, 2, 3)] == [0, 12, 12]
    assert house.tokens(2) == greedy(PROMPT[:16], 1)
    assert house.engine.gauges.kept_blocks == 4


def test_a_progress_begins_after_what_was_found() -> None:
    house = house_of()
    ask(house, labelled(1, PROMPT))
    ask(house, labelled(2, PROMPT))
    told = [each.done_tokens for each in house.heard[0, 2] if isinstance(each, Prefilling)]
    assert told == [18]
    assert house.runner.batches[-1] == [(16, 2)]


def test_only_full_blocks_are_kept() -> None:
    house = house_of()
    ask(house, labelled(1, PROMPT))
    assert house.engine.gauges.kept_blocks == 4
    ask(house, labelled(2, (*PROMPT, 9, 9, 9, 9)))
    assert cached(house, 2) == 16
    assert house.tokens(2) == greedy((*PROMPT, 9, 9, 9, 9), 1)


def test_guesses_that_did_not_hold_are_not_kept() -> None:
    """The model repeats itself, so guesses are run; what is kept of the answer is what was said."""
    house = house_of(Quota(owner="a", part=1.0, pinned=0.0))
    house.runner.habits = 6.0
    house.engine._books.times.rates = FREE
    ask(house, labelled(1, PROMPT, max_new_tokens=60))
    assert house.engine.gauges.drafted_tokens > house.engine.gauges.accepted_tokens
    for entry in house.engine.keeper.cache._entries.values():
        at = 0
        up = entry
        while up.parent is not None:
            up, at = up.parent, at + 1
        said = [*PROMPT, *house.tokens(1)][at * SIZE : (at + 1) * SIZE]
        assert entry.tokens == b"".join(token.to_bytes(4) for token in said)
        assert house.runner._memory[entry.block] == said
    house.assert_empty()


# P1, P2: and nothing else


@pytest.mark.parametrize(
    ("change", "found"),
    (
        ({}, 16),
        ({"scopes": (scope("a/other", 18),)}, 0),
        ({"scopes": (scope("a/user", 18, key="other"),)}, 0),
        ({"context": tag("another context")}, 0),
        ({"scopes": (scope("a/user", 8), scope("a/session", 18))}, 8),
    ),
)
def test_equal_words_are_found_under_the_same_label_key_and_context_only(
    change: dict[str, object], found: int
) -> None:
    house = house_of()
    ask(house, labelled(1, PROMPT))
    scopes = change.pop("scopes", ())
    asked = labelled(2, PROMPT, *scopes, **change)  # type: ignore[arg-type,misc]
    assert ask(house, asked) == found
    assert house.tokens(2) == house.tokens(1)


def test_a_block_across_a_boundary_has_the_higher_label() -> None:
    house = house_of()
    ask(house, labelled(1, PROMPT, scope("low", 10), scope("high", 18)))
    assert ask(house, labelled(2, PROMPT, scope("low", 10), scope("other", 18))) == 8
    assert ask(house, labelled(3, PROMPT, scope("low", 10), scope("high", 18))) == 16


def test_another_tenant_finds_nothing_of_the_same_words() -> None:
    house = house_of()
    ask(house, labelled(1, PROMPT))
    assert ask(house, labelled(2, PROMPT, owner="b")) == 0


@pytest.mark.parametrize(
    "other",
    (
        {"weights_digest": tag("other weights")},
        {"adapter_digest": tag("an adapter")},
        {"dtype": "bfloat16"},
        {"numerics": "fast"},
        {"kernel_config": "other"},
    ),
)
def test_what_computes_is_in_every_value(other: dict[str, object]) -> None:
    def values(house: Harness) -> set[bytes]:
        ask(house, labelled(1, PROMPT))
        return set(house.engine.keeper.cache._entries)

    there = house_of()
    there.engine.keeper._computes = replace(COMPUTES, **other)  # type: ignore[arg-type]
    assert values(house_of()) == values(house_of())
    assert not values(house_of()) & values(there)


def collide(patch: pytest.MonkeyPatch, *, words: bool = False) -> None:
    """As if the values of all blocks at one place were the same, or of all with the same `words`: keys and
    what came before say nothing."""

    def extend(
        self: Chain, _: ScopeKey, tokens: tuple[int, ...]
    ) -> tuple[Chain, tuple[bytes, ...]]:
        size = self.block_tokens
        starts = range(0, len(tokens), size)
        values = [
            tag(str(tokens[at : at + size])) if words else (self.position + at).to_bytes(32)
            for at in starts
        ]
        return replace(self, position=self.position + len(tokens)), tuple(values)

    patch.setattr(Chain, "extend", extend)


@pytest.mark.parametrize(
    "asked",
    (
        labelled(2, (9, *PROMPT[1:])),
        labelled(2, PROMPT, scope("other", 18)),
        labelled(2, PROMPT, context=tag("another context")),
        labelled(2, PROMPT, owner="b"),
        labelled(2, PROMPT, scope("a/user", 18, covers="doc@1")),
    ),
)
def test_where_values_collide_the_rest_is_compared(
    asked: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    collide(monkeypatch)
    house = house_of()
    ask(house, labelled(1, PROMPT))
    assert ask(house, asked) == 0
    assert house.tokens(2) == greedy(asked.prompt, 1)
    assert house.engine.gauges.cache_mismatches > 0


def test_a_block_after_another_parent_is_not_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    collide(monkeypatch, words=True)
    house = house_of()
    other = (9, *PROMPT[1:])
    for n in (1, 2):
        assert ask(house, labelled(n, PROMPT)) == 16 * (n - 1)
    for n in (3, 4):
        assert ask(house, labelled(n, other)) == 4 * (n - 3)  # its second block is the first one's
        assert house.tokens(n) == greedy(other, 1)


# P4: what is registered


def test_a_registered_document_is_there_for_all_who_may_read_it() -> None:
    house = house_of()
    house.submit(warm(1))
    house.run()
    last = house.ended(1)
    assert (last.cause, last.generated, last.prefilled) == (Cause.STOP, 0, 12)
    assert [type(each) for each in house.heard[0, 1]].count(Prefilling) == 1
    assert house.engine.gauges.pinned_blocks == 3
    for n, owner in ((2, "a"), (3, "b")):
        assert ask(house, of_doc(n, owner=owner)) == 12
        assert house.ended(n).pinned == 12
        assert house.tokens(n) == greedy(DOC + WORDS, 1)
    house.assert_empty()


def test_nobody_is_served_by_a_pinned_label_that_was_not_registered() -> None:
    house = house_of()
    for n in (1, 2, 3):
        assert ask(house, of_doc(n)) == 0
    assert house.engine.gauges.kept_blocks == 0


def test_reading_moves_no_pinned_end() -> None:
    house = house_of()
    house.submit(warm(1, absolute_ms=1000))
    house.run()
    (first, *_) = house.engine.keeper.cache._entries.values()
    before = (first.created_ns, first.used_ns)
    house.clock.now_ns += 500_000_000
    assert ask(house, of_doc(2)) == 12
    assert (first.created_ns, first.used_ns) == before
    house.clock.now_ns += 500_000_000
    assert ask(house, of_doc(3)) == 0
    house.step()
    assert house.engine.gauges.pinned_blocks == 0


def test_a_registration_is_kept_whole_or_refused_whole() -> None:
    quota = Quota(owner="a", part=5 / 32, pinned=0.9)  # four pinned, one other
    house = house_of(quota)
    house.submit(warm(1))
    house.run()
    other = labelled(2, DOC, scope("doc2", 12, pinned=True), warm=True)
    house.submit(other)
    house.run()
    assert (house.ended(2).cause, house.ended(2).generated) == (Cause.QUOTA, 0)
    assert house.engine.gauges.pinned_blocks == 3
    house.order(revoke("doc"))
    house.submit(msgspec.structs.replace(other, request=3))
    house.run()
    assert house.ended(3).cause is Cause.STOP
    house.assert_empty()


def test_traffic_and_registrations_take_no_room_of_each_other() -> None:
    house = house_of(Quota(owner="a", part=8 / 32, pinned=0.5))
    for n in range(1, 6):
        ask(house, unlike(n, n))
    assert house.engine.gauges.kept_blocks == 4
    house.submit(labelled(9, PROMPT, max_new_tokens=40))  # reads while the other comes
    house.step()
    house.submit(warm(10))
    house.run()
    assert house.ended(10).cause is Cause.STOP
    gauges = house.engine.gauges
    assert (gauges.pinned_blocks, gauges.kept_blocks) == (3, 7)


def test_requests_evict_nothing_that_is_pinned() -> None:
    house = house_of()
    house.submit(warm(1))
    house.run()
    for n in range(2, 12):
        ask(house, unlike(n, n))
    assert house.engine.gauges.cache_evictions > 0
    assert ask(house, of_doc(20)) == 12


def test_registering_again_begins_its_time_anew() -> None:
    house = house_of()
    house.submit(warm(1, absolute_ms=1000))
    house.run()
    house.clock.now_ns += 700_000_000
    house.submit(warm(2, absolute_ms=1000))
    house.run()
    house.clock.now_ns += 700_000_000
    assert ask(house, of_doc(3)) == 12
    assert house.engine.gauges.pinned_blocks == 3


def test_without_a_pool_a_registration_is_refused() -> None:
    house = house_of(pool=0.0)
    house.submit(warm(1))
    house.run()
    assert house.ended(1).cause is Cause.QUOTA
    assert ask(house, labelled(2, PROMPT)) == ask(house, labelled(3, PROMPT)) == 0


# P5: whose room


@pytest.mark.parametrize(("mine", "theirs"), (("a", "b"), ("b", "a")))
def test_no_owner_evicts_anothers(mine: str, theirs: str) -> None:
    house = house_of()
    ask(house, labelled(1, PROMPT, owner=theirs))
    for n in range(2, 12):
        ask(house, unlike(n, n, owner=mine))
    assert house.engine.gauges.cache_evictions > 0
    assert ask(house, labelled(20, PROMPT, owner=theirs)) == 16


def test_a_quota_is_never_exceeded() -> None:
    house = house_of(Quota(owner="a", part=3 / 32, pinned=0.0), Quota(owner="b", part=0.5))
    ask(house, labelled(1, PROMPT))
    assert house.engine.gauges.kept_blocks == 3
    assert ask(house, labelled(2, PROMPT)) == 12
    for n in range(3, 9):
        ask(house, unlike(n, n))
        assert house.engine.gauges.kept_blocks == 3


def test_parts_over_one_are_scaled_alike_and_who_is_not_named_keeps_nothing() -> None:
    house = house_of(Quota(owner="a", part=3.0, pinned=0.0), Quota(owner="b", part=1.0, pinned=0.0))
    house.step()
    owners = house.engine.keeper.cache._owners
    assert (owners["a"].kept_max, owners["b"].kept_max) == (24, 8)
    assert ask(house, labelled(1, PROMPT, owner="c")) == ask(house, labelled(2, PROMPT, owner="c"))
    assert house.engine.gauges.kept_blocks == 0


@pytest.mark.parametrize("part", (float("nan"), float("inf"), -1.0))
def test_what_is_no_part_is_none(part: float) -> None:
    house = house_of(Quota(owner="a", part=part), Quota(owner="b", part=1.0, pinned=part))
    house.step()
    owners = house.engine.keeper.cache._owners
    assert (owners["a"].kept_max, owners["a"].pinned_max) == (0, 0)
    assert (owners["b"].kept_max, owners["b"].pinned_max) == (32, 0)


def test_a_smaller_quota_is_obeyed_at_once() -> None:
    house = house_of()
    house.submit(warm(1))
    for n in (2, 3):
        house.submit(unlike(n, n))
    house.run()
    assert house.engine.gauges.kept_blocks == 11
    house.order(Quotas(quotas=(Quota(owner="a", part=2 / 32, pinned=0.5),)))
    house.step()
    assert house.engine.gauges.kept_blocks <= 2
    house.assert_empty()


def test_the_least_recently_used_goes_first_and_not_one_that_is_read() -> None:
    house = house_of(Quota(owner="a", part=8 / 32, pinned=0.0))
    ask(house, labelled(1, PROMPT))
    ask(house, unlike(2, 5))
    house.submit(labelled(3, PROMPT, max_new_tokens=3))  # reads the older of the two
    house.step()
    ask(house, unlike(4, 6))
    assert ask(house, labelled(5, PROMPT)) == 16
    assert ask(house, unlike(6, 5)) < 16
    house.assert_empty()


def test_an_entry_that_is_read_is_not_evicted_however_many_come() -> None:
    house = house_of(Quota(owner="a", part=4 / 32, pinned=0.0))
    house.submit(labelled(1, PROMPT, max_new_tokens=60))
    for n in range(2, 8):
        house.step()
        house.submit(unlike(n, n))
    house.run()
    assert house.tokens(1) == greedy(PROMPT, 60)
    assert house.engine.gauges.cache_evictions <= 4  # once it has ended


def test_what_runs_has_its_room_however_much_is_kept() -> None:
    """The pool is full; a request that needs all the rest runs, and evicts nothing."""
    house = house_of(Quota(owner="a", part=1.0, pinned=0.0))
    for n in range(1, 12):
        ask(house, unlike(n, n))
    assert house.engine.gauges.kept_blocks == 32
    evictions = house.engine.gauges.cache_evictions
    long = job(20, range(32), max_new_tokens=95, share=(("b", 1.0),))
    house.submit(long)
    house.run()
    last = house.ended(20)
    assert (last.generated, last.preemptions) == (95, 0)
    assert house.engine.gauges.cache_evictions == evictions


# Time


@pytest.mark.parametrize(
    ("idle_ms", "absolute_ms", "waits_ms", "found"),
    (
        (1000, HOUR_MS, (900, 900, 900), 16),
        (1000, HOUR_MS, (900, 1001), 0),
        (HOUR_MS, 1000, (600, 600), 0),
        (HOUR_MS, 1000, (300, 300), 16),
    ),
)
def test_time_is_the_engines_and_is_asked_at_each_look_up(
    idle_ms: int, absolute_ms: int, waits_ms: tuple[int, ...], found: int
) -> None:
    house = house_of(clock=Clock(tick_ns=1000))
    ask(house, labelled(1, PROMPT, idle_ms=idle_ms, absolute_ms=absolute_ms))
    house.engine.keeper.cache._due.clear()  # no sweeper
    for n, wait_ms in enumerate(waits_ms, 2):
        house.clock.now_ns += wait_ms * 1_000_000
        last = ask(house, labelled(n, PROMPT, idle_ms=idle_ms, absolute_ms=absolute_ms))
    assert last == found


def test_what_has_ended_is_swept_and_wiped_though_nobody_asks() -> None:
    house = house_of()
    ask(house, labelled(1, PROMPT, idle_ms=1000))
    house.clock.now_ns += 2_000_000_000
    house.step()
    assert house.engine.gauges.kept_blocks == 0
    house.assert_empty()


def test_what_ends_while_it_is_read_is_read_to_the_end_and_then_wiped() -> None:
    house = house_of()
    house.submit(labelled(1, PROMPT, max_new_tokens=20, absolute_ms=10))
    house.step()
    house.clock.now_ns += 20_000_000
    house.submit(labelled(2, PROMPT, absolute_ms=10))
    house.step()
    house.run()
    assert cached(house, 2) == 0
    assert house.tokens(1) == greedy(PROMPT, 20)
    house.clock.now_ns += 20_000_000
    house.step()
    assert house.engine.gauges.kept_blocks == 0
    house.assert_empty()


# P6: revocation


def test_a_revocation_ends_readers_running_and_waiting_within_the_step() -> None:
    house = house_of(seqs_max=2)
    house.submit(warm(1))
    house.run()
    for n in (2, 3, 4):
        house.submit(of_doc(n, max_new_tokens=30))
    house.submit(labelled(5, PROMPT, max_new_tokens=5))
    house.step()
    house.step()
    said = house.tokens(2)
    assert said
    house.order(revoke("doc@1"))
    house.step()
    for n in (2, 3, 4):
        assert house.ended(n).cause is Cause.REVOKED
    assert house.tokens(2) == said == greedy(DOC + WORDS, len(said))
    (answer,) = house.answers
    assert answer == Revoked(number=1, entries=answer.entries, ended=3, zeroed=True)
    assert answer.entries >= 4  # the document's three, and the reader's own
    house.run()
    assert house.ended(5).cause is Cause.LENGTH
    house.assert_empty()


def test_a_revocation_during_a_step_lets_nothing_more_be_said() -> None:
    house = house_of()
    house.submit(of_doc(1, max_new_tokens=30))
    house.step()
    said = house.tokens(1)

    def during(_: Batch) -> None:
        house.order(revoke("doc"))
        house.runner.before = lambda _: None

    house.runner.before = during
    house.step()
    assert house.ended(1).cause is Cause.REVOKED
    assert house.tokens(1) == said
    assert [type(each) for each in house.answers] == [Revoked]
    house.assert_empty()


def test_a_revocation_is_obeyed_in_a_step_that_fails() -> None:
    house = house_of()
    house.submit(warm(1))
    house.run()
    house.submit(of_doc(2, max_new_tokens=30))
    house.step()

    def during(_: Batch) -> None:
        house.order(revoke("doc"))
        house.runner.before = lambda _: None
        raise RuntimeError

    house.runner.before = during
    house.step()
    house.step()
    assert len(house.answers) == 1
    assert ask(house, of_doc(3, snapshot=2)) == 0
    house.assert_empty()


def test_one_on_its_way_that_was_decided_before_ends_too() -> None:
    house = house_of()
    house.order(revoke("doc@1", snapshot=7))
    house.submit(of_doc(1, snapshot=6))
    house.submit(of_doc(2, snapshot=7))
    house.submit(labelled(3, PROMPT, snapshot=6))
    house.step()  # the order came with them
    assert house.ended(1).cause is Cause.REVOKED
    house.submit(of_doc(4, snapshot=6))
    house.run()
    assert house.ended(4).cause is Cause.REVOKED
    assert house.ended(4).prefilled == 0
    assert house.ended(2).cause is house.ended(3).cause is Cause.LENGTH


def test_a_grant_anew_revives_nothing() -> None:
    house = house_of()
    house.submit(warm(1))
    house.run()
    assert ask(house, of_doc(2)) == 12
    house.order(revoke("doc@1", snapshot=2))
    house.step()
    assert ask(house, of_doc(3, snapshot=3)) == 0
    house.submit(warm(4, snapshot=3))
    house.run()
    assert ask(house, of_doc(5, snapshot=3)) == 12


def test_by_a_label_too_and_what_hangs_on_it_goes_along() -> None:
    house = house_of()
    ask(house, labelled(1, PROMPT, scope("low", 8), scope("high", 18)))
    house.order(revoke("low"))
    house.step()
    assert house.answers == [Revoked(number=1, entries=4, ended=0, zeroed=True)]
    assert house.engine.gauges.kept_blocks == 0
    house.assert_empty()


def test_where_more_is_revoked_than_is_remembered_older_decisions_count_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("executor.keeper._REMEMBERED", 2)
    house = house_of()
    for n, name in enumerate(("x", "y", "z"), 5):
        house.order(revoke(name, snapshot=n, number=n))
    house.step()
    for n, snapshot in ((1, 4), (2, 5)):
        house.submit(labelled(n, PROMPT, snapshot=snapshot))
    house.run()
    assert house.ended(1).cause is Cause.REVOKED
    assert house.ended(2).cause is Cause.LENGTH


# P7 and purges


def test_a_purge_wipes_ends_readers_and_says_so() -> None:
    house = house_of()
    for n, owner in ((1, "a"), (2, "b")):
        ask(house, labelled(n, PROMPT, owner=owner))
    house.submit(labelled(3, PROMPT, max_new_tokens=30))
    house.step()
    house.order(purge("a"))
    house.step()
    assert house.ended(3).cause is Cause.REVOKED
    (answer,) = house.answers
    assert answer == Purged(number=1, entries=answer.entries, ended=1, zeroed=True)
    assert ask(house, labelled(4, PROMPT)) == 0
    assert ask(house, labelled(5, PROMPT, owner="b")) == 16
    house.order(purge(None, "a/user", number=2))
    house.step()
    assert (house.answers[-1].number, house.answers[-1].ended) == (2, 0)
    house.order(purge(number=3))
    house.step()
    assert house.engine.gauges.kept_blocks == 0
    house.assert_empty()


def test_a_purge_of_what_was_not_wiped_says_that() -> None:
    house = house_of()
    ask(house, labelled(1, PROMPT))
    house.engine.blocks._zero = lambda _: None
    house.order(purge("a"))
    house.step()
    assert house.answers == [Purged(number=1, entries=4, ended=0, zeroed=False)]


def test_an_evicted_block_is_wiped_before_another_reads_it() -> None:
    house = house_of(Quota(owner="a", part=4 / 32, pinned=0.0), kv_blocks=64)
    for n in range(1, 30):  # all the memory goes round
        ask(house, unlike(n, n))
        assert house.tokens(n) == greedy(unlike(n, n).prompt, 1)
    house.assert_empty()


def test_a_step_that_failed_keeps_nothing_of_it() -> None:
    house = house_of(step_tokens_max=8)
    house.submit(labelled(1, PROMPT))
    house.step()
    assert house.engine.gauges.kept_blocks == 2

    def fail(_: Batch) -> None:
        house.runner.before = lambda _: None
        raise RuntimeError

    house.runner.before = fail
    house.step()
    assert house.ended(1).cause is Cause.CRASHED
    assert house.engine.gauges.kept_blocks == 0
    assert ask(house, labelled(2, PROMPT)) == 0
    house.assert_empty()


# Company


def test_a_request_that_was_put_out_finds_its_own_again() -> None:
    house = house_of(
        Quota(owner="a", part=1.0, pinned=0.0), kv_blocks=64, pool=0.75, policy=Policy.FCFS
    )
    jobs = [labelled(n, (n, *PROMPT[1:]), max_new_tokens=30) for n in (1, 2, 3)]
    for each in jobs:
        house.submit(each)
    house.run()
    gauges = house.engine.gauges
    assert gauges.preemptions > 0
    for each in jobs:
        last = house.ended(each.request)
        assert house.tokens(each.request) == greedy(each.prompt, 30)
        assert last.prefilled + last.cached == 18
    assert gauges.cache_hits > 0
    house.assert_empty()


def test_choices_of_one_prompt_share_it_with_labels_and_their_answers_are_kept() -> None:
    house = house_of()
    for n in (1, 2, 3):
        house.submit(labelled(n, PROMPT, sibling=None if n == 1 else 1, max_new_tokens=12))
    house.run()
    assert [house.ended(n).prefilled for n in (1, 2, 3)] == [18, 2, 2]
    assert [cached(house, n) for n in (1, 2, 3)] == [0, 0, 0]
    for n in (1, 2, 3):
        assert house.tokens(n) == greedy(PROMPT, 12)
    assert ask(house, labelled(9, (*PROMPT, *house.tokens(2)))) == 28
    house.assert_empty()


def test_a_sibling_of_another_label_reads_nothing_of_it() -> None:
    house = house_of()
    house.submit(labelled(1, PROMPT, max_new_tokens=4))
    house.submit(labelled(2, PROMPT, scope("a/other", 18), sibling=1, max_new_tokens=4))
    house.run()
    assert house.ended(2).prefilled == 18
    assert house.tokens(2) == house.tokens(1)


def test_two_who_compute_the_same_at_once_hold_it_once() -> None:
    house = house_of()
    for n in (1, 2):
        house.submit(labelled(n, PROMPT, max_new_tokens=9))
    house.run()
    assert [house.ended(n).prefilled for n in (1, 2)] == [18, 18]
    assert house.tokens(1) == house.tokens(2) == greedy(PROMPT, 9)
    assert house.engine.gauges.kept_blocks == 6
    house.assert_empty()


# What may not be told


def shared(request: int, who: str, words: tuple[int, ...] = WORDS, **fields: object) -> Submit:
    prompt = DOC + words
    common = scope(str(fields.pop("common", "a/all")), len(DOC), disclosed=False)
    return labelled(request, prompt, common, scope(who, len(prompt)), **fields)  # type: ignore[arg-type]


MACHINE = Rates(step_ns=2e7, token_ns=1e6, token_context_ns=0.0)


class Known(StepTimes):
    """Nothing is to be learnt."""

    def observe(self, rows: object, measured_ns: int) -> None: ...


def on_a_machine(common: str, **limits: object) -> tuple[list[object], list[object], Harness]:
    """Alice, after Bob, beside another tenant, on a machine that takes what is expected: what each was
    told in each step, and what the scheduler was charged.  `common`: Bob's label for the document."""
    clock = Clock(tick_ns=0)
    house = house_of(clock=clock, **limits)  # type: ignore[arg-type]
    house.engine._books.times = Known(MACHINE)

    def takes(batch: Batch) -> None:
        rows = [MACHINE.row_ns(len(row.tokens), row.start) for row in batch.rows]
        clock.now_ns += round(MACHINE.step_ns + sum(rows))

    house.runner.before = takes
    ask(house, shared(1, "a/bob", (30, 31, 30, 31, 30), common=common))
    house.runner.batches.clear()
    charged: list[object] = []
    charge = house.engine._books._charge

    def note(bill: Iterable[Charge[Sequence]]) -> None:
        rows = list(bill)
        charged.append(sorted((seq.key, own_ns, lost_ns) for seq, own_ns, lost_ns in rows))
        charge(rows)

    house.engine._books._charge = note
    house.submit(shared(9, "a/alice", max_new_tokens=3))
    house.submit(job(10, PROMPT, max_new_tokens=6, share=(("b", 1.0),)))
    told: list[object] = []
    while house.engine.busy or house.inbox:
        told += [
            sorted(map(timeless, report.updates), key=lambda each: each.request)
            for report in house.step().values()
        ]
    return told, charged, house


def timeless(update: Update) -> Update:
    if not isinstance(update, Ended):
        return update
    return msgspec.structs.replace(update, device_ns=0, queued_ns=0, prefill_ns=0, decode_ns=0)


@pytest.mark.parametrize("step_tokens", (5, 12, 64))
def test_a_hit_that_may_not_be_told_saves_computing_and_shows_nowhere(step_tokens: int) -> None:
    """The same in every step for both, and the same bill: only time is saved."""
    told, bill, house = on_a_machine("a/all", step_tokens_max=step_tokens)
    cold_told, cold_bill, cold_house = on_a_machine("a/else", step_tokens_max=step_tokens)
    assert told == cold_told
    assert bill == cold_bill
    computed, cold_computed = (
        sum(count for rows in each.runner.batches for _, count in rows)
        for each in (house, cold_house)
    )
    assert computed == cold_computed - 12
    assert (house.ended(9).cached, house.ended(9).prefilled) == (0, 18)
    house.assert_empty()


def test_own_blocks_behind_one_that_is_not_told_are_not_told_either() -> None:
    house = house_of()
    first = shared(1, "a/alice")
    ask(house, first)
    assert ask(house, msgspec.structs.replace(first, request=2)) == 0
    assert house.runner.batches[-1] == [(16, 2)]
    assert disclosed_tokens([Hit(Source.OPPORTUNISTIC, 12), Hit(Source.OWN, 4)]) == 0


def test_an_abort_or_a_revocation_in_the_midst_of_hidden_blocks_loses_none() -> None:
    for ends in ("abort", "revoke"):
        house = house_of(step_tokens_max=5)
        ask(house, shared(1, "a/bob"))
        house.submit(shared(2, "a/alice"))
        house.step()
        if ends == "abort":
            house.abort(2)
        else:
            house.order(revoke("a/all"))
        house.run()
        assert house.ended(2).cause in {Cause.ABORTED, Cause.REVOKED}
        house.assert_empty()


# The wire


def test_no_representation_shows_a_key() -> None:
    asked = labelled(1, PROMPT)
    assert asked.caching is not None
    shown = (
        repr(asked) + repr(asked.caching.scopes[0]) + repr(revoke("doc")) + repr(purge(None, "doc"))
    )
    for name in ("a/user", "doc"):
        assert repr(tag(name)) not in shown
    assert repr(asked.caching.scopes[0].key) not in shown
    assert "key" not in repr(asked.caching)


def _with(asked: Submit, **fields: object) -> Submit:
    assert asked.caching is not None
    return msgspec.structs.replace(asked, caching=msgspec.structs.replace(asked.caching, **fields))


@pytest.mark.parametrize(
    "asked",
    (
        _with(labelled(1, PROMPT), owner="b"),
        _with(labelled(1, PROMPT), context=b"short"),
        _with(labelled(1, PROMPT), scopes=()),
        _with(labelled(1, PROMPT), idle_ms=0),
        _with(labelled(1, PROMPT), absolute_ms=2**63),
        labelled(1, PROMPT, scope("x", 17)),
        labelled(1, PROMPT, scope("x", 12), scope("y", 8), scope("z", 18)),
        labelled(1, PROMPT, scope("x", 8), scope("x", 18)),
        labelled(1, PROMPT, scope("x", -1), scope("y", 18)),
        labelled(1, PROMPT, scope("x", 8), scope("y", 18, pinned=True)),
        labelled(1, PROMPT, scope("x", 18, pinned=True, disclosed=False)),
        labelled(1, PROMPT, *(scope(str(n), 18) for n in range(65))),
        labelled(1, PROMPT, Scope(until=18, label=b"x", key=bytes(32))),
        labelled(1, PROMPT, Scope(until=18, label=bytes(32), key=bytes(31))),
        labelled(1, PROMPT, Scope(until=18, label=bytes(32), key=bytes(32), covers=(b"c",))),
        labelled(1, PROMPT, warm=True),
        job(1, PROMPT, warm=True),
    ),
)
def test_what_cannot_be_is_refused(asked: Submit) -> None:
    house = house_of()
    house.submit(asked)
    house.step()
    last = house.ended(1)
    assert (last.cause, last.detail) == (Cause.REFUSED, fault(asked))
    house.assert_empty()


def test_a_caching_that_is_right_is_no_fault() -> None:
    assert fault(of_doc(1)) is fault(warm(1)) is fault(job(1)) is None
    assert fault(labelled(1, PROMPT, scope("x", 0), scope("y", 18))) is None
    assert isinstance(labelled(1, PROMPT).caching, Caching)
    assert COMPUTES.asked_digest != CONTEXT
    assert FakeRunner().block_tokens == SIZE
