"""The register is bounded and its sums are right; a case is read as what the client saw."""

from __future__ import annotations

from typing import Any

import pytest

from executor.contract import Cause, Ended, Pace, Sampling
from gateway.case import Case, Job
from gateway.errors import invalid, unavailable
from gateway.promises import HOUR_MS, HOURS_MAX, PARTS, Promises, Tally, fate_of, times_of
from policies.classes import Fate, Judged, Times, Verdict
from policies.facts import Credential, CredentialKind, Principal

KEPT = Judged(Verdict.KEPT, Verdict.KEPT)
ALICE = Principal("acme", None, "alice", "idp", Credential(CredentialKind.TOKEN, None))


def register(**bounds: int) -> tuple[Promises, list[int]]:
    now = [10 * HOUR_MS]
    return Promises(lambda: now[0], **bounds), now


def test_every_grouping_comes_to_the_same_sums() -> None:
    promises, now = register()
    for tenant in ("acme", "globex"):
        for service_class in ("interactive", "batch"):
            for _ in range(3):
                promises.count(service_class, tenant, Fate.SERVED, KEPT)
                promises.count(service_class, tenant, Fate.BACKLOG, Judged())
                now[0] += HOUR_MS // 4
    for by in (("tenant",), ("service_class",), ("hour",), ("hour", "tenant", "service_class")):
        sums = promises.by(by)
        assert sum(tally.requests for _, tally in sums) == 24
        assert sum(tally.promised for _, tally in sums) == 12
        assert sum(tally.refused for _, tally in sums) == 12
    assert sum(tally.kept for _, tally in promises.by(("hour",), tenant="acme")) == 6


def test_old_hours_go_and_the_start_of_what_is_counted_is_told() -> None:
    promises, now = register()
    for _ in range(HOURS_MAX + 5):
        promises.count("interactive", "acme", Fate.SERVED, KEPT)
        now[0] += HOUR_MS
    ((_, tally),) = promises.by(("tenant",))
    assert tally.requests == HOURS_MAX
    assert promises.from_ms == 15 * HOUR_MS
    assert len(promises.by(("hour",))) == HOURS_MAX


def test_many_tenants_cost_hours_and_never_the_running_one() -> None:
    promises, now = register(rows_max=50)
    promises.count("interactive", "acme", Fate.SERVED, KEPT)
    now[0] += HOUR_MS
    for n in range(51):
        promises.count("interactive", str(n), Fate.SERVED, KEPT)
    assert len(promises.by(("hour",))) == 1
    assert len(promises.by(("tenant",))) == 51
    now[0] += HOUR_MS
    promises.count("interactive", "acme", Fate.SERVED, KEPT)
    assert promises.by(("tenant",)) == promises.by(("tenant",), tenant="acme")


def case(*ended: Ended, **seen: Any) -> Case:
    job = Job("r", "m", ((1,),), (), None)
    made = Case("req_1", ALICE, job, 0, 1_000)
    made.ended = dict(enumerate(ended))
    for name, value in seen.items():
        setattr(made, name, value)
    return made


def last(cause: Cause, **spans: Any) -> Ended:
    return Ended(request=1, cause=cause, **spans)


@pytest.mark.parametrize(
    ("made", "fate"),
    (
        (case(last(Cause.STOP)), Fate.SERVED),
        (case(last(Cause.ABORTED), outcome="cancelled"), Fate.LEFT),
        (case(last(Cause.STOP), last(Cause.BACKLOG, retry_ms=1, queued_ns=9)), Fate.BACKLOG),
        (case(last(Cause.BACKLOG, retry_ms=1, queued_ns=9, displaced=True)), Fate.DISPLACED),
        (case(last(Cause.BACKLOG)), Fate.BACKLOG),  # the newcomer itself made room
        (case(last(Cause.OVERLOADED), error=unavailable("x")), Fate.PLATFORM),
        (case(error=unavailable("x")), Fate.PLATFORM),
        (case(outcome="crashed"), Fate.PLATFORM),
        (case(error=invalid("x")), Fate.OTHER),
    ),
)
def test_how_a_case_fared(made: Case, fate: Fate) -> None:
    assert fate_of(made) is fate


def test_times_are_those_of_the_slowest_choice() -> None:
    quick, slow, one = Pace(tokens=11, span_ns=100), Pace(tokens=3, span_ns=80), Pace(tokens=1)
    seen = {"first_token_ns": 1_500, "closed_ns": 9_000}
    end = last(Cause.STOP)

    def paced(*paces: Pace, **more: Any) -> Case:
        return case(end, **{**seen, "paces": dict(enumerate(paces)), **more})

    assert times_of(paced(quick, slow, one)) == Times(8_000, 500, 80, 3)
    assert times_of(paced(one, Pace())) == Times(8_000, 500)
    assert times_of(case(closed_ns=9_000)) == Times(8_000)
    assert times_of(paced(quick, left_ns=3_000)) == Times(2_000, 500, 100, 11)
    long = case(last(Cause.STOP, promised=False), paces={0: quick}, **seen)
    assert times_of(long) == Times(8_000, 500, 100, 11, promised=False)


@pytest.mark.parametrize("fate", Fate)
@pytest.mark.parametrize("whole", Verdict)
def test_every_request_counts_in_one_part(fate: Fate, whole: Verdict) -> None:
    """Whoever adds the columns up gets the requests."""
    tally = Tally()
    tally.count(fate, Judged(whole, Verdict.NONE))
    parts = {name: getattr(tally, name) for name in PARTS}
    assert (tally.requests, sum(parts.values())) == (1, 1)
    if whole is not Verdict.NONE:
        assert parts[whole.value] == 1


def test_what_was_heard_is_paid_for_though_another_choice_made_room() -> None:
    """Else a caller with a full queue would have the streamed choices for nothing."""
    spoke = last(Cause.STOP, generated=5, prefilled=1)
    made_room = last(Cause.BACKLOG, retry_ms=1, queued_ns=9, displaced=True)
    two = Job("r", "m", ((1,),), (Sampling(), Sampling()), None)
    assert [each.part for each in two.submits(9)] == [False, True]
    heard = case(spoke, made_room, job=two, delivered_tokens=5)
    assert not heard.turned_away()
    assert (heard.meters().output, heard.meters().input > 0) == (5, True)
    unheard = case(spoke, made_room, job=two)
    assert unheard.turned_away()
    assert unheard.meters().output == 0
