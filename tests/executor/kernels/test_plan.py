"""How a step is cut into tiles, splits and recordings, and how it is laid out: no Triton, no GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from executor.batch import Batch, Row, StepBounds
from executor.kernels import plan
from executor.kernels.memory import kv_blocks_that_fit, step_bytes
from executor.kernels.places import BLOCK_TOKENS
from executor.kernels.step import CudaStep, Room, Staging, make_step
from tests.models import LLAMA_8B

pytestmark = pytest.mark.slow  # the whole run's: the fast subset stays below half a minute

ROOM = Room(
    heads=6,
    kv_heads=2,
    head_dim=64,
    itemsize=2,
    context_tokens=4096,
    tokens_max=512,
    rows_max=20,
    processors=132,
    sizes=plan.recorded_sizes(20),
)


def staging(room: Room = ROOM) -> Staging:
    return Staging(torch.device("cpu"), room.words)


def row(tokens: int, start: int, *, wants: bool = True) -> Row:
    blocks = list(range(100, 100 + -(-(start + tokens) // BLOCK_TOKENS) + 2))
    return Row(list(range(tokens)), start, blocks, wants)


@pytest.mark.parametrize("queries", (1, 5, 16))
def test_tiles_hold_every_query_once_and_the_longest_come_first(queries: int) -> None:
    counts = [(0, 1), (3, 16), (4, 37)]
    rows, firsts = plan.tiles(counts, queries)
    held = sorted(
        (row, query)
        for row, first in zip(rows, firsts, strict=True)
        for query in range(first, min(first + queries, dict(counts)[row]))
    )
    assert held == [(row, query) for row, count in counts for query in range(count)]
    assert firsts[rows.index(4)] == max(
        first for r, first in zip(rows, firsts, strict=True) if r == 4
    )


@pytest.mark.parametrize("group", (1, 3, 4, 8, 16, 24))
def test_a_tile_holds_all_heads_of_a_group(group: int) -> None:
    assert plan.thin_rows(group) >= max(group, 16)
    assert plan.thick_rows(group, 1024) >= group
    assert plan.thick_rows(1, 256) == 128
    assert plan.thick_rows(1, 512) == 64


def test_few_decodes_of_long_rows_are_split_and_short_ones_are_not() -> None:
    assert plan.split_thin(1, 8, 132, 131072).splits == 64
    assert plan.split_thin(256, 8, 132, 131072).splits == plan.SPLITS_MIN
    assert plan.split_thin(64, 8, 132, 256).splits == 1
    assert plan.split_thin(1, 8, 132, 256).splits == 4
    for tiles in range(1, 300):
        splits = plan.split_thin(tiles, 3, 132, 8192).splits
        assert splits & (splits - 1) == 0
        assert plan.split_thin(tiles + 1, 3, 132, 8192).splits <= splits


def test_the_end_of_a_long_prompt_is_split() -> None:
    assert plan.split_thick(2, 8, 132, 16384).splits > 1
    assert plan.split_thick(2, 8, 132, 512).splits == 1
    assert plan.split_thick(64, 8, 132, 16384).splits == 1


@pytest.mark.parametrize("most", (1, 2, 7, 16, 20, 256))
def test_every_batch_of_decodes_has_a_recording(most: int) -> None:
    sizes = plan.recorded_sizes(most)
    assert list(sizes) == sorted(set(sizes), reverse=True)
    assert sizes[0] == most
    for rows in range(1, most + 1):
        size = plan.recorded(rows, sizes)
        assert size is not None
        assert rows <= size <= max(2 * rows, rows + 15)
    assert plan.recorded(most + 1, sizes) is None


def addresses(step: CudaStep) -> list[int]:
    """Of all that a recording reads."""
    at = step.places
    every = [step.token_ids, at.positions, at.rows, at.query_starts, at.contexts]
    every += [at.table_starts, at.tables, step.sampled, step.tiles[0].rows, step.tiles[0].firsts]
    return [tensor.data_ptr() for tensor in every]


def test_steps_of_one_recording_lie_where_it_looks_for_them() -> None:
    room = replace(ROOM, rows_max=64, sizes=plan.recorded_sizes(64))
    to = staging(room)
    first = make_step(Batch([row(1, 40)] * 33), room, to)
    again = make_step(Batch([row(1, 3000)] * 48), room, to)
    other = make_step(Batch([row(1, 40)] * 49), room, to)
    assert first.recording == again.recording == 48
    assert addresses(first) == addresses(again)
    assert other.recording == 64
    assert first.tiles[0].splits == again.tiles[0].splits
    assert all(address % 64 == first.token_ids.data_ptr() % 64 for address in addresses(first))


def test_a_step_says_where_everything_is() -> None:
    rows = [row(1, 40), row(1, 0, wants=False), row(50, 33)]
    step = make_step(Batch(rows), ROOM, staging())
    at = step.places
    assert step.recording is None
    assert step.token_ids.tolist() == [0, 0, *range(50)]
    assert at.positions.tolist() == [40, 0, *range(33, 83)]
    assert at.rows.tolist() == [0, 1, *[2] * 50]
    assert at.query_starts.tolist() == [0, 1, 2, 52]
    assert at.contexts.tolist() == [41, 1, 83]
    assert at.table_starts.tolist() == [0, 2, 3]
    assert at.tables.tolist() == [100, 101, 100, 100, 101, 102]
    assert (step.sampled.tolist(), step.wanted) == ([0, 51], 2)
    thin, thick = step.tiles
    assert (thin.rows.tolist(), thin.queries_max) == ([0, 1], 1)
    assert (thick.rows.tolist(), thick.firsts.tolist()) == ([2, 2], [42, 0])
    assert thick.queries_max == 42


def test_guesses_are_looked_at_where_they_might_hold() -> None:
    guessing = Row([5, 6, 7, 8], 40, [3, 9], wants_logits=True, drafted=3)
    step = make_step(Batch([row(1, 8), guessing, row(9, 0)]), ROOM, staging())
    assert step.recording is None
    assert step.sampled.tolist() == [0, 1, 2, 3, 4, 13]
    assert step.wanted == 6
    assert step.tiles[0].rows.tolist() == [0, 1, 2, 2]


def test_padding_is_nobodys() -> None:
    step = make_step(Batch([row(1, 40), row(1, 8, wants=False), row(1, 5)]), ROOM, staging())
    at = step.places
    assert step.recording == 4
    assert at.rows.tolist() == [0, 1, 2, -1]
    assert at.query_starts.tolist() == [0, 1, 2, 3, 3]
    assert step.tiles[0].rows.tolist() == [0, 1, 2, -1]
    assert (step.sampled.tolist(), step.wanted) == ([0, 2, 0, 0], 2)


def test_the_largest_step_fits_and_a_larger_one_is_our_mistake() -> None:
    full = [row(1, 4095)] * 19 + [row(493, 4096 - 493)]
    make_step(Batch(full), ROOM, staging())
    short = [row(12, 4084)] * 20  # all in thick tiles
    make_step(Batch(short), replace(ROOM, sizes=()), staging())
    with pytest.raises(AssertionError):
        make_step(Batch([row(513, 0)]), ROOM, staging())


def test_memory_is_for_weights_steps_and_then_blocks() -> None:
    def blocks(gib: int, rows: int = 256, guesses: int = 0) -> int:
        return kv_blocks_that_fit(LLAMA_8B, 2, gib << 30, StepBounds(rows, 8192, guesses))

    assert blocks(16) == 0
    assert 0 < blocks(24, guesses=6) < blocks(24) < blocks(24, rows=16) < blocks(80)
    block_bytes = 2 * 32 * 8 * 128 * 2 * BLOCK_TOKENS
    for gib in (24, 80, 141):
        used = blocks(gib) * block_bytes + LLAMA_8B.parameters * 2
        used += step_bytes(LLAMA_8B, 2, StepBounds(256, 8192, 0))
        assert used < 0.98 * (gib << 30)
        assert used > 0.9 * (gib << 30)
