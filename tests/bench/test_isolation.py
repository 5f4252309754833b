"""The bench of isolation measures something, at a size that takes no time, and says what is missed."""

from __future__ import annotations

import pytest

from executor.keeper import computes_with
from tests.bench import isolation
from tests.bench.isolation_command import judged
from tests.bench.isolation_engine import Cost, Work, cost
from tests.bench.isolation_live import Hidden, Seen, Waits
from tests.executor.fakes import FakeRunner, card


def test_every_figure_is_one() -> None:
    found = isolation.figures(2000, 16, 3)
    assert len({each.what for each in found}) == len(found) == 9
    assert all(0 < each.least_ms <= each.median_ms for each in found)


def test_a_prompt_of_its_shared_prefix_alone_is_refused() -> None:
    with pytest.raises(ValueError, match="more --tokens"):
        isolation.figures(1000, 16, 1)


def test_an_engine_with_labels_is_compared_with_one_without() -> None:
    runner = FakeRunner(kv_blocks=256, vocab_size=1000)
    found = cost(runner, computes_with(card(runner)), Work(3, 12, 2), pairs=2, seed=1)
    assert found.scoped_per_s > 0 < found.plain_per_s
    assert 0 <= found.wiping < 1


def test_what_misses_its_bar_is_said() -> None:
    waits = Waits(20, 1040, 1024, 20.0, 100.0, 1.0)
    hidden = Hidden("GET /", 300, 1.0, 0.5, -10.0, 10.0)
    assert judged(Cost(5, 100.0, 100.0, 1.0, 0.0), Seen(waits, (hidden,), ())) == ()
    slow = Waits(20, 1040, 1024, 26.0, 100.0, 1.0)
    told = Hidden("GET /", 300, 1.0, 0.0005, 5.0, 10.0)
    missed = judged(
        Cost(5, 98.0, 100.0, 1.0, 0.0), Seen(slow, (told,), ("a reader did not find it",))
    )
    assert len(missed) == 4
