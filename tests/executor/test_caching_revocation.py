"""What ends by order: revocations and purges, readers included (P6, P7)."""

from __future__ import annotations

import pytest

from executor.batch import Batch
from executor.contract import (
    Cause,
    Purged,
    Quota,
    Revoked,
)
from tests.executor.labelled import (
    DOC,
    PROMPT,
    WORDS,
    ask,
    house_of,
    labelled,
    of_doc,
    purge,
    revoke,
    scope,
    unlike,
    warm,
)
from tests.executor.test_engine import greedy

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
