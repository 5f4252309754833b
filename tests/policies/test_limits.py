"""Each limit refuses what it must, names itself, and cuts what may be cut."""

from __future__ import annotations

import pytest

from policies.facts import Ask, Limits
from policies.limits import Bound, Sized, size
from policies.verdict import Allow, Deny, Reason


def ask(prompt: int = 100, out: int | None = None, n: int = 1) -> Ask:
    return Ask("m", prompt, out, n)


def refusal(verdict: Allow[Sized] | Deny) -> tuple[Reason, int | None, int | None, str | None]:
    assert isinstance(verdict, Deny)
    return verdict.reason, verdict.limit, verdict.asked, verdict.scope


@pytest.mark.parametrize(
    ("of", "limits", "expected"),
    (
        (ask(n=9), Limits(n=8), (Reason.TOO_MANY_CHOICES, 8, 9, "user")),
        (ask(prompt=1000), Limits(), (Reason.CONTEXT_EXCEEDED, 1000, 1001, "model")),
        (ask(prompt=500), Limits(), (Reason.NEVER_FITS, 500, 501, "model")),
        (
            ask(prompt=101),
            Limits(max_prompt_tokens=100),
            (Reason.PROMPT_TOO_LONG, 100, 101, "user"),
        ),
        (ask(out=51), Limits(max_output_tokens=50), (Reason.OUTPUT_TOO_LONG, 50, 51, "user")),
        (ask(), Limits(max_output_tokens=0), (Reason.NEVER_FITS, 0, 1, "user")),
        (ask(), Limits(rpm=0), (Reason.NEVER_FITS, 0, 1, "user")),
        (ask(), Limits(concurrent=0), (Reason.NEVER_FITS, 0, 1, "user")),
        (ask(), Limits(input_tpm=99), (Reason.NEVER_FITS, 99, 100, "user")),
        (ask(n=3), Limits(output_tpm=2), (Reason.NEVER_FITS, 2, 3, "user")),
        (ask(out=60, n=2), Limits(output_tpm=100), (Reason.NEVER_FITS, 100, 120, "user")),
    ),
)
def test_what_can_never_run_is_refused_by_name(
    of: Ask, limits: Limits, expected: tuple[Reason, int, int, str]
) -> None:
    verdict = size(of, {"user": limits}, 1000, 500)
    assert refusal(verdict) == expected
    if expected[0] is not Reason.CONTEXT_EXCEEDED:
        assert isinstance(verdict, Deny)
        assert verdict.limit_name


def test_what_just_fits_is_allowed() -> None:
    limits = Limits(
        rpm=1,
        concurrent=1,
        input_tpm=100,
        output_tpm=100,
        n=2,
        max_prompt_tokens=100,
        max_output_tokens=50,
    )
    verdict = size(ask(out=50, n=2), {"tenant": limits}, 1000, 500)
    assert verdict == Allow(Sized(50, explicit=True))
    assert size(ask(prompt=999), {}, 1000) == Allow(Sized(1, False, Bound.CONTEXT))


def test_a_named_length_beyond_the_room_is_cut_and_says_by_what() -> None:
    assert size(ask(out=5000), {}, 1000) == Allow(Sized(900, True, Bound.CONTEXT))
    assert size(ask(out=5000), {}, 1000, 500) == Allow(Sized(400, True, Bound.KV_MEMORY))
    assert size(ask(out=5000), {"key": Limits(output_tpm=900)}, 1000) == Allow(
        Sized(900, True, Bound.CONTEXT)
    )


def test_without_a_named_length_the_narrowest_bound_decides() -> None:
    limits = {"tenant": Limits(max_output_tokens=80), "user": Limits(max_output_tokens=90)}
    assert size(ask(), limits, 1000) == Allow(Sized(80, False, Bound.PLAN))
    limits = {"tenant": Limits(max_output_tokens=80, output_tpm=100)}
    assert size(ask(n=4), limits, 1000) == Allow(Sized(25, False, Bound.BUCKET))
    assert size(ask(), {}, 1000, 300) == Allow(Sized(200, False, Bound.KV_MEMORY))


def test_the_narrowest_scope_is_named_first() -> None:
    limits = {"tenant": Limits(n=1), "key": Limits(n=1)}
    assert refusal(size(ask(n=2), limits, 1000))[3] == "key"
