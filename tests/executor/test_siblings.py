"""Choices of one prompt: computed once, never freed under a reader, nobody waits for ever."""

from __future__ import annotations

from typing import Any

import pytest

from executor.contract import Cause, Emitted, Sampling, Submit, Waiting
from executor.settings import Policy, Settings
from tests.executor.fakes import FakeRunner, Harness, job
from tests.executor.grammar.fakes import END, FakeGrammars, constrained, house_with

PROMPT = tuple(range(1, 19))  # 18 tokens: 4 full blocks of 4 before the last token


def house_of(kv_blocks: int = 40, **limits: Any) -> Harness:
    runner = FakeRunner(kv_blocks=kv_blocks, block_tokens=4)
    return Harness(runner, settings=Settings(check_invariants=True, **limits))


def choice(request: int, sibling: int | None = None, **fields: Any) -> Submit:
    fields.setdefault("sampling", Sampling(temperature=1.0, seed=request))
    return job(request, fields.pop("prompt", PROMPT), sibling=sibling, **fields)


def alone(each: Submit) -> list[int]:
    house = house_of()
    house.submit(each)
    house.run()
    return house.tokens(each.request)


def computed(house: Harness) -> int:
    return sum(count for batch in house.runner.batches for _, count in batch)


def test_the_prompt_is_computed_once_and_each_says_what_it_says_alone() -> None:
    house = house_of()
    choices = [choice(1), choice(2, 1), choice(3, 1), choice(4, 2)]  # a sibling of a sibling too
    for each in choices:
        house.submit(each)
    house.step()
    assert house.engine.gauges.blocks_free == 40 - 5
    assert house.engine.gauges.waiting == 3
    house.step()
    assert house.engine.gauges.running == 4
    assert house.engine.gauges.blocks_free == 40 - 5 - 3, "one block each beyond the prompt's"
    house.run()
    for each in choices:
        assert house.tokens(each.request) == alone(each)
    assert [house.ended(n).prefilled for n in (1, 2, 3, 4)] == [18, 2, 2, 2]
    assert house.engine.gauges.prompt_tokens == 24
    assert computed(house) == 24 + 4 * 7
    house.assert_empty()


@pytest.mark.parametrize(
    "other",
    (
        choice(2, 1, prompt=(30, *PROMPT[1:]), share=(("a", 1.0),)),
        choice(2, 1, share=(("b", 1.0),)),
        choice(2, 9, share=(("a", 1.0),)),
        choice(2, 2, share=(("a", 1.0),)),
    ),
    ids=("other words", "other tenant", "nobody", "itself"),
)
def test_what_is_no_sibling_computes_its_own(other: Submit) -> None:
    house = house_of()
    house.submit(choice(1, share=(("a", 1.0),)))
    house.submit(other)
    house.step()
    assert house.engine.gauges.running == 2
    house.run()
    assert house.ended(2).prefilled == 18
    assert house.tokens(2) == alone(other)


def test_nothing_is_shared_between_connections() -> None:
    house = house_of()
    house.submit(choice(1), owner=1)
    house.submit(choice(2, 1), owner=2)
    house.run()
    assert house.ended(2, owner=2).prefilled == 18


def test_a_prompt_within_one_block_is_not_waited_for() -> None:
    house = house_of()
    house.submit(choice(1, prompt=(1, 2, 3, 4)))
    house.submit(choice(2, 1, prompt=(1, 2, 3, 4)))
    house.step()
    assert house.engine.gauges.running == 2


def test_followers_read_on_when_their_leader_has_gone() -> None:
    house = house_of()
    house.submit(choice(1))
    for n in (2, 3):
        house.submit(choice(n, 1))
    house.step()
    house.step()
    house.abort(1)
    house.step()
    assert house.ended(1).cause is Cause.ABORTED
    house.run()
    for n in (2, 3):
        assert house.tokens(n) == alone(choice(n))
    house.assert_empty()


def test_a_leader_that_ends_with_its_first_token_leaves_one_heir() -> None:
    """The first of those who waited computes the prompt again, the others read it from there."""
    house = house_of()
    house.submit(choice(1, max_new_tokens=1))
    for n in (2, 3, 4):
        house.submit(choice(n, 1))
    house.run()
    assert [house.ended(n).prefilled for n in (1, 2, 3, 4)] == [18, 18, 2, 2]
    for n in (2, 3, 4):
        assert house.tokens(n) == alone(choice(n))
    house.assert_empty()


def test_a_leader_aborted_in_its_prompt_leaves_it_to_the_next() -> None:
    house = house_of(step_tokens_max=5)
    for n, sibling in ((1, None), (2, 1), (3, 1)):
        house.submit(choice(n, sibling))
    house.step()
    house.abort(1)
    house.run()
    assert [house.ended(n).prefilled for n in (1, 2, 3)] == [5, 18, 2]
    house.assert_empty()


def test_a_follower_hears_how_far_its_prompt_is() -> None:
    house = house_of()
    house.submit(choice(1))
    house.submit(choice(2, 1))
    house.run()
    first = next(u for u in house.heard[0, 2] if not isinstance(u, Waiting))
    assert (first.done_tokens, first.total_tokens) == (18, 18)  # type: ignore[union-attr]
    assert isinstance(house.heard[0, 2][-2], Emitted)


def test_preempted_leaders_and_followers_never_free_what_others_read() -> None:
    seen = 0
    for kv_blocks in range(9, 16):
        house = house_of(kv_blocks, policy=Policy.FCFS)
        choices = [choice(1), choice(2, 1), choice(3, 1), choice(4, 1)]
        for each in choices:
            house.submit(each)
        house.run()
        for each in choices:
            assert house.tokens(each.request) == alone(each)
        seen += house.engine.gauges.preemptions
        assert house.ended(1).prefilled == 18
        assert {house.ended(n).prefilled for n in (2, 3, 4)} <= {2, 18}
        house.assert_empty()
    assert seen > 3


def test_followers_of_a_leader_put_out_in_its_prompt_wait_on() -> None:
    house = house_of(9, step_tokens_max=5)
    house.submit(choice(9, prompt=(1, 2, 3), max_new_tokens=25))
    for _ in range(12):
        house.step()
    for n, sibling in ((1, None), (2, 1)):
        house.submit(choice(n, sibling))
    house.run()
    for n in (1, 2):
        assert house.tokens(n) == alone(choice(n))
    house.assert_empty()


def test_a_deadline_in_the_queue_is_met_when_the_leader_begins() -> None:
    house = house_of(step_tokens_max=4)
    house.submit(choice(1, queue_ms_max=3))
    house.submit(choice(2, 1, queue_ms_max=3))
    house.run()
    assert house.ended(2).cause is Cause.LENGTH
    house.assert_empty()


def test_a_deadline_reaches_those_whose_leader_does_not_begin() -> None:
    house = house_of(seqs_max=1)
    house.submit(choice(9, prompt=(1, 2, 3), max_new_tokens=30))
    house.step()
    house.submit(choice(1))
    house.submit(choice(2, 1, queue_ms_max=3))
    house.run()
    late = house.ended(2)
    assert (late.cause, late.prefilled) == (Cause.QUEUE_DEADLINE, 0)
    assert house.ended(1).cause is Cause.LENGTH
    house.assert_empty()


def test_choices_with_grammars_wait_for_both() -> None:
    grammars = FakeGrammars()
    house = house_with(grammars, FakeRunner(kv_blocks=40, block_tokens=4))
    grammars.late = lambda key, _place: key == (0, 1)
    for n, sibling in ((1, None), (2, 1)):
        house.submit(constrained(n, [5], [6, 7], prompt=PROMPT, sibling=sibling))
    house.step()
    assert house.engine.gauges.waiting == 2
    grammars.late = lambda _key, _place: False
    house.step()  # as word of a grammar wakes the engine
    house.run()
    assert house.tokens(1) == house.tokens(2)
    assert house.tokens(1)[-1] == END
    assert [house.ended(n).prefilled for n in (1, 2)] == [18, 2]
    house.assert_empty()
