"""Sharing that may not be told: it saves computing, and shows nowhere."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest

from executor.batch import Batch
from executor.contract import (
    Cause,
    Ended,
    Submit,
    Update,
)
from executor.cost import Rates, StepTimes
from executor.scheduler.protocol import Charge
from executor.sequence import Sequence
from policies.scope.residency import Hit, Source, disclosed_tokens
from tests.executor.fakes import Clock, Harness, job
from tests.executor.labelled import (
    DOC,
    PROMPT,
    WORDS,
    ask,
    house_of,
    labelled,
    revoke,
    scope,
)

# What may not be told


def shared(request: int, who: str, words: tuple[int, ...] = WORDS, **fields: object) -> Submit:
    prompt = DOC + words
    common = scope(str(fields.pop("common", "a/all")), len(DOC), disclosed=False)
    return labelled(request, prompt, common, scope(who, len(prompt)), **fields)  # type: ignore[arg-type]


MACHINE = Rates(step_ns=2e7, token_ns=1e6, token_context_ns=0.0)


class Known(StepTimes):
    """Nothing is to be learnt."""

    def observe(self, rows: object, measured_ns: int) -> None: ...


def on_a_machine(common: str, **limits: object) -> tuple[list[object], list[object], Harness]:
    """Alice, after Bob, beside another tenant, on a machine that takes what is expected: what each was
    told in each step, and what the scheduler was charged.  `common`: Bob's label for the document."""
    clock = Clock(tick_ns=0)
    house = house_of(clock=clock, **limits)  # type: ignore[arg-type]
    house.engine._books.times = Known(MACHINE)

    def takes(batch: Batch) -> None:
        rows = [MACHINE.row_ns(len(row.tokens), row.start) for row in batch.rows]
        clock.now_ns += round(MACHINE.step_ns + sum(rows))

    house.runner.before = takes
    ask(house, shared(1, "a/bob", (30, 31, 30, 31, 30), common=common))
    house.runner.batches.clear()
    charged: list[object] = []
    charge = house.engine._books._charge

    def note(bill: Iterable[Charge[Sequence]]) -> None:
        rows = list(bill)
        charged.append(sorted((seq.key, own_ns, lost_ns) for seq, own_ns, lost_ns in rows))
        charge(rows)

    house.engine._books._charge = note
    house.submit(shared(9, "a/alice", max_new_tokens=3))
    house.submit(job(10, PROMPT, max_new_tokens=6, share=(("b", 1.0),)))
    told: list[object] = []
    while house.engine.busy or house.inbox:
        told += [
            sorted(map(timeless, report.updates), key=lambda each: each.request)
            for report in house.step().values()
        ]
    return told, charged, house


def timeless(update: Update) -> Update:
    if not isinstance(update, Ended):
        return update
    return msgspec.structs.replace(update, device_ns=0, queued_ns=0, prefill_ns=0, decode_ns=0)


@pytest.mark.parametrize("step_tokens", (5, 12, 64))
def test_a_hit_that_may_not_be_told_saves_computing_and_shows_nowhere(step_tokens: int) -> None:
    """The same in every step for both, and the same bill: only time is saved."""
    told, bill, house = on_a_machine("a/all", step_tokens_max=step_tokens)
    cold_told, cold_bill, cold_house = on_a_machine("a/else", step_tokens_max=step_tokens)
    assert told == cold_told
    assert bill == cold_bill
    computed, cold_computed = (
        sum(count for rows in each.runner.batches for _, count in rows)
        for each in (house, cold_house)
    )
    assert computed == cold_computed - 12
    assert (house.ended(9).cached, house.ended(9).prefilled) == (0, 18)
    house.assert_empty()


def test_own_blocks_behind_one_that_is_not_told_are_not_told_either() -> None:
    house = house_of()
    first = shared(1, "a/alice")
    ask(house, first)
    assert ask(house, msgspec.structs.replace(first, request=2)) == 0
    assert house.runner.batches[-1] == [(16, 2)]
    assert disclosed_tokens([Hit(Source.OPPORTUNISTIC, 12), Hit(Source.OWN, 4)]) == 0


def test_an_abort_or_a_revocation_in_the_midst_of_hidden_blocks_loses_none() -> None:
    for ends in ("abort", "revoke"):
        house = house_of(step_tokens_max=5)
        ask(house, shared(1, "a/bob"))
        house.submit(shared(2, "a/alice"))
        house.step()
        if ends == "abort":
            house.abort(2)
        else:
            house.order(revoke("a/all"))
        house.run()
        assert house.ended(2).cause in {Cause.ABORTED, Cause.REVOKED}
        house.assert_empty()
