"""API keys: minted, recognised, digested."""

from __future__ import annotations

import base64
import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from security import api_keys
from security.failures import AuthDenied, Denied
from tests.security.helpers import byte_source

PEPPER = b"p" * 32
KEY = api_keys.mint(byte_source(1), PEPPER)


def test_a_minted_key_parses_and_digests_to_what_was_stored() -> None:
    parsed = api_keys.parse(KEY.secret)
    assert parsed.id == KEY.id
    assert api_keys.digest(parsed.secret, PEPPER) == KEY.digest
    assert len(KEY.digest) == 32
    assert KEY.secret.startswith(f"lg_{KEY.id}_")


def test_keys_differ_and_carry_256_random_bits() -> None:
    source = byte_source(2)
    keys = [api_keys.mint(source, PEPPER) for _ in range(50)]
    assert len({key.id for key in keys}) == len({key.digest for key in keys}) == 50
    tail = KEY.secret.split("_", 2)[2]
    assert len(base64.urlsafe_b64decode(tail)) == 32 + 4


def test_the_digest_is_keyed() -> None:
    assert api_keys.digest(KEY.secret, b"q" * 32) != KEY.digest
    assert hashlib.sha256(KEY.secret.encode()).digest() != KEY.digest
    with pytest.raises(AssertionError):
        api_keys.digest(KEY.secret, b"short")


def test_any_changed_character_is_refused_before_a_store_is_asked() -> None:
    for at, char in enumerate(KEY.secret):
        for other in {"a", "B", "7", "_", "-", ".", "é", " "} - {char}:
            with pytest.raises(AuthDenied) as caught:
                api_keys.parse(KEY.secret[:at] + other + KEY.secret[at + 1 :])
            assert caught.value.reason is Denied.KEY_MALFORMED


@pytest.mark.parametrize("change", (KEY.secret[:-1], KEY.secret + "A", KEY.secret + "\n", KEY.secret.upper(), "lg_", "lg__", "", KEY.id, f"lg_{KEY.id}_", "sk-" + KEY.secret))  # fmt: skip
def test_other_forms_are_refused(change: str) -> None:
    with pytest.raises(AuthDenied):
        api_keys.parse(change)


def test_nothing_shows_a_secret() -> None:
    assert KEY.secret not in repr(KEY)
    assert repr(KEY.digest) not in repr(KEY)
    assert KEY.secret not in repr(api_keys.parse(KEY.secret))


def test_comparison() -> None:
    assert api_keys.same(KEY.digest, bytes(KEY.digest))
    assert not api_keys.same(KEY.digest, KEY.digest[:16])


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.text())
def test_fuzz_parse_raises_nothing_else(raw: str) -> None:
    for text in (raw, "lg_" + raw):
        with pytest.raises(AuthDenied):
            api_keys.parse(text)
