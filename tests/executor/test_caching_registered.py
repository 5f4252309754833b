"""Registered text: pinned as a whole or not at all, moved by no request (P4)."""

from __future__ import annotations

import msgspec
import pytest

from executor.contract import (
    Cause,
    Ended,
    Prefilling,
    Quota,
    Quotas,
    Submit,
)
from tests.executor.labelled import (
    DOC,
    HOUR_MS,
    PROMPT,
    WORDS,
    ask,
    cached,
    house_of,
    labelled,
    of_doc,
    revoke,
    scope,
    unlike,
    warm,
)
from tests.executor.test_engine import greedy

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


# How long, and in whose place


@pytest.mark.parametrize("days", (8, 400, 40_000))
def test_without_an_end_it_is_there_until_it_is_taken_away(days: int) -> None:
    house = house_of()
    house.submit(warm(1, absolute_ms=None))
    house.run()
    house.clock.now_ns += days * 24 * HOUR_MS * 1_000_000
    assert ask(house, of_doc(2)) == 12
    house.order(revoke("doc@1"))
    house.step()
    assert house.engine.gauges.pinned_blocks == 0
    house.assert_empty()


def test_what_is_pinned_already_is_not_computed_again() -> None:
    house = house_of()
    house.submit(warm(1))
    house.run()
    batches = len(house.runner.batches)
    house.submit(warm(2))
    house.run()
    last = house.ended(2)
    assert (last.cause, last.prefilled, last.device_ns) == (Cause.STOP, 0, 0)
    assert len(house.runner.batches) == batches
    assert house.engine.gauges.pinned_blocks == 3
    house.assert_empty()


def test_registered_again_it_has_the_end_that_was_said_last() -> None:
    house = house_of()
    house.submit(warm(1, absolute_ms=None))
    house.run()
    house.submit(warm(2, absolute_ms=1000))
    house.run()
    house.clock.now_ns += 1_000_000_000
    house.step()
    assert house.engine.gauges.pinned_blocks == 0
    house.assert_empty()


def test_what_cannot_be_kept_is_not_computed() -> None:
    house = house_of(Quota(owner="a", part=4 / 32, pinned=0.5))  # two pinned, and it has three
    house.submit(warm(1))
    house.submit(warm(2, owner="c"))  # who is not named keeps nothing
    house.run()
    for n in (1, 2):
        last = house.ended(n)
        assert (last.cause, last.prefilled, last.device_ns) == (Cause.QUOTA, 0, 0)
    assert not house.runner.batches
    house.assert_empty()


def test_room_is_asked_for_after_what_was_ordered_before() -> None:
    """A larger quota, and a revocation that makes room, in the same step."""
    house = house_of(Quota(owner="a", part=2 / 32))
    house.step()
    house.order(Quotas(quotas=(Quota(owner="a", part=8 / 32),)))
    house.submit(warm(1))
    house.run()
    assert house.ended(1).cause is Cause.STOP
    house.order(revoke("doc@1"))
    house.submit(labelled(2, DOC, scope("doc2", 12, pinned=True), warm=True))
    house.run()
    assert house.ended(2).cause is Cause.STOP
    assert house.engine.gauges.pinned_blocks == 3


def left(request: int, **fields: object) -> Submit:
    """A question where its tenant lets requests keep registered text: the document is as they left it."""
    prompt = DOC + WORDS
    doc = scope("doc", len(DOC), disclosed=False, covers="doc@1")
    mine = scope("a/user", len(prompt), covers="doc@1")
    return labelled(request, prompt, doc, mine, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_read", (False, True))
def test_what_requests_left_in_its_place_makes_room_for_a_registration(is_read: bool) -> None:
    house = house_of()
    ask(house, left(1))
    if is_read:
        house.submit(left(2, max_new_tokens=30))
        house.step()
    house.submit(warm(3))
    while not any(isinstance(each, Ended) for each in house.heard.get((0, 3), ())):
        house.step()
    assert house.ended(3).cause is Cause.STOP
    assert house.engine.gauges.pinned_blocks == 3
    for n, how in ((4, of_doc), (5, left)):  # by registration, and by requests that may share
        asked = how(n, max_new_tokens=2)
        house.submit(asked)
        house.run()
        assert house.tokens(n) == greedy(DOC + WORDS, 2)
    assert (house.ended(4).cached, house.ended(4).pinned) == (12, 12)
    assert cached(house, 5) == 0  # is not told
    assert not is_read or house.tokens(2) == greedy(DOC + WORDS, 30)
    assert house.engine.gauges.cache_mismatches == 0
    house.assert_empty()


def test_what_requests_left_serves_nobody_where_registration_alone_counts() -> None:
    house = house_of()
    ask(house, left(1))
    assert ask(house, of_doc(2)) == 0
    assert house.engine.gauges.cache_mismatches == 0
