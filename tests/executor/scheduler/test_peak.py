from __future__ import annotations

from random import Random

from executor.scheduler.peak import Peak, Row


def plain(rows: list[Row], slack: int) -> int:
    """As it is defined."""
    held = most = 0
    for count, (ahead, known) in enumerate(sorted(rows, reverse=True), 1):
        held += known
        most = max(most, held + count * (ahead + slack))
    return most


def test_one_more_makes_of_it_what_all_together_would() -> None:
    rng = Random(1)
    for _ in range(2000):
        rows = [(rng.randint(1, 9), rng.randint(1, 9)) for _ in range(rng.randint(0, 8))]
        more, slack = (rng.randint(1, 9), rng.randint(1, 9)), rng.randint(0, 3)
        peak = Peak(rows, slack)
        assert peak.tokens == plain(rows, slack)
        assert peak.tokens_with(*more) == plain([*rows, more], slack)
        gone = rng.sample(rows, rng.randint(0, len(rows)))
        left = rows.copy()
        for each in gone:
            left.remove(each)
        assert peak.without(gone).tokens == plain(left, slack)
        assert peak.without(gone).tokens_with(*more) == plain([*left, more], slack)
        assert peak.tokens == plain(rows, slack)
        peak.add(*more)
        assert peak.tokens == plain([*rows, more], slack)
        assert peak.tokens_with(*more) == plain([*rows, more, more], slack)
