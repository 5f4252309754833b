"""Kept prefixes, seen from outside: what a second request finds, and what it must not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from executor.contract import (
    Prefilling,
    Quota,
    Submit,
)
from executor.settings import Policy
from policies.scope.chain import Chain, ScopeKey
from tests.executor.fakes import COMPUTES, FREE, Harness
from tests.executor.labelled import (
    PROMPT,
    SIZE,
    ask,
    cached,
    house_of,
    labelled,
    scope,
    tag,
)
from tests.executor.test_engine import greedy

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


def test_another_owner_finds_nothing_of_the_same_label() -> None:
    """Keys and labels are a tenant's, so this cannot be; were it so, still nothing would be shared."""
    house = house_of()
    ask(house, labelled(1, PROMPT))
    assert ask(house, labelled(2, PROMPT, scope("a/user", 18), owner="b")) == 0


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
