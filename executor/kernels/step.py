"""A batch as the kernels want it: every index of a step in one buffer, copied once, without waiting.

What varies in length (the block tables) comes last, so that all else lies where a recording of that
many rows looks for it.  Refuses to know: models, kernels, what is done with the tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from executor.batch import Batch

from . import plan
from .places import BLOCK_TOKENS, Places, Tiles

ALIGN_WORDS = 32  # 128 bytes: a kernel may rely on what it was compiled for


@dataclass(frozen=True, slots=True)
class Room:
    """What steps are made for.  `processors`: of the device; `sizes`: that have a recording."""

    heads: int
    kv_heads: int
    head_dim: int
    itemsize: int
    context_tokens: int
    tokens_max: int
    rows_max: int
    processors: int
    sizes: tuple[int, ...]

    @property
    def words(self) -> int:
        """Enough for any step of those bounds."""
        blocks = self.rows_max * -(-self.context_tokens // BLOCK_TOKENS)
        sections = 6 * self.tokens_max + 10 * (self.rows_max + 1)
        return sections + blocks + 16 * ALIGN_WORDS


@dataclass(frozen=True, slots=True)
class CudaStep:
    """`recording`: how many rows the recording that can stand for this step has; None: there is none."""

    token_ids: Tensor
    places: Places
    tiles: tuple[Tiles, ...]
    sampled: Tensor
    wanted: int
    recording: int | None


@dataclass(slots=True)
class Staging:
    """Two host buffers in turn, pinned where there is a GPU, and one on the device, which the stream's
    order protects.  A host buffer is written again only after its copy has been made."""

    device: torch.device
    words: int
    there: Tensor = field(init=False)
    here: tuple[Tensor, Tensor] = field(init=False)
    copied: list[torch.cuda.Event | None] = field(init=False)
    turn: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        pin = self.device.type == "cuda"
        self.there = torch.zeros(self.words, dtype=torch.int32, device=self.device)
        self.here = (
            torch.zeros(self.words, dtype=torch.int32, pin_memory=pin),
            torch.zeros(self.words, dtype=torch.int32, pin_memory=pin),
        )
        self.copied = [None, None]

    def send(
        self, parts: Sequence[tuple[Sequence[int] | NDArray[np.int32], int, int]]
    ) -> list[Tensor]:
        """(numbers, how many words they take, what fills the rest) → where they will be."""
        self.turn ^= 1
        event = self.copied[self.turn]
        if event is not None:
            event.synchronize()
        buffer = self.here[self.turn].numpy()
        found: list[Tensor] = []
        at = 0
        for numbers, size, rest in parts:
            end = at + len(numbers)
            assert len(numbers) <= size
            assert at + size <= self.words, "a step exceeds what the backend was made for"
            buffer[at:end] = numbers
            buffer[end : at + size] = rest
            found.append(self.there[at : at + size])
            at += -(-size // ALIGN_WORDS) * ALIGN_WORDS
        self.there[:at].copy_(self.here[self.turn][:at], non_blocking=True)
        if self.device.type == "cuda":
            event = event or torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's own
            event.record()
            self.copied[self.turn] = event
        return found


def _joined(lists: Sequence[Sequence[int]], count: int) -> NDArray[np.int32]:
    return np.fromiter(chain.from_iterable(lists), np.int32, count)


def make_step(batch: Batch, room: Room, staging: Staging) -> CudaStep:
    rows = batch.rows
    counts = [len(row.tokens) for row in rows]
    tokens = sum(counts)
    assert tokens <= room.tokens_max, (tokens, room.tokens_max)
    assert len(rows) <= room.rows_max, (len(rows), room.rows_max)
    recording = plan.recorded(len(rows), room.sizes) if tokens == len(rows) else None
    size, padded = recording or len(rows), recording or tokens

    group = room.heads // room.kv_heads
    thin_rows, thick_rows = (
        plan.thin_rows(group),
        plan.thick_rows(group, room.head_dim * room.itemsize),
    )
    thin_of = thin_rows // group
    thin = [(row, n) for row, n in enumerate(counts) if n <= plan.THIN_TILES_MAX * thin_of]
    thick = [(row, n) for row, n in enumerate(counts) if n > plan.THIN_TILES_MAX * thin_of]
    thin_tiles, thick_tiles = plan.tiles(thin, thin_of), plan.tiles(thick, thick_rows // group)

    tables = [row.blocks[: -(-row.end // BLOCK_TOKENS)] for row in rows]
    lengths = np.cumsum([0, *map(len, tables)])
    starts = np.cumsum([0, *counts])
    ends = np.array([row.end for row in rows])
    owners = np.repeat(np.arange(len(rows)), counts)
    positions = np.arange(tokens) - (starts[1:] - ends)[owners]
    sampled = [
        token
        for row, end in zip(rows, starts[1:].tolist(), strict=True)
        for token in range(end - row.logit_rows, end)
    ]
    taken = size if recording else len(sampled)

    def whole(numbers: NDArray[np.int64]) -> NDArray[np.int32]:
        return numbers.astype(np.int32)

    sent = staging.send(
        (
            (_joined([row.tokens for row in rows], tokens), padded, 0),
            (whole(positions), padded, 0),
            (whole(owners), padded, -1),
            (whole(starts), size + 1, tokens),
            (whole(ends), size, 0),
            (whole(lengths[:-1]), size, 0),
            (sampled, taken, 0),
            (thin_tiles[0], recording or len(thin_tiles[0]), -1),
            (thin_tiles[1], recording or len(thin_tiles[0]), 0),
            (thick_tiles[0], len(thick_tiles[0]), 0),
            (thick_tiles[1], len(thick_tiles[0]), 0),
            (_joined(tables, int(lengths[-1])), int(lengths[-1]), 0),
        )
    )
    ids, at, owner, begin, context, first_block, take, *rest, table = sent
    tiles: list[Tiles] = []
    if thin:
        # Splits are those of a recording of about that size: no other variant is ever compiled.
        like = (
            plan.recorded(len(thin_tiles[0]), plan.recorded_sizes(room.rows_max)) or room.rows_max
        )
        split = plan.split_thin(like, room.kv_heads, room.processors, room.context_tokens)
        most = min(thin_of, max(n for _, n in thin))
        tiles.append(Tiles(rest[0], rest[1], thin_rows, most, split.splits, split.keys_min))
    if thick:
        few = len(thick_tiles[0])
        split = plan.split_thick(few, room.kv_heads, room.processors, room.context_tokens)
        most = min(thick_rows // group, max(n for _, n in thick))
        tiles.append(Tiles(rest[2], rest[3], thick_rows, most, split.splits, split.keys_min))
    return CudaStep(
        token_ids=ids,
        places=Places(at, owner, begin, context, first_block, table),
        tiles=tuple(tiles),
        sampled=take,
        wanted=len(sampled),
        recording=recording,
    )
