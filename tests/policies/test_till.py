"""What is set aside, what of it counts, and when it begins anew."""

from __future__ import annotations

import pytest

from policies.budget import Account
from policies.till import (
    NANO_USD_BELOW,
    SETTLE_US,
    STALE_US,
    Float,
    Seen,
    covers,
    filled,
    journalled,
    over_issued,
    recalled,
)

NOW = 1_795_953_600_000_000
OLD = NOW - STALE_US
YOUNG = NOW - SETTLE_US + 1


@pytest.mark.parametrize(
    ("kept", "seen", "counts", "over"),
    (
        (Float(7, 10, 10), Seen(7, 10, 10), True, False),
        (Float(7, 10, 10), Seen(7, 10, 11), False, True),
        (Float(7, 10, 10), Seen(7, 10, 0), False, False),
        (Float(8, 10, 10), Seen(7, 10, 5), False, False),  # recalled meanwhile
        (Float(7, 10, 10), Seen(8, 10, 11), False, False),  # of a book that was restored
        (Float(), Seen(), False, False),
    ),
)
def test_what_was_drawn_counts_where_it_is_set_aside_in_this_epoch(
    kept: Float, seen: Seen, counts: bool, over: bool
) -> None:
    assert covers(kept, seen) is counts
    assert over_issued(kept, seen) is over


def test_a_draw_leaves_what_was_issued_as_it_was() -> None:
    assert journalled(Float(7, 10, 30), 4) == Float(7, 6, 30)


def test_an_epoch_is_the_time_at_which_it_began_and_never_one_that_was() -> None:
    assert recalled(Float(7, 10, 10), NOW) == Float(NOW)
    assert recalled(Float(NOW, 10, 10), NOW) == Float(NOW + 1)
    assert recalled(Float(NOW + 5, 10, 10), NOW) == Float(NOW + 6)  # a clock that stepped back


LIMIT, ROOM = 16_000, 10_000  # so that a fill is 1,000


@pytest.mark.parametrize(
    ("kept", "seen", "after"),
    (
        (Float(), Seen(), Float(NOW, 1000, 1000)),
        (Float(), Seen(3, 9), Float(NOW, 1000, 1000)),  # its row was lost and counted anew
        # Short: filled up, unless somebody has, or it is still half full of what others draw.
        (Float(OLD, 0, 50), Seen(OLD, 50), Float(OLD, 1000, 1050)),
        (Float(YOUNG, 500, 600), Seen(YOUNG, 600), Float(YOUNG, 1000, 1100)),
        (Float(OLD, 0, 50), Seen(OLD, 40), Float(OLD, 0, 50)),
        (Float(YOUNG, 501, 600), Seen(YOUNG, 600), Float(YOUNG, 501, 600)),
        # Missing, or another's: begun anew, unless it was begun a moment ago.
        (Float(YOUNG, 1000, 1000), Seen(), Float(YOUNG, 1000, 1000)),
        (Float(NOW - SETTLE_US, 1000, 1000), Seen(), Float(NOW, 1000, 1000)),
        (Float(YOUNG), Seen(OLD, 9), Float(NOW, 1000, 1000)),  # recalled, and nothing since
        # What nobody can draw any more is taken back after a while.
        (Float(OLD, 501, 600), Seen(OLD, 600), Float(NOW, 1000, 1000)),
        (Float(OLD + 1, 501, 600), Seen(OLD + 1, 600), Float(OLD + 1, 501, 600)),
        # So is a till that has counted to its end.
        (
            Float(OLD, 0, NANO_USD_BELOW - 1000),
            Seen(OLD, NANO_USD_BELOW - 1000),
            Float(NOW, 1000, 1000),
        ),
    ),
)
def test_when_a_till_is_filled(kept: Float, seen: Seen, after: Float) -> None:
    assert filled(kept, seen, LIMIT, ROOM, 10, NOW) == after


@pytest.mark.parametrize(
    ("limit", "room", "least", "size"),
    (
        (16_000, 10_000, 10, 1000),
        (16_000, 1_999, 10, 999),  # half of what is left
        (16_000, 19, 10, 0),  # it would not serve another of these
        (16_000, 10_000, 1001, 0),
        (15, 10_000, 0, 0),
        (NANO_USD_BELOW - 1, NANO_USD_BELOW - 1, 10, (NANO_USD_BELOW - 1) // 16),
        (NANO_USD_BELOW, NANO_USD_BELOW, 10, 0),  # a till could not count it
    ),
)
def test_how_much(limit: int, room: int, least: int, size: int) -> None:
    assert filled(Float(), Seen(), limit, room, least, NOW).nano_usd == size


def test_what_is_set_aside_is_room_for_nobody_else() -> None:
    account = Account("tenant", 100, 20, 30, floated_nano_usd=40)
    assert account.room_nano_usd == 10
