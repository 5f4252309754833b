"""OpenAI's document against ours, where somebody has it: LOCKGATE_OPENAI_DOCUMENT is a file or a URL."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.clients.serving import serving
from tests.gateway.inhouse import MODEL

pytestmark = pytest.mark.long


def test_nothing_that_fits_it_is_a_server_error(tmp_path: Path) -> None:
    place = os.environ.get("LOCKGATE_OPENAI_DOCUMENT")
    if place is None:
        pytest.skip("LOCKGATE_OPENAI_DOCUMENT names no document")
    from tests.clients.openai_document import fuzz, read  # which takes seconds to import

    with serving(tmp_path) as site:
        seen = fuzz(read(place), site.base_url, site.home.tokens["acme/alice"], MODEL, 15)
        assert sum(seen.values()) >= 30
        assert max(seen) < 500
        site.at_rest()
