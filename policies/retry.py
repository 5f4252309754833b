"""When what could not be delivered is tried again: 5 s at first, a day at last, and then never.

Refuses to know: what is delivered, what time it is, randomness (a draw in [0, 1) is an argument).
Source: Standard Webhooks ("Deliverability and reliability"), whose schedule this is.
"""

from __future__ import annotations

SCHEDULE_S = (5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
"""After the first attempt, the second, …: 75 hours in all."""
JITTER = 0.2
"""A wait is shorter by up to that part, so that what failed together does not come again together."""


def retry_after_ms(attempt: int, draw: float) -> int | None:
    """How long to wait after the `attempt`th failed, from 1; None: it was the last."""
    assert attempt >= 1
    assert 0 <= draw < 1
    if attempt > len(SCHEDULE_S):
        return None
    return round(SCHEDULE_S[attempt - 1] * 1000 * (1 - JITTER * draw))
