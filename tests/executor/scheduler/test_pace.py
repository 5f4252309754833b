from __future__ import annotations

from dataclasses import replace

import pytest

from executor.contract import Workload
from executor.cost import Rates, StepTimes
from executor.scheduler.step import step_budget
from executor.settings import Settings
from tests.executor.fakes import Clock, FakeRunner, Harness, job
from tests.executor.scheduler.driver import LIMITS, Job

CLASSES = (
    Workload(name="interactive", itl_ms=16),
    Workload(name="hopeless", itl_ms=10),
    Workload(name="batch", weight=None, floor=0.05),
    Workload(name="critical", reserved=0.2, itl_ms=100),
)


class Known(StepTimes):
    """10 ms a step and 1 ms a row: nothing is learnt."""

    def __init__(self, late: float = 1.0) -> None:
        super().__init__(
            Rates(step_ns=10e6, token_ns=0.0, token_context_ns=0.0, sequence_ns=1e6, late=late)
        )

    def observe(self, rows: object, measured_ns: int) -> None: ...


def rows_of(
    *asked: tuple[str, str], later: tuple[tuple[str, str], ...] = (), late: float = 1.0
) -> int:
    """How many of these (class, tenant) speak at once, when the later ones have come too."""
    house = Harness(
        FakeRunner(kv_blocks=400),
        settings=Settings(speculation=False, check_invariants=True),
        times=Known(late),
        clock=Clock(1_000_000),
    )
    house.terms(*CLASSES)
    for request, (workload, tenant) in enumerate((*asked, *later), 1):
        share = ((tenant, 1.0), ("u", 1.0))
        house.submit(job(request, max_new_tokens=20, workload=workload, share=share))
        if request >= len(asked):
            house.step()
            house.step()
    running = house.engine.gauges.running
    house.run()
    return running


@pytest.mark.parametrize(
    ("asked", "rows"),
    (
        ([("interactive", "a")] * 9, 5),
        ([("batch", "a")] * 9, 9),
        ([("interactive", "a")] * 5 + [("batch", "a")] * 4, 5),
        ([("interactive", tenant) for tenant in "abcdefghi"], 9),
    ),
    ids=(
        "until the promise would be broken",
        "nothing promised",
        "the promise of others counts",
        "who has nothing in flight comes in",
    ),
)
def test_the_promise_between_tokens_bounds_who_speaks_at_once(
    asked: list[tuple[str, str]], rows: int
) -> None:
    assert rows_of(*asked) == rows


def test_a_promise_that_one_alone_would_break_keeps_nobody_out() -> None:
    """At 11 ms a step of one row 10 ms cannot be kept, and one at a time would only be slower."""
    assert rows_of(*[("hopeless", "a")] * 9) == 9
    beside = [("interactive", "a")] * 9
    assert rows_of(("hopeless", "a"), *beside) == 5, "it makes no other promise void"


def test_reserved_work_is_not_kept_out_for_it() -> None:
    full = [("interactive", "a")] * 9
    assert rows_of(*full, later=(("interactive", "a"), ("batch", "a"))) == 5
    assert rows_of(*full, later=(("critical", "a"), ("critical", "a"))) == 7


def test_on_a_machine_whose_steps_take_longer_than_expected_fewer_speak_at_once() -> None:
    """16 ms are promised: 15.5 are aimed at, 12.9 where one step in a hundred takes a fifth longer."""
    asked = [("interactive", "a")] * 9
    assert rows_of(*asked) == 5
    assert rows_of(*asked, late=1.2) == 2


def test_where_no_time_is_left_prompts_get_less_beside_who_was_promised_some() -> None:
    """A step of 300 ms whatever is in it: 64 tokens of a prompt all the same, 32 where 16 ms are promised."""
    limits = replace(LIMITS, workloads=CLASSES, chunk_tokens_min=64)
    rates = Rates(step_ns=300e6, token_ns=1e6, token_context_ns=0.0)
    for workload, least in (("batch", 64), ("interactive", 32)):
        speaks = Job(0, workload=workload, computed=32, known=33)
        assert step_budget([speaks], rates, limits).take(1500, 1000) == least
