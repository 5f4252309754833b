"""What is tried again comes later and later, never exactly together, and not for ever."""

from __future__ import annotations

from policies.retry import JITTER, SCHEDULE_S, retry_after_ms


def test_from_five_seconds_to_a_day_and_then_never() -> None:
    waits = [retry_after_ms(attempt, 0.0) for attempt in range(1, len(SCHEDULE_S) + 2)]
    assert waits[0] == 5_000
    assert waits[-2:] == [86_400_000, None]
    assert [each for each in waits if each is not None] == sorted(
        each * 1000 for each in SCHEDULE_S
    )


def test_the_draw_shortens_by_a_part_at_most() -> None:
    for attempt, whole_s in enumerate(SCHEDULE_S, 1):
        least = retry_after_ms(attempt, 0.999999)
        assert least is not None
        assert (1 - JITTER) * whole_s * 1000 <= least < whole_s * 1000
