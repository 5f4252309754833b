"""A replica as a fluid: it takes what the machine's formula says, and every nanosecond has an owner."""

from __future__ import annotations

from random import Random

import pytest

from executor.cost import Rates, Share
from executor.simulation.fleet import Gossiping
from executor.simulation.fluid import Replica, Row, fitted
from executor.simulation.machine import A10G, Machine
from executor.simulation.work import Request, SimWork

MS = 1_000_000
PLAIN = Machine("plain", 10 * MS, 1 * MS, 0, 100_000, 0, 4, 16, 4000)
GROWS = Machine("grows", 10 * MS, 1 * MS, 1_000, 100_000, 0, 4, 16, 4000)
RATES = Rates(10 * MS, 100_000, 0.0, 1 * MS)
"""A step with a prompt beside nobody: (200 - 10 - 1) / 0.1 = 1,890 of its tokens."""


def replica(machine: Machine) -> Replica:
    limits = machine.limits()
    return Replica(machine, limits, Gossiping(limits), RATES)


def put(at: Replica, ticket: int, prompt: int, output: int, tenant: str = "t") -> Row:
    request = Request(at.now_ns, tenant, prompt, output)
    row = at.add(SimWork(request, ticket, at.now_ns), output)
    at.decide()
    return row


def drain(at: Replica) -> list[tuple[int, int]]:
    """(ticket, when it ended) in order."""
    found = []
    while (due_ns := at.next_ns()) is not None:
        found += [(row.work.ticket, at.now_ns) for row in at.advance(due_ns)]
        at.decide()
    return found


def test_one_alone_takes_what_its_steps_take() -> None:
    """A full chunk of 1,890 takes 200 ms; then 9 steps of 11 ms.  A broken chunk is told at its step's
    end: half of one, 945 tokens, are 100 ms of fluid and half a step, 5.5 ms; the true step is 105.5."""
    at = replica(PLAIN)
    row = put(at, 0, 1890, 10)
    assert drain(at) == [(0, 299 * MS)]
    assert row.first_ns == 200 * MS
    row = put(at, 1, 945, 1)
    assert drain(at) == [(1, round(299 * MS + 105.5 * MS))]
    assert row.first_ns == round(299 * MS + 105.5 * MS)


def test_two_share_their_steps() -> None:
    """Both decode at 12 ms a step until the shorter one ends, then the other at 11."""
    at = replica(PLAIN)
    short, long = put(at, 0, 1890, 11), put(at, 1, 1, 101)
    while long.first_ns is None:
        at.advance(at.next_ns() or 0)
        at.decide()
    from_ns, more = at.now_ns, long.ends - short.ends
    (_, short_ns), (_, long_ns) = drain(at)
    assert short_ns - from_ns == pytest.approx(12 * MS * (10 - 1 / 1879), rel=1e-6)
    assert long_ns - short_ns == pytest.approx(11 * MS * more, rel=1e-6)
    assert at.had["t"] == pytest.approx(at.busy_ns, abs=4)


def test_who_comes_beside_others_waits_for_half_a_step() -> None:
    """A prompt of a whole chunk, 1,879 tokens beside one that decodes: told half a step of two later."""
    at = replica(PLAIN)
    put(at, 0, 1890, 100)
    at.advance(at.next_ns() or 0)
    row = put(at, 1, 1879, 1)
    at.advance(at.next_ns() or 0)
    assert row.first_ns == pytest.approx(200 * MS + 199.9 * MS + 6 * MS, abs=10)


def test_a_step_grows_with_its_context() -> None:
    """1,000 tokens of context and one more a step: Σ (11 ms + 1 µs · (1,001 + i))."""
    at = replica(GROWS)
    row = put(at, 0, 1000, 201)
    ((_, ended_ns),) = drain(at)
    assert row.first_ns is not None
    exact_ns = sum(GROWS.step_ns([Share(1, 1000 + i)]) for i in range(200))
    assert ended_ns - row.first_ns == pytest.approx(exact_ns, rel=1e-4)


def test_prompts_slow_who_decodes_and_all_time_has_an_owner() -> None:
    """For 1,879 tokens more one step takes 199.9 ms for both; the first pays its row of it, the other its
    row and its tokens, and each half of what is fixed."""
    at = replica(PLAIN)
    put(at, 0, 1890, 100, "a")
    at.advance(at.next_ns() or 0)
    at.settle()
    before = at.had["a"]
    put(at, 1, 1879, 1, "b")
    at.advance(at.next_ns() or 0)
    at.settle()
    assert at.had["a"] - before == pytest.approx(6 * MS, rel=1e-6)
    assert at.had["b"] == pytest.approx(193.9 * MS, rel=1e-6)
    drain(at)
    assert sum(at.had.values()) == pytest.approx(at.busy_ns, abs=4)


def test_who_had_least_goes_first() -> None:
    """a may have three rows of four, what headroom leaves; b finds the last one, and for its second request
    one of a's is put out, which begins again before all of a's that wait."""
    at = replica(PLAIN)
    rows = [put(at, ticket, 16, 50, "a") for ticket in range(8)]
    at.advance(at.next_ns() or 0)
    rows += [put(at, 8, 16, 50, "b"), put(at, 9, 16, 50, "b")]
    assert [row.work.ticket for row in rows if not row.waits] == [1, 2, 8, 9]
    began: list[int] = []
    while (due_ns := at.next_ns()) is not None:
        at.advance(due_ns)
        began += [row.work.ticket for row in at.decide() if not row.waits]
    assert began == [0, 3, 4, 5, 6, 7]


def test_who_leaves_takes_nothing_along() -> None:
    at = replica(PLAIN)
    rows = [put(at, ticket, 400, 50, f"t{ticket}") for ticket in range(6)]
    at.advance(at.next_ns() or 0)
    for row in rows:  # one decodes, three are fed, two wait
        at.drop(row)
    assert (at.here, at.next_ns(), at.advance(at.now_ns + MS)) == (0, None, [])
    row = put(at, 9, 1890, 10)
    drain(at)
    assert row.first_ns is not None
    assert row.first_ns == at.now_ns - 99 * MS


def test_memory_that_is_short_puts_somebody_out_who_comes_back() -> None:
    """Room for 320 tokens; who has said 10 is thought to say 10 again, and says 200."""
    machine = Machine("small", 10 * MS, 1 * MS, 0, 100_000, 0, 4, 16, 20)
    at = replica(machine)
    put(at, 9, 32, 10)
    drain(at)
    request = Request(0, "t", 32, 200)
    for ticket in range(4):
        at.add(SimWork(request, ticket, 0), 200)
    at.decide()
    assert sorted(ticket for ticket, _ in drain(at)) == [0, 1, 2, 3]
    assert at.preemptions > 0
    assert at.lost_ns > 0
    assert sum(at.had.values()) + at.lost_ns == pytest.approx(at.busy_ns, abs=20)


def test_rates_are_those_of_the_machine() -> None:
    """One coefficient for the tokens of prompts and of decodes; it errs on neither by much."""
    rates = fitted(A10G, A10G.limits(), Random(3))
    shares = [Share(1, 400)] * 20
    learnt_ns = rates.step_ns + sum(rates.row_ns(each.new, each.start) for each in shares)
    assert learnt_ns == pytest.approx(A10G.step_ns(shares), rel=0.35)
    prompt = [Share(500, 0)]
    assert rates.step_ns + rates.row_ns(500, 0) == pytest.approx(A10G.step_ns(prompt), rel=0.35)
