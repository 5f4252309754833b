"""The bench of keys measures something, at a size that takes no time."""

from __future__ import annotations

import pytest

from tests.bench import isolation


def test_every_figure_is_one() -> None:
    found = isolation.figures(2000, 16, 3)
    assert len({each.what for each in found}) == len(found) == 9
    assert all(0 < each.least_ms <= each.median_ms for each in found)


def test_a_prompt_of_its_shared_prefix_alone_is_refused() -> None:
    with pytest.raises(ValueError, match="more --tokens"):
        isolation.figures(1000, 16, 1)
