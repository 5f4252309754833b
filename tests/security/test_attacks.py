"""Credentials that turn up where a name belongs."""

from __future__ import annotations

import os

import pytest

from security import api_keys
from security.api_keys import names_credential


def test_a_key_is_seen_wherever_it_is_pasted() -> None:
    for _ in range(50):
        made = api_keys.mint(os.urandom, bytes(32))
        for text in (made.secret, f"revoke {made.secret} please", f"Bearer {made.secret}"):
            assert names_credential(text)
        assert not names_credential(made.id)


@pytest.mark.parametrize(
    ("text", "found"),
    (
        ("eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhIn0.AAAA", True),
        ("the token eyJhbGciOiJFUzI1NiJ9.eyJ", True),
        ("eyJ" * 4000, False),  # no dot: nothing that could be used
        ("0f8fad5b-d9cb-469f-a165-70867728950e", False),
        ("dev_0123456789abcdef01234567", False),
        ("lg_team", False),
        ("f" * 64, False),
        ("", False),
    ),
)
def test_names_are_not_taken_for_credentials(text: str, *, found: bool) -> None:
    assert names_credential(text) is found
