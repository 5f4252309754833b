"""The arrays that the kernels trust: every query in one task, every key it sees in one span of it."""

from __future__ import annotations

import random

import numpy as np
import pytest

from executor.batch import Batch, Row
from executor.cpu.native.plan import SPAN, TILE_ROWS, make_native_plan, make_tasks

BLOCK = 32


def rows_of(chance: random.Random) -> list[Row]:
    """Decodes, then chunks, over the borders of blocks and spans; blocks in no order."""
    free = list(range(3000))
    chance.shuffle(free)
    found = []
    for at in range(chance.randint(1, 9)):
        end = chance.choice((1, 31, 32, 33, 511, 512, 513, 1024, 1025, chance.randint(1, 3000)))
        count = 1 if at < 4 else min(end, chance.choice((1, 2, 47, 48, 49, 600)))
        blocks = [free.pop() for _ in range(-(-end // BLOCK) + chance.randint(0, 2))]
        wants = chance.random() < 0.5
        found.append(Row([chance.randrange(99) for _ in range(count)], end - count, blocks, wants))
    return sorted(found, key=lambda row: len(row.tokens) > 1)


@pytest.mark.parametrize("window", (None, 1, 5, 512, 513, 600))
@pytest.mark.parametrize("group", (1, 3, 5, 48))
def test_every_query_sees_its_keys_once(group: int, window: int | None) -> None:
    chance = random.Random(f"{group} {window}")
    for _ in range(5):
        rows = rows_of(chance)
        tasks = make_tasks(rows, group, window)
        seen: dict[int, list[int]] = {}  # token → spans
        parts: list[int] = []
        for first, count, position, row, span, spans, part, _ in tasks.tasks.tolist():
            assert count * group <= TILE_ROWS
            begins = sum(len(each.tokens) for each in rows[:row])
            assert rows[row].start + first - begins == position
            assert first + count <= begins + len(rows[row].tokens)
            for token in range(first, first + count):
                mine = range(span, span + (spans if part < 0 else 1))
                seen.setdefault(token, []).extend(mine)
                here = position + token - first
                assert part >= 0 or here // SPAN < span + spans
            if part >= 0:
                assert count == 1
                parts.append(part)
        assert parts == list(range(tasks.parts))
        at = 0
        for each in rows:
            for position in range(each.start, each.end):
                low = 0 if window is None else max(0, position - window + 1)
                spans_seen = seen.pop(at)
                assert len(set(spans_seen)) == len(spans_seen)
                assert set(range(low // SPAN, position // SPAN + 1)) <= set(spans_seen)
                at += 1
        assert not seen


@pytest.mark.parametrize("window", (None, 600))
def test_a_split_tile_is_merged_from_all_its_parts(window: int | None) -> None:
    chance = random.Random(3)
    for _ in range(20):
        tasks = make_tasks(rows_of(chance), 3, window)
        rest = list(range(tasks.parts))
        for at in tasks.merges.tolist():
            first, _, _, _, span, spans, part, _ = tasks.tasks[at].tolist()
            for n in range(spans):
                assert tasks.tasks[at + n][[0, 4, 6]].tolist() == [first, span + n, part + n]
                rest.remove(part + n)
        assert rest == []


def test_places_and_positions_are_each_token_s() -> None:
    chance = random.Random(4)
    for _ in range(10):
        rows = rows_of(chance)
        plan = make_native_plan(Batch(rows), 2, (None, 5))
        where = [(row, p) for row in rows for p in range(row.start, row.end)]
        assert plan.positions.tolist() == [p for _, p in where]
        assert plan.places.tolist() == [
            row.blocks[p // BLOCK] * BLOCK + p % BLOCK for row, p in where
        ]
        assert plan.token_ids.tolist() == [token for row in rows for token in row.tokens]
        for at, row in enumerate(rows):
            used = -(-row.end // BLOCK)
            assert plan.table[at, :used].tolist() == list(row.blocks[:used])
        ends = [sum(len(row.tokens) for row in rows[: at + 1]) for at in range(len(rows))]
        asked = [end - 1 for row, end in zip(rows, ends, strict=True) if row.wants_logits]
        assert plan.sampled.tolist() == asked
        assert plan.wanted == len(asked)
        of_all = [part for window in plan.tasks.values() for part in (window.tasks, window.merges)]
        for array in (plan.places, plan.positions, plan.table, *of_all):
            assert array.dtype == np.int32
            assert array.flags.c_contiguous
