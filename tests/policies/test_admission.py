"""All buckets and seats, or nothing and the one reason that constrains most."""

from __future__ import annotations

from policies.admission import REASONS, SEAT_RETRY_MS, Draw, Seat, admit
from policies.rate import PARTS, Bucket
from policies.verdict import Allow, Deny, Reason


def draw(
    name: str = "rpm", *, cost: int = 1, level: int = 10, limit: int = 60, scope: str = "user"
) -> Draw:
    return Draw(scope, name, limit, cost, Bucket(level * PARTS, 0))


def test_nothing_to_take_is_allowed() -> None:
    assert admit([], [], 0) == Allow(())


def test_every_new_state_comes_in_order() -> None:
    verdict = admit([draw(cost=3), draw("input_tpm", cost=0)], [Seat("user", 2, 1)], 0)
    assert verdict == Allow((Bucket(7 * PARTS, 0), Bucket(10 * PARTS, 0)))


def test_each_limit_has_its_reason() -> None:
    for name, reason in REASONS.items():
        verdict = admit([draw(name, level=0, scope="project")], [], 0)
        assert verdict == Deny(
            reason, retry_after_ms=1000, limit=60, asked=1, scope="project", limit_name=name
        )


def test_the_longest_wait_is_told_wherever_it_stands() -> None:
    quick, slow = draw(level=0, limit=600), draw("output_tpm", level=0, limit=6, scope="tenant")
    for draws in ([quick, slow], [slow, quick]):
        verdict = admit(draws, [Seat("key", 1, 1)], 0)
        assert isinstance(verdict, Deny)
        assert (verdict.reason, verdict.scope) == (Reason.RATE_OUTPUT_TOKENS, "tenant")
        assert verdict.retry_after_ms == 10_000


def test_a_taken_seat_refuses_and_names_itself() -> None:
    verdict = admit([draw()], [Seat("tenant", 4, 4), Seat("user", 9, 0)], 0)
    assert verdict == Deny(
        Reason.CONCURRENCY,
        retry_after_ms=SEAT_RETRY_MS,
        limit=4,
        asked=1,
        scope="tenant",
        limit_name="concurrent",
    )


def test_what_can_never_fit_beats_every_wait() -> None:
    verdict = admit([draw(level=0, limit=1), draw("input_tpm", cost=61)], [], 0)
    assert isinstance(verdict, Deny)
    assert (verdict.reason, verdict.limit_name) == (Reason.NEVER_FITS, "input_tpm")
    verdict = admit([draw(level=0, limit=1)], [Seat("user", 0, 0)], 0)
    assert isinstance(verdict, Deny)
    assert (verdict.reason, verdict.limit_name) == (Reason.NEVER_FITS, "concurrent")
    assert verdict.retry_after_ms is None
