"""The context and the chain: known answers, in pieces as at once, and nothing taken that is not whole."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest

from policies.scope.chain import Chain, ScopeKey, begin, full_blocks, of_prompt
from policies.scope.context import Asked, Context
from policies.scope.encoding import enc
from policies.scope.labels import Document, Label, Template
from tests.policies.scope import independent

KNOWN = json.loads(independent.VECTORS.read_text())


def plain(known: dict[str, Any]) -> dict[str, Any]:
    return {
        name: bytes.fromhex(value)
        if name.endswith("_digest") and value
        else frozenset(value)
        if name == "flags"
        else value
        for name, value in known.items()
    }


def label(known: dict[str, Any]) -> Label:
    blobs = {
        name: None if known[name] is None else bytes.fromhex(known[name])
        for name in ("narrowing", "session")
    }
    return Label(
        **known
        | blobs
        | {
            "templates": frozenset(Template(*each) for each in known["templates"]),
            "documents": frozenset(Document(*each) for each in known["documents"]),
        }
    )


def scope(name: str) -> ScopeKey:
    known = KNOWN["labels"][name]
    return ScopeKey(bytes.fromhex(known["tag"]), bytes.fromhex(known["key"]))


def test_the_vectors_are_what_the_other_hand_computes() -> None:
    assert independent.vectors() == KNOWN


@pytest.mark.parametrize("name", KNOWN["labels"])
def test_known_labels(name: str) -> None:
    known = KNOWN["labels"][name]
    assert label(known["label"]).encoded().hex() == known["encoded"]


def test_known_context() -> None:
    assert ASKED.digest().hex() == KNOWN["context"]["asked_digest"]
    assert BASE.digest().hex() == KNOWN["C0"]


def test_known_chain() -> None:
    known = KNOWN["chain"]
    digest = bytes.fromhex(KNOWN["C0"])
    chain = begin(scope(known["labels"][0]), digest, 4)
    values: list[bytes] = []
    for name, ids in zip(known["labels"], known["ids"], strict=True):
        chain, found = chain.extend(scope(name), ids)
        values += found
    assert [value.hex() for value in values] == known["values"]
    assert chain == Chain(4, 16, values[-1])


def test_in_pieces_as_at_once() -> None:
    one, ids = scope("user"), list(range(64))
    start = begin(one, bytes(32), 4)
    whole, values = start.extend(one, ids)
    pieces: list[bytes] = []
    chain = start
    for at, more in ((0, 4), (4, 0), (4, 20), (24, 40)):
        chain, found = chain.extend(one, ids[at : at + more])
        pieces += found
    assert tuple(pieces) == values
    assert chain == whole
    assert len(set(values)) == 16
    assert {len(value) for value in values} == {32}


def test_a_prompt_in_scopes_that_end_within_blocks() -> None:
    low, high, ids = scope("public"), scope("user"), list(range(11))
    chain, found = of_prompt(ids, [(3, low), (6, low), (11, high)], bytes(32), 4)
    assert [each for each, _ in found] == [low, high]
    start, (first,) = begin(low, bytes(32), 4).extend(low, ids[:4])
    onward, (second,) = start.extend(high, ids[4:8])
    assert ([value for _, value in found], chain) == ([first, second], onward)
    again, more = chain.extend(high, [*ids[8:], 11])
    whole, all_of_it = of_prompt([*ids, 11], [(6, low), (12, high)], bytes(32), 4)
    assert (again, more[0]) == (whole, all_of_it[2][1])


def test_a_prompt_of_less_than_a_block_begins_under_its_last_scope() -> None:
    low, high = scope("public"), scope("user")
    chain, found = of_prompt([1, 2], [(1, low), (2, high)], bytes(32), 4)
    assert (chain, found) == (begin(high, bytes(32), 4), ())
    onward, (value,) = chain.extend(high, [1, 2, 3, 4])
    assert of_prompt([1, 2, 3, 4], [(1, low), (4, high)], bytes(32), 4) == (
        onward,
        ((high, value),),
    )


def test_scopes_follow_one_another_to_the_end() -> None:
    one = scope("user")
    assert full_blocks((3, 3, 9, 16), 4) == (0, 0, 2, 2)
    assert full_blocks((), 4) == ()
    for scopes in ([], [(4, one)], [(8, one), (4, one), (5, one)]):
        with pytest.raises(AssertionError):
            of_prompt([1, 2, 3, 4, 5], scopes, bytes(32), 4)


def test_keys_and_values_are_not_shown() -> None:
    one = ScopeKey(b"t" * 32, b"k" * 32)
    assert "kkk" not in repr(one)
    assert "head" not in repr(begin(one, bytes(32), 4))


def test_only_whole_blocks() -> None:
    one = scope("user")
    with pytest.raises(AssertionError, match="full blocks"):
        begin(one, bytes(32), 4).extend(one, [1, 2, 3])


@pytest.mark.parametrize(
    "make",
    (
        lambda: ScopeKey(b"", bytes(32)),
        lambda: ScopeKey(bytes(32), bytes(16)),
        lambda: begin(scope("user"), b"", 4),
        lambda: begin(scope("user"), bytes(32), 0),
    ),
)
def test_nothing_half_made(make: Any) -> None:
    with pytest.raises(AssertionError):
        make()


ASKED, BASE = Asked(**plain(KNOWN["asked"])), Context(**plain(KNOWN["context"]))
OTHER_ASKED: dict[str, Any] = {
    "tokenizer_digest": b"t" * 32,
    "template_digest": None,
    "tools_digest": b"o" * 32,
    "locale": "",
    "region": "eu-west",
    "safety_policy": "strict",
    "safety_policy_version": 3,
    "flags": frozenset({"a"}),
}
OTHER: dict[str, Any] = {
    "asked_digest": b"q" * 32,
    "weights_digest": b"w" * 32,
    "adapter_digest": b"a" * 32,
    "dtype": "float32",
    "numerics": "fast",
    "kernel_config": "cuda",
    "block_tokens": 8,
}


@pytest.mark.parametrize(("base", "other"), ((ASKED, OTHER_ASKED), (BASE, OTHER)))
def test_every_field_of_a_context_counts(base: Any, other: dict[str, Any]) -> None:
    assert set(other) == {each.name for each in fields(base)}
    digests = {replace(base, **{name: value}).digest() for name, value in other.items()}
    assert len(digests | {base.digest()}) == len(other) + 1


@pytest.mark.parametrize("base", (ASKED, BASE))
def test_no_field_may_be_left_out(base: Any) -> None:
    whole = {each.name: getattr(base, each.name) for each in fields(base)}
    for name in whole:
        with pytest.raises(TypeError, match=name):
            type(base)(**{other: value for other, value in whole.items() if other != name})


@pytest.mark.parametrize(
    ("base", "wrong"),
    (
        (BASE, {"weights_digest": b"sha"}),
        (BASE, {"asked_digest": b""}),
        (BASE, {"block_tokens": 0}),
        (ASKED, {"tools_digest": b""}),
        (ASKED, {"safety_policy": None}),
    ),
)
def test_a_context_of_nonsense_is_refused(base: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        replace(base, **wrong)


def test_a_block_is_encoded_as_the_typed_encoding_says() -> None:
    """The loop joins bytes by hand; here they are what `enc` gives for the whole."""
    import hmac

    from policies.scope.encoding import Tokens

    one = scope("user")
    start = replace(begin(one, bytes(32), 4), position=2**40)
    _, (value,) = start.extend(one, [1, 2, 3, 4])
    body = enc((one.tag, 2**40, Tokens.of([1, 2, 3, 4])))
    assert value == hmac.digest(one.key, b"\x01" + start.head + body, "sha256")
