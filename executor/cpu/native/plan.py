"""From a batch to the arrays that the native kernels read, once a step.

Refuses to know: the model beyond its shape, torch's operations.  `TILE_ROWS`, `SPAN` and the layout
of a task are the kernels' (attention.cpp).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from executor.batch import Batch, Row
from executor.cpu.kv import BLOCK_TOKENS

TILE_ROWS = 48  # query rows a task
SPAN = 512  # keys soft-maxed in one go
_TASK_NUMBERS = 8


@dataclass(frozen=True, slots=True)
class Tasks:
    """Of one window: int32 (n, 8) as `lockgate_task`, and those of them that begin a split tile."""

    tasks: NDArray[np.int32]
    merges: NDArray[np.int32]
    parts: int


@dataclass(frozen=True, slots=True)
class NativePlan:
    token_ids: Tensor
    places: NDArray[np.int32]  # block · 32 + offset of each token
    table: NDArray[np.int32]  # (rows, blocks)
    positions: NDArray[np.int32]
    tasks: dict[int | None, Tasks]
    sampled: Tensor
    wanted: int
    tokens: int


def make_native_plan(batch: Batch, group: int, windows: Sequence[int | None]) -> NativePlan:
    rows = batch.rows
    counts = np.array([len(row.tokens) for row in rows])
    starts = np.array([row.start for row in rows])
    tokens = int(counts.sum())
    firsts = np.cumsum(counts) - counts
    positions = np.arange(tokens) + np.repeat(starts - firsts, counts)
    width = max(-(-row.end // BLOCK_TOKENS) for row in rows)
    table = np.zeros((len(rows), width), np.int32)
    for at, row in enumerate(rows):
        used = -(-row.end // BLOCK_TOKENS)
        assert len(row.blocks) >= used, used  # numpy would spread a single one over all
        table[at, :used] = row.blocks[:used]
    blocks = table[np.repeat(np.arange(len(rows)), counts), positions // BLOCK_TOKENS]
    sampled = [
        at
        for row, end in zip(rows, (firsts + counts).tolist(), strict=True)
        for at in range(end - row.logit_rows, end)
    ]
    return NativePlan(
        token_ids=torch.tensor([token for row in rows for token in row.tokens]),
        places=(blocks * BLOCK_TOKENS + positions % BLOCK_TOKENS).astype(np.int32),
        table=table,
        positions=positions.astype(np.int32),
        tasks={window: make_tasks(rows, group, window) for window in windows},
        sampled=torch.tensor(sampled, dtype=torch.int64),
        wanted=len(sampled),
        tokens=tokens,
    )


def make_tasks(rows: Sequence[Row], group: int, window: int | None) -> Tasks:
    """Tiles of neighbouring queries, in the order of the batch.  A decode over several spans is split, so that two threads can share it."""
    found: list[tuple[int, ...]] = []
    parts = 0
    for first, count, position, row in _tiles(rows, group):
        low = 0 if window is None else max(0, position - window + 1) // SPAN
        spans = (position + count - 1) // SPAN + 1 - low
        if count > 1 or spans == 1:
            found.append((first, count, position, row, low, spans, -1, 0))
            continue
        found += [
            (first, count, position, row, low + span, spans, parts + span, 0)
            for span in range(spans)
        ]
        parts += spans
    merges = [at for at, task in enumerate(found) if task[6] >= 0 and _begins(found, at)]
    tasks = np.array(found, np.int32).reshape(-1, _TASK_NUMBERS)
    return Tasks(tasks, np.array(merges, np.int32), parts)


def _begins(tasks: Sequence[tuple[int, ...]], at: int) -> bool:
    return at == 0 or tasks[at - 1][0] != tasks[at][0]


def _tiles(rows: Sequence[Row], group: int) -> Iterator[tuple[int, int, int, int]]:
    most = max(1, TILE_ROWS // group)
    first = 0
    for at, row in enumerate(rows):
        for offset in range(0, len(row.tokens), most):
            count = min(most, len(row.tokens) - offset)
            yield first + offset, count, row.start + offset, at
        first += len(row.tokens)
