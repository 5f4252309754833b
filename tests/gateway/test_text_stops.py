from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.stops import StopStrings
from tests.gateway.text_cards import STEADY


def naive(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Read character by character; at the first that completes a stop, cut off the longest."""
    for end in range(len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


def run(parts: list[str], stops: list[str]) -> tuple[str, str | None]:
    watch = StopStrings(stops)
    shown = ""
    for part in parts:
        safe, hit = watch.push(part)
        shown += safe
        if hit:
            assert watch.push("more") == ("", True)
            assert watch.flush() == ""
            assert watch.found is not None
            return shown, stops[watch.found]
    assert watch.found is None
    return shown + watch.flush(), None


@STEADY
@given(
    parts=st.lists(st.text("abc", max_size=5), max_size=12),
    stops=st.lists(st.text("abc", min_size=1, max_size=4), max_size=4),
)
def test_equals_a_search_of_the_whole_text_under_any_split(
    parts: list[str], stops: list[str]
) -> None:
    assert run(parts, stops) == naive("".join(parts), stops)


@STEADY
@given(text=st.text("abc", max_size=30), stops=st.lists(st.text("abc", min_size=1, max_size=4)))
def test_holds_back_only_what_may_become_a_stop(text: str, stops: list[str]) -> None:
    watch = StopStrings(stops)
    shown = ""
    for end, char in enumerate(text, start=1):
        safe, hit = watch.push(char)
        shown += safe
        if hit:
            return
        held = text[len(shown) : end]
        assert held == "" or any(stop.startswith(held) for stop in stops)
        tails = [text[start:end] for start in range(len(shown))]
        assert not any(stop.startswith(tail) for stop in stops for tail in tails if tail)


def test_a_stop_across_deltas_leaks_no_prefix() -> None:
    watch = StopStrings(["</answer>"])
    assert watch.push("42</ans") == ("42", False)
    assert watch.push("wer") == ("", False)
    assert watch.push("> and more") == ("", True)


def test_a_false_alarm_is_given_out_whole() -> None:
    watch = StopStrings(["</answer>"])
    assert watch.push("1</ans") == ("1", False)
    assert watch.push("x") == ("</ansx", False)
    assert watch.flush() == ""


def test_no_stops_holds_nothing() -> None:
    assert StopStrings().push("anything") == ("anything", False)


@pytest.mark.parametrize(
    ("stops", "parts", "expected", "winner"),
    (
        (["b", "ab"], ["xab"], "x", "ab"),  # complete together: the longest
        (["abcd", "bc"], ["xabcd"], "xa", "bc"),  # complete first
        (["aab"], ["aa", "ab"], "a", "aab"),  # overlaps itself
    ),
)
def test_which_stop_wins(stops: list[str], parts: list[str], expected: str, winner: str) -> None:
    assert run(parts, stops) == (expected, winner)
