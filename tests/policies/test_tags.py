"""Whose word on a tag counts, and what a tag is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policies.facts import Credential, CredentialKind, Principal
from policies.tags import (
    NAME_CHARS_MAX,
    VALUE_CHARS_MAX,
    Origin,
    Tag,
    fault,
    merged,
    of_request,
    parse,
    spelt,
)

KEY = Principal(
    *("acme", None, "svc", "lockgate:keys", Credential(CredentialKind.KEY, "k1")),
    tags=(("team", "search"), ("env", "prod")),
)
LONG = ("n" * NAME_CHARS_MAX, "v" * VALUE_CHARS_MAX)
TOKEN = replace(KEY, credential=Credential(CredentialKind.TOKEN, "jti"))


@pytest.mark.parametrize(("who", "own"), ((KEY, Origin.KEY), (TOKEN, Origin.CLAIM)))
def test_a_client_has_no_word_over_its_credential(who: Principal, own: Origin) -> None:
    assert of_request(who, {"team": "ads", "trace": "7"}) == (
        Tag("env", "prod", own),
        Tag("team", "search", own),
        Tag("trace", "7", Origin.CLIENT),
    )
    assert of_request(who, {}) == (Tag("env", "prod", own), Tag("team", "search", own))
    assert of_request(replace(who, tags=()), {}) == ()


def test_one_value_a_name_a_keys_over_a_claims_over_the_clients() -> None:
    said = [Tag("team", origin.value, origin) for origin in Origin]
    for first in range(3):
        turned = (*said[first:], *said[:first])
        assert merged(turned) == (said[0],)
    assert merged(said[1:]) == (said[1],)
    assert merged(reversed(said[1:])) == (said[1],)


def test_only_what_a_credential_says_binds() -> None:
    assert [Tag("a", "b", origin).binding for origin in Origin] == [True, True, False]


@pytest.mark.parametrize(
    ("text", "name", "value"),
    (
        ("team=search", "team", "search"),
        ("cost center=4711/b", "cost center", "4711/b"),
        ("a==b", "a", "=b"),
        ("größe=ß", "größe", "ß"),
        (f"{LONG[0]}={LONG[1]}", *LONG),
    ),
)
def test_a_tag_is_read_as_it_is_spelt(text: str, name: str, value: str) -> None:
    assert parse(text) == (name, value)
    assert spelt(name, value) == text


@pytest.mark.parametrize(
    "text",
    (
        *("", "team", "=search", "team=", " team=search", "team =search", "team= search"),
        *("team=search ", "a,b=c", "team=a\nb", "te\0am=a", "team=a\u2028b", "team=\ud800"),
        f"{'n' * (NAME_CHARS_MAX + 1)}=v",
        f"n={'v' * (VALUE_CHARS_MAX + 1)}",
    ),
)
def test_what_is_no_tag_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(ValueError, match="a tag"):
        parse(text)


def test_a_name_that_would_be_read_otherwise_is_none() -> None:
    assert fault("a=b", "c") is not None
    assert fault("a", "b=c,d") is None
