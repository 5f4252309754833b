"""`enc` gives no two values the same bytes, and none the beginning of another's."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from policies.scope.encoding import Tokens, enc, pack

ATOMS: tuple[Any, ...] = (
    *(None, False, True, 0, 1, -1, 127, 128, -128, -129, 255, 256, 2**31, 2**64),
    *(b"", b"\x00", b"a", b"ab", b"i\x00\x00\x00\x01\x01", "", "\x00", "a", "ab", "0", "None"),
    *(Tokens.of(()), Tokens.of((0,)), Tokens.of((0, 0)), Tokens(b"a")),
)


def typed(value: Any) -> Any:
    """Equal only for equal values of equal types: Python takes 1 for True."""
    if isinstance(value, tuple):
        return ("tuple", *(typed(each) for each in value))
    if isinstance(value, frozenset):
        return ("set", frozenset(typed(each) for each in value))
    return (type(value).__name__, value)


def universe() -> list[Any]:
    """All tuples and sets of up to two atoms, and those of a part of these again."""
    flat = [*ATOMS]
    for two in itertools.product(ATOMS[::2], repeat=2):
        flat += [two, frozenset(two)]
    flat += [(), frozenset(), *((each,) for each in ATOMS), *(frozenset({e}) for e in ATOMS)]
    some = random.Random(5).sample(flat, 40)
    nested = list(itertools.product(some, repeat=2))
    return [*flat, *nested, *((pair,) for pair in nested[::7]), *map(frozenset, nested[::5])]


def test_no_two_values_have_one_encoding_and_none_begins_another() -> None:
    known: dict[bytes, Any] = {}
    for value in universe():
        found = known.setdefault(enc(value), typed(value))
        assert found == typed(value)
    assert len(known) > 1500
    for shorter, longer in itertools.pairwise(sorted(known)):
        assert not longer.startswith(shorter)


@pytest.mark.parametrize(
    ("one", "other"),
    (
        (("ab", "c"), ("a", "bc")),
        (("ab", "c"), ("abc",)),
        (("a,b",), ("a", "b")),
        ((("a",), "b"), ("a", ("b",))),
        (("a", ()), ("a",)),
        (("a", None), ("a", "")),
        (None, b""),
        (b"a", "a"),
        (1, True),
        (frozenset({"a"}), ("a",)),
        (Tokens.of((97,)), b"\x00\x00\x00a"),
        ("é", "e\u0301"),
    ),
)
def test_neighbours_differ(one: Any, other: Any) -> None:
    assert enc(one) != enc(other)


def test_a_set_has_one_encoding_whatever_its_order() -> None:
    names = [f"name{i}" for i in range(40)]
    shuffled = random.Random(1).sample(names, len(names))
    assert enc(frozenset(names)) == enc(frozenset(shuffled))


@pytest.mark.parametrize("value", (1.0, [1], {1}, {}, bytearray(b""), object(), ("a", [1])))
def test_other_types_have_none(value: Any) -> None:
    with pytest.raises(TypeError, match="enc knows no"):
        enc(value)


@pytest.mark.parametrize("ids", ((-1,), (2**32,), ("1",), (1.0,)))
def test_what_is_no_token_id_is_refused(ids: Any) -> None:
    with pytest.raises(ValueError, match="token id"):
        pack(ids)


def test_half_a_character_is_refused() -> None:
    with pytest.raises(UnicodeEncodeError):
        enc("\ud800")
