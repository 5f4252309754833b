from __future__ import annotations

from dataclasses import replace

import pytest

from executor.cost import Rates
from executor.scheduler.fcfs import Fcfs
from executor.scheduler.protocol import Limits, Moment, Plan, admission_tokens
from executor.sequence import Sequence
from tests.executor.fakes import job

LIMITS = Limits(seqs=4, block_tokens=4, blocks_total=10, watermark_blocks=1)


def moment(free: int) -> Moment:
    """Whose steps take no time: only the count of tokens bounds a step."""
    return Moment(0, free, Rates(0.0, 0.0, 0.0))


def plan(
    running: list[Sequence], waiting: list[Sequence], free: int, limits: Limits, tokens: int = 100
) -> Plan[Sequence]:
    """The step that follows if these run and those wait, with so many tokens for prompts."""
    queue: Fcfs[Sequence] = Fcfs(replace(limits, step_tokens_max=tokens, chunk_tokens_min=tokens))
    queue._running = list(running)
    queue._waiting = list(waiting)
    return queue.plan(moment(free))


def seq(ticket: int, tokens: int, computed: int = 0, blocks: int = 0) -> Sequence:
    made = Sequence((0, ticket), job(ticket, [1] * tokens), ticket, 0)
    made.advance(computed)
    made.blocks = [100 * ticket + i for i in range(blocks)]
    return made


def test_decodes_come_first_and_never_wait_for_the_budget() -> None:
    long, decoding = seq(1, 20, 4, 6), seq(2, 5, 4, 2)
    got = plan([long, decoding], [], 0, LIMITS, 0)
    assert [(c.seq, c.count) for c in got.chunks] == [(decoding, 1)]
    got = plan([long, decoding], [], 0, LIMITS, 7)
    assert [(c.seq, c.count) for c in got.chunks] == [(decoding, 1), (long, 7)]


def test_prompts_begun_go_before_newcomers() -> None:
    begun, new = seq(1, 20, 4, 6), seq(2, 3)
    got = plan([begun], [new], 4, LIMITS, 10)
    assert [(c.seq, c.count) for c in got.chunks] == [(begun, 10)]
    assert got.admitted == []
    got = plan([begun], [new], 4, LIMITS, 18)
    assert [(c.seq, c.count) for c in got.chunks] == [(begun, 16), (new, 2)]
    assert got.admitted == [new]


def test_a_prompt_is_admitted_only_whole_and_above_the_watermark() -> None:
    new = seq(2, 8)  # 8 tokens and one more: 3 blocks
    assert plan([], [new], 2, LIMITS, 100).admitted == []
    assert plan([], [new], 3, LIMITS, 100).admitted == [new]
    beside = seq(1, 5, 4, 2)
    assert plan([beside], [new], 3, LIMITS, 100).admitted == []
    assert plan([beside], [new], 4, LIMITS, 100).admitted == [new]


def test_nobody_overtakes() -> None:
    big, small = seq(1, 30), seq(2, 2)
    assert plan([], [big, small], 5, LIMITS, 100).admitted == []


def test_no_more_than_so_many_run() -> None:
    waiting = [seq(n, 2) for n in range(6)]
    assert plan([], waiting, 10, LIMITS, 100).admitted == waiting[:4]


def test_rows_of_one_token_come_first() -> None:
    got = plan([], [seq(1, 5), seq(2, 1)], 10, LIMITS)
    assert [c.count for c in got.chunks] == [1, 5]


@pytest.mark.parametrize(
    ("first", "second", "victim"),
    (((9, 8), (5, 4), 1), ((5, 4), (9, 8), 0), ((9, 8), (9, 8), 1)),
    ids=("fewest computed", "even if older", "youngest on a tie"),
)
def test_the_cheapest_victim_makes_room(
    first: tuple[int, int], second: tuple[int, int], victim: int
) -> None:
    both = [
        seq(n, tokens, computed, computed // 4)
        for n, (tokens, computed) in enumerate((first, second))
    ]
    waiting = seq(5, 1)
    got = plan(both, [waiting], 1, LIMITS)
    assert got.preempted == [both[victim]]
    assert [c.seq for c in got.chunks] == [both[1 - victim]]
    assert got.admitted == []  # nobody comes in while somebody is put out


def test_no_more_are_preempted_than_needed() -> None:
    three = [seq(n, 5, 4, 1) for n in range(3)]
    got = plan(three, [], 1, LIMITS)
    assert got.preempted == [three[2]]  # its block and the free one serve the other two


def test_one_that_was_preempted_in_the_last_block_comes_back() -> None:
    assert admission_tokens(seq(1, 39), LIMITS) == 40
    assert admission_tokens(seq(1, 40), LIMITS) == 40
    assert plan([], [seq(1, 40)], 10, LIMITS, 100).admitted


def test_the_queues_keep_the_order_of_arrival() -> None:
    queue: Fcfs[Sequence] = Fcfs(replace(LIMITS, chunk_tokens_min=4, step_tokens_max=4))
    first, second, third = (seq(n, 4) for n in (1, 2, 3))
    for one in (first, second, third):
        queue.add(one, 0)
    queue.plan(moment(4))
    assert (list(queue.running), list(queue.waiting)) == ([first], [second, third])
    first.advance(4)
    first.tokens.append(1)
    first.blocks, second.blocks = [0], [1]
    queue.plan(moment(10))
    assert (list(queue.running), list(queue.waiting)) == ([first, second], [third])
    second.advance(4)
    second.tokens.append(1)
    queue.plan(moment(0))  # no room to grow: the younger goes back to its old place
    assert (list(queue.running), list(queue.waiting)) == ([first], [second, third])
    queue.remove(third, 0)
    queue.remove(first, 0)
    assert (list(queue.running), list(queue.waiting)) == ([], [second])
    with pytest.raises(AssertionError):
        queue.remove(first, 0)
