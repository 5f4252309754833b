"""How long an entry lives, what traffic may do, and which hits may be told."""

from __future__ import annotations

from typing import Any

import pytest

from policies.scope.labels import Level
from policies.scope.residency import (
    NEVER_NS,
    Hit,
    Source,
    Ttl,
    alive,
    disclosed_tokens,
    ends_ns,
    made_by_traffic,
)


@pytest.mark.parametrize(
    ("ttl", "used_ns", "ends"),
    (
        (Ttl(1000, 100, None), 10, 110),
        (Ttl(1000, 100, None), 950, 1010),
        (Ttl(1000, 100, 60), 10, 60),
        (Ttl(1000, None, None), 10, 1010),
        (Ttl(1000, None, None), 900, 1010),
        (Ttl(1000, None, 500), 900, 500),
        (Ttl(1000, 100, 5), 10, 5),
        (Ttl(None, None, None), 10, NEVER_NS),
        (Ttl(None, None, 500), 900, 500),
    ),
)
def test_the_first_end_counts(ttl: Ttl, used_ns: int, ends: int) -> None:
    assert ends_ns(ttl, created_ns=10, used_ns=used_ns) == ends
    for now_ns, lives in ((ends - 1, ends > 10), (ends, False), (ends + 1, False)):
        assert alive(ttl, created_ns=10, used_ns=used_ns, now_ns=now_ns) is lives


def test_an_entry_from_the_future_is_dead() -> None:
    assert not alive(Ttl(1000, None, None), created_ns=10, used_ns=10, now_ns=9)


@pytest.mark.parametrize("wrong", ((0, None, None), (-1, 5, None), (5, 0, None), (None, 5, None)))
def test_a_life_has_a_length(wrong: Any) -> None:
    with pytest.raises(AssertionError):
        Ttl(*wrong)


def test_what_users_traffic_makes_at_each_level() -> None:
    shut = {level: made_by_traffic(level, opportunistic=False) for level in Level}
    assert shut == dict.fromkeys(Level) | {Level.USER: Source.OWN, Level.SESSION: Source.OWN}
    opened = {level: made_by_traffic(level, opportunistic=True) for level in Level}
    assert opened == shut | {
        Level.TENANT: Source.OPPORTUNISTIC,
        Level.DOCUMENTS: Source.OPPORTUNISTIC,
    }


@pytest.mark.parametrize(
    ("hits", "shown"),
    (
        ((), 0),
        ((Hit(Source.PINNED, 32),), 32),
        ((Hit(Source.PINNED, 32), Hit(Source.OWN, 16)), 48),
        ((Hit(Source.OPPORTUNISTIC, 32),), 0),
        ((Hit(Source.PINNED, 32), Hit(Source.OPPORTUNISTIC, 16)), 32),
        ((Hit(Source.PINNED, 32), Hit(Source.OPPORTUNISTIC, 16), Hit(Source.OWN, 16)), 32),
    ),
)
def test_shared_luck_is_shown_as_a_miss(hits: tuple[Hit, ...], shown: int) -> None:
    assert disclosed_tokens(hits) == shown
