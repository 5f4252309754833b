"""What is billed of a request, whenever it is asked for."""

from __future__ import annotations

import pytest

from executor.contract import Cause, Ended, Sampling
from gateway.case import Case, Job
from gateway.metering import OURS, TURNED_AWAY, Part, billed
from policies.facts import Credential, CredentialKind, Meters, Principal

JOB = Job("/v1/completions", "m", ((1,) * 9, (2,) * 5), (Sampling(), Sampling()), None)


def part(prompt: int = 0, tokens: int = 9, **more: int) -> Part:
    counts = {"prefilled": tokens, "cached": 0, "output": 3} | more
    return Part(prompt=prompt, prompt_tokens=tokens, cause=Cause.STOP, **counts)


def test_a_prompt_is_billed_once_and_each_choice_by_itself() -> None:
    parts = [part(), part(prefilled=0), part(1, 5), part(1, 5, prefilled=2)]
    assert billed(parts, delivered=True, warm=False) == Meters(input=14, output=12)


def test_what_the_cache_gave_is_no_more_than_the_rest_of_the_prompt() -> None:
    found = billed([part(prefilled=4, cached=8)], delivered=True, warm=False)
    assert found == Meters(input=4, cached_input=5, output=3)


def test_warm_work_is_a_cache_write() -> None:
    assert billed([part()], delivered=False, warm=True) == Meters(cache_write=9)


@pytest.mark.parametrize("cause", sorted(OURS))
def test_a_fault_of_ours_costs_nothing(cause: Cause) -> None:
    lost = Part(1, 5, 5, 0, 3, cause)
    assert billed([part(), lost], delivered=False, warm=False) == Meters()
    heard = billed([part(), lost], delivered=True, warm=False)
    made_room = cause in TURNED_AWAY and cause is not Cause.OVERLOADED
    assert (heard != Meters()) == made_room


def test_it_follows_whatever_becomes_of_the_request() -> None:
    who = Principal("acme", None, "alice", "idp", Credential(CredentialKind.TOKEN, "t"))
    case = Case("r", who, JOB, 0, 0)
    assert case.meters() == Meters()
    case.delivered_tokens = 1
    assert case.meters() == Meters()
    case.ended = {0: Ended(request=1, cause=Cause.STOP, prefilled=9, generated=6)}
    assert case.meters() == Meters(input=9, output=6)
    case.cap_output(0, 2)
    assert case.meters() == Meters(input=9, output=2)
    case.fail(RuntimeError())
    assert case.meters() == Meters()
