"""The sweep itself: it sees a canary in whatever form, and nothing where there is none."""

from __future__ import annotations

import json
from base64 import b64encode

import msgspec
import pytest

from tests.gateway.canaries import Sweep, canary, variants


@pytest.mark.parametrize("at", range(4))
def test_a_canary_is_seen_in_whatever_form(at: int) -> None:
    sweep = Sweep()
    text = sweep.said("prompt")
    before = b"x" * at
    for form in (
        text.encode(),
        json.dumps({"a": text}).encode(),
        msgspec.json.encode([text]),
        b64encode(before + text.encode() + b"yz"),
        (before + text.encode()).hex().encode(),
        repr(text).encode(),
        text[:18].encode(),
    ):
        sweep.found.clear()
        sweep.look("here", before + form + b"tail")
        assert sweep.found == {("prompt", "here")}, form
    sweep.found.clear()
    sweep.look("here", b"".join(variants(canary("other"))))
    sweep.look("there", text.encode(), allowed=("prompt",))
    assert sweep.found == set()
