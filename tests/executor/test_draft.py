from __future__ import annotations

from random import Random

from executor.draft import _STEP, GRAM, Lookup


def test_what_followed_the_last_time_is_guessed() -> None:
    lookup = Lookup()
    tokens = [1, 2, 3, 4, 5, 6, 7, 9, 1, 2, 3]
    assert lookup.guesses(tokens, 4) == [4, 5, 6, 7]
    assert lookup.guesses([*tokens, 8, 1, 2, 3], 2) == [8, 1]  # the later of the two places


def test_nothing_is_guessed_where_nothing_repeats() -> None:
    lookup = Lookup()
    assert lookup.guesses([1, 2], 4) == []
    assert lookup.guesses([1, 2, 3], 4) == []
    assert lookup.guesses(list(range(100)), 4) == []


def test_a_short_cycle_goes_on_past_the_end() -> None:
    assert Lookup().guesses([7, 7, 7, 7], 5) == [7] * 5
    assert Lookup().guesses([9, 1, 2, 1, 2, 1], 5) == [2, 1, 2, 1, 2]


def test_a_long_prompt_is_caught_up_with_over_steps() -> None:
    lookup = Lookup()
    end = 2 * _STEP
    tokens = [*range(end), end - 9, end - 8, end - 7]
    assert lookup.guesses(tokens) == []
    assert lookup.guesses(tokens, 2) == [end - 6, end - 5]


def test_a_guess_always_followed_such_an_end_before() -> None:
    """Whatever collides in the table: token by token against a search of the whole."""
    rng = Random(4)
    lookup, tokens, found = Lookup(), [rng.randrange(40) for _ in range(3)], 0
    for _ in range(6000):
        tokens.append(rng.randrange(40) if rng.random() < 0.8 else tokens[len(tokens) // 2])
        (guess,) = lookup.guesses(tokens, 1) or (None,)
        if guess is not None:
            found += 1
            gram = [*tokens[-GRAM:], guess]
            assert any(tokens[i : i + GRAM + 1] == gram for i in range(len(tokens) - GRAM))
    assert found > 100
