from __future__ import annotations

from collections.abc import Sequence as Seq

import pytest

from executor.block_manager import BlockManager, NotWiped
from executor.sequence import Sequence
from tests.executor.fakes import job


def seq(ticket: int) -> Sequence:
    return Sequence((0, ticket), job(ticket), ticket, 0)


def house(total: int = 6) -> tuple[BlockManager, list[list[int]]]:
    wiped: list[list[int]] = []
    return BlockManager(total, 4, lambda blocks: wiped.append(list(blocks))), wiped


def test_blocks_cover_the_tokens_and_no_more() -> None:
    blocks, _ = house()
    one = seq(1)
    blocks.allocate(one, 1)
    assert len(one.blocks) == 1
    blocks.allocate(one, 4)
    assert len(one.blocks) == 1
    first = list(one.blocks)
    blocks.allocate(one, 9)
    assert len(one.blocks) == 3
    assert one.blocks[:1] == first  # a table only grows at its end
    assert blocks.free == 3
    blocks.check([one])


def test_a_freed_block_is_wiped_before_it_is_owned_again() -> None:
    blocks, wiped = house(2)
    one, two = seq(1), seq(2)
    blocks.allocate(one, 8)
    held = list(one.blocks)
    blocks.release(one)
    assert (one.blocks, blocks.free, wiped) == ([], 2, [])
    blocks.allocate(two, 8)
    assert wiped == [held]
    assert sorted(two.blocks) == sorted(held)
    blocks.check([two])


def test_scrubbing_is_one_call_and_none_for_nothing() -> None:
    blocks, wiped = house()
    one, two = seq(1), seq(2)
    blocks.allocate(one, 8)
    blocks.allocate(two, 4)
    for done in (one, two):
        blocks.release(done)
    blocks.scrub()
    blocks.scrub()
    assert len(wiped) == 1
    assert len(wiped[0]) == 3
    blocks.check([])


def test_releasing_twice_is_nothing() -> None:
    blocks, _ = house()
    one = seq(1)
    blocks.allocate(one, 8)
    blocks.release(one)
    blocks.release(one)
    blocks.check([])


def test_giving_away_more_than_there_is_is_our_mistake() -> None:
    blocks, _ = house(1)
    with pytest.raises(AssertionError):
        blocks.allocate(seq(1), 5)


def test_a_lost_or_doubled_block_is_found() -> None:
    blocks, _ = house()
    one, two = seq(1), seq(2)
    blocks.allocate(one, 8)
    with pytest.raises(AssertionError):
        blocks.check([])
    two.blocks = list(one.blocks)
    with pytest.raises(AssertionError):
        blocks.check([one, two])


def test_blocks_that_could_not_be_wiped_stay_out_of_use() -> None:
    def broken(_: Seq[int]) -> None:
        raise RuntimeError

    blocks = BlockManager(1, 4, broken)
    one = seq(1)
    blocks.allocate(one, 4)
    blocks.release(one)
    with pytest.raises(NotWiped, match="RuntimeError"):
        blocks.allocate(seq(2), 4)
    with pytest.raises(NotWiped, match="RuntimeError"):
        blocks.scrub()
