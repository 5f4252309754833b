"""Grammars in the engine, with a compiler that is as late as the test wants."""

from __future__ import annotations

from random import Random

import pytest

from executor.contract import Cause, Sampling
from executor.settings import Settings
from tests.executor.fakes import OPTIMIST, FakeRunner, job
from tests.executor.grammar.fakes import END, FakeGrammars, constrained, house_with

PLACES = ((3, 4), (5,), (6, 7, 8))
WARM = Sampling(temperature=1.5, seed=3)


def test_only_what_the_grammar_allows_is_said_and_then_it_ends() -> None:
    grammars = FakeGrammars()
    house = house_with(grammars)
    house.submit(constrained(1, *PLACES, sampling=WARM, share=(("t", 1.0), ("u", 1.0))))
    house.submit(constrained(2, *PLACES))
    house.run()
    for request in (1, 2):
        *said, last = house.tokens(request)
        assert len(said) == 3
        assert all(token in place for token, place in zip(said, PLACES, strict=True))
        assert last == END
        assert house.ended(request).cause is Cause.STOP
    assert grammars.users == [("t", "u"), ()]
    assert grammars.opened == {}
    house.assert_empty()


def test_while_it_compiles_nobody_waits_for_it_and_it_costs_nothing() -> None:
    grammars = FakeGrammars()
    compiling = True
    grammars.late = lambda _key, _place: compiling
    house = house_with(grammars)
    house.submit(constrained(1, *PLACES))
    house.submit(job(2))
    house.run()
    assert house.ended(2).generated == 8
    assert (0, 1) not in house.heard
    assert house.engine.gauges.waiting == 1
    assert not house.engine.busy  # whoever drives it sleeps until there is word
    compiling = False
    house.step()
    house.run()
    assert house.ended(1).cause is Cause.STOP
    house.assert_empty()


def test_a_bad_grammar_is_said_before_anything_is_prefilled() -> None:
    grammars = FakeGrammars()
    bad = constrained(1, (3,))
    assert bad.grammar is not None
    grammars.refused[bad.grammar.text] = (Cause.GRAMMAR, "no such keyword")
    house = house_with(grammars)
    house.submit(bad)
    house.run()
    last = house.ended(1)
    assert (last.cause, last.detail) == (Cause.GRAMMAR, "no such keyword")
    assert (last.prefilled, last.generated) == (0, 0)
    assert house.runner.batches == []
    assert grammars.opened == {}
    house.assert_empty()


def test_an_executor_without_grammars_says_so() -> None:
    house = house_with(None)
    house.submit(constrained(1, (3,)))
    house.run()
    assert house.ended(1).cause is Cause.GRAMMAR


@pytest.mark.parametrize("how", ("abort", "deadline"))
def test_what_ends_while_it_compiles_leaves_nothing(how: str) -> None:
    grammars = FakeGrammars()
    grammars.late = lambda _key, _place: True
    house = house_with(grammars)
    house.submit(constrained(1, *PLACES, queue_ms_max=40 if how == "deadline" else None))
    house.step()
    assert len(grammars.opened) == 1
    if how == "abort":
        house.abort(1)
    else:
        house.clock.now_ns += 50_000_000
    house.step()
    assert house.ended(1).cause is (Cause.ABORTED if how == "abort" else Cause.QUEUE_DEADLINE)
    assert grammars.opened == {}
    house.assert_empty()


def test_those_that_compile_count_as_waiting() -> None:
    grammars = FakeGrammars()
    grammars.late = lambda _key, _place: True
    house = house_with(grammars, settings=Settings(waiting_max=2, check_invariants=True))
    for request in (1, 2, 3):
        house.submit(constrained(request, *PLACES))
    house.step()
    assert house.ended(3).cause is Cause.BACKLOG


def test_a_late_mask_holds_up_its_own_row_only_and_nothing_is_computed_twice() -> None:
    grammars = FakeGrammars()
    house = house_with(grammars)
    house.submit(constrained(1, *PLACES))
    house.run()
    punctual = house.tokens(1)

    held = {(0, 1)}
    grammars.late = lambda key, place: key in held and place == 2
    house = house_with(grammars)
    house.submit(constrained(1, *PLACES))
    house.submit(job(2, max_new_tokens=20))
    house.run()
    assert house.ended(2).generated == 20
    assert house.tokens(1) == punctual[:2]
    assert not house.engine.busy
    held.clear()
    house.step()
    house.run()
    assert house.tokens(1) == punctual
    assert house.ended(1).cause is Cause.STOP
    house.assert_empty()  # and the runner asserts that no place was written twice


def test_one_that_dies_in_the_middle_ends_and_its_neighbour_goes_on() -> None:
    grammars = FakeGrammars()
    house = house_with(grammars)
    house.submit(constrained(1, (3,), (4,), (5,), (6,)))
    house.submit(job(2))
    house.step()
    house.step()
    grammars.kill((0, 1))
    house.run()
    last = house.ended(1)
    assert (last.cause, last.generated) == (Cause.GRAMMAR_BUDGET, 2)
    assert house.ended(2).generated == 8
    house.assert_empty()


def test_one_set_aside_in_the_whole_of_the_memory_needs_no_block_yet() -> None:
    grammars = FakeGrammars()
    grammars.late = lambda _key, place: place == 1 and late
    late = True
    house = house_with(grammars, FakeRunner(block_tokens=4, kv_blocks=1))
    house.submit(constrained(1, (3,), (4,), (5,), prompt=(1, 2, 3)))
    house.run()
    assert house.tokens(1) == [3]
    late = False
    house.step()
    house.run()
    assert house.tokens(1) == [3, 4]  # the fifth token does not fit
    assert house.ended(1).cause is Cause.LENGTH


def test_the_grammar_wins_over_min_tokens_where_it_allows_nothing_else() -> None:
    house = house_with(FakeGrammars())
    house.submit(constrained(1, (3, END), (4,), min_tokens=9))
    house.run()
    assert house.tokens(1) == [3, 4, END]  # at the first place there was something else


@pytest.mark.parametrize("seed", range(12))
def test_in_any_company_and_however_late_it_says_what_it_says_alone(seed: int) -> None:
    """Memory for two of six, so they are preempted, some of them while set aside."""
    rng = Random(seed)
    rows = [[rng.sample(range(11), rng.randint(1, 3)) for _ in range(8)] for _ in range(6)]
    jobs = [
        constrained(n, *places, sampling=WARM, prompt=[rng.randrange(12) for _ in range(5)])
        for n, places in enumerate(rows, 1)
    ]
    solo = []
    for one in jobs:
        house = house_with(FakeGrammars(), FakeRunner(vocab_size=12, kv_blocks=7))
        house.submit(one)
        house.run()
        solo.append(house.tokens(one.request))
    grammars = FakeGrammars()
    grammars.late = lambda _key, _place: rng.random() < 0.4
    house = house_with(grammars, FakeRunner(vocab_size=12, kv_blocks=7), OPTIMIST)
    for one in jobs:
        house.submit(one)
    for _ in range(400):
        house.step()
    assert [house.tokens(one.request) for one in jobs] == solo
    assert house.engine.gauges.preemptions > 0
    assert grammars.opened == {}
    house.assert_empty()
