"""From a batch to tensors, once a step: which token goes where, and which rows attend together.

Decodes are bucketed by length (one batched product each; the longest decides its padding), chunks of
prompts are cut into query tiles, so that a tile multiplies no keys that it could not see anyway.
In invariant mode every query belongs to a tile of TILE_QUERIES positions of its own sequence, aligned
to absolute positions and computed whole: the shape in which a token is computed depends on its
position alone, never on batch mates or chunk borders.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from executor.batch import Batch, Row

from .kv import BLOCK_TOKENS, block_places, token_places
from .linear import TILE_ROWS

TILE_QUERIES = 8  # invariant mode
CHUNK_QUERIES = 256  # fast mode: the score matrix of a tile stays near the cache
BUCKET_WASTE_TOKENS = 1024  # padding worth one more bucket: ~60 µs of calls against 0.06 µs a token


@dataclass(frozen=True, slots=True)
class Group:
    """Queries that attend in one batched product: `rows` sequences with `queries` each.

    `take` and `put` are token indexes; of the result (rows · queries in that order) `valid` go to
    `put`.  A slice where the tokens lie together, so that no copy is made; `valid` None: all."""

    rows: int
    queries: int
    take: Tensor | slice
    put: Tensor | slice
    valid: slice | None
    places: Tensor  # of the blocks to gather
    mask: Tensor  # (rows · kv_heads or 1, group · queries or 1, length): 0 or −inf


@dataclass(frozen=True, slots=True)
class Plan:
    token_ids: Tensor  # (padded,)
    turns: tuple[Tensor, ...]  # one a rope: (padded, heads + 2 · kv_heads, head_dim / 2), complex64
    places: Tensor  # of the new keys and values
    groups: Mapping[int | None, tuple[Group, ...]]  # by window
    sampled: Tensor  # token indexes of the rows that want logits; in invariant mode whole tiles
    wanted: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Shape:
    """What a plan must know of the model."""

    kv_heads: int
    group: int  # query heads a key-value head
    dtype: torch.dtype
    frequencies: tuple[Tensor, ...]  # one a rope
    windows: tuple[int | None, ...]  # the distinct ones of the layers
    invariant: bool
    attention_factors: tuple[float, ...] = ()  # of the ropes; none: all one


def make_plan(batch: Batch, shape: Shape) -> Plan:
    ids: list[int] = []
    positions: list[int] = []
    blocks: list[int] = []
    sampled: list[int] = []
    for row in batch.rows:
        ids.extend(row.tokens)
        positions.extend(range(row.start, row.end))
        blocks.extend(row.blocks[at // BLOCK_TOKENS] for at in range(row.start, row.end))
        sampled.extend(range(len(ids) - row.logit_rows, len(ids)))
    tokens = len(ids)
    padding = [0] * (padded(tokens, invariant=shape.invariant) - tokens)
    where = torch.tensor(positions + padding)
    make = _invariant_groups if shape.invariant else _fast_groups
    samples = torch.tensor(sampled, dtype=torch.int64)
    if shape.invariant:  # the head, too, sees whole tiles only
        samples = functional.pad(samples, (0, -len(sampled) % TILE_ROWS))
    return Plan(
        token_ids=torch.tensor(ids + padding),
        turns=tuple(_turns(where, at, shape) for at in range(len(shape.frequencies))),
        places=token_places(
            torch.tensor(blocks), where[:tokens] % BLOCK_TOKENS, 2 * shape.kv_heads
        ),
        groups={window: tuple(make(batch.rows, shape, window)) for window in shape.windows},
        sampled=samples,
        wanted=len(sampled),
        tokens=tokens,
    )


def _turns(positions: Tensor, rope: int, shape: Shape) -> Tensor:
    """One rotation a pair of features, spread over all heads, so that a layer's queries, keys and
    values take one product; values are turned by nothing."""
    angles = torch.outer(positions.float(), shape.frequencies[rope]).unsqueeze(1)
    turned = angles.expand(-1, (shape.group + 1) * shape.kv_heads, -1)
    still = angles.new_zeros(()).expand(len(positions), shape.kv_heads, angles.shape[2])
    every = torch.cat((turned, still), 1)
    length = torch.ones_like(every)
    if shape.attention_factors:
        length[:, : turned.shape[1]] = shape.attention_factors[rope]
    return torch.polar(length, every)


def padded(tokens: int, *, invariant: bool) -> int:
    """Rows that the linears see.  Few distinct counts, since each costs a kernel to be built."""
    step = TILE_ROWS
    if not invariant:
        step = 1 if tokens <= 2 else 4 if tokens <= 8 else 8 if tokens <= 128 else 32
    return -(-tokens // step) * step


def key_length(end: int) -> int:
    """Keys that a product reads for `end` of them: again few distinct lengths."""
    step = 64 if end <= 512 else 128 if end <= 2048 else 512
    return -(-end // step) * step


def _block_list(row: Row, end: int, length: int) -> list[int]:
    """`length` positions of `row` as blocks; beyond `end` its last one again (masked), so that
    nobody else's memory is ever read."""
    own = list(row.blocks[: -(-end // BLOCK_TOKENS)])
    return own + own[-1:] * (length // BLOCK_TOKENS - len(own))


def _row_places(row: Row, end: int, length: int, shape: Shape) -> Tensor:
    return block_places(torch.tensor(_block_list(row, end, length)), 2 * shape.kv_heads)


def _fast_groups(rows: Sequence[Row], shape: Shape, window: int | None) -> Iterator[Group]:
    singles = [at for at, row in enumerate(rows) if len(row.tokens) == 1]
    firsts: list[int] = []
    at = 0
    for row in rows:
        firsts.append(at)
        at += len(row.tokens)
    for bucket in _buckets([(rows[at].end, at) for at in singles]):
        yield _decode_group(
            [rows[at] for at in bucket], [firsts[at] for at in bucket], shape, window
        )
    for row, first in zip(rows, firsts, strict=True):
        if len(row.tokens) > 1:
            for offset in range(0, len(row.tokens), CHUNK_QUERIES):
                count = min(CHUNK_QUERIES, len(row.tokens) - offset)
                yield _chunk_group(row, first, offset, count, shape, window)


def _buckets(ends: list[tuple[int, int]]) -> Iterator[list[int]]:
    """Rows by falling length, cut where padding would cost more than another call."""
    bucket: list[int] = []
    longest = waste = 0
    for end, at in sorted(ends, reverse=True):
        waste += longest - end if bucket else 0
        if bucket and waste > BUCKET_WASTE_TOKENS:
            yield sorted(bucket)
            bucket, waste = [], 0
        if not bucket:
            longest = end
        bucket.append(at)
    if bucket:
        yield sorted(bucket)


def _decode_group(rows: list[Row], tokens: list[int], shape: Shape, window: int | None) -> Group:
    length = key_length(max(row.end for row in rows))
    blocks = [block for row in rows for block in _block_list(row, row.end, length)]
    ends = torch.tensor([row.end for row in rows])
    hidden = torch.arange(length).unsqueeze(0) >= ends.unsqueeze(1)
    if window is not None:
        hidden |= torch.arange(length).unsqueeze(0) < ends.unsqueeze(1) - window
    mask = torch.zeros(len(rows), 1, length, dtype=shape.dtype)
    mask.masked_fill_(hidden.unsqueeze(1), float("-inf"))
    together = tokens[-1] - tokens[0] == len(tokens) - 1
    which = slice(tokens[0], tokens[-1] + 1) if together else torch.tensor(tokens)
    return Group(
        rows=len(rows),
        queries=1,
        take=which,
        put=which,
        valid=None,
        places=block_places(torch.tensor(blocks), 2 * shape.kv_heads),
        mask=mask.repeat(shape.kv_heads, 1, 1),
    )


def _chunk_group(
    row: Row, first: int, offset: int, count: int, shape: Shape, window: int | None
) -> Group:
    which = slice(first + offset, first + offset + count)
    start = row.start + offset
    length = key_length(start + count)
    return Group(
        rows=1,
        queries=count,
        take=which,
        put=which,
        valid=None,
        places=_row_places(row, start + count, length, shape),
        mask=_causal(start, count, length, shape, window),
    )


def _causal(start: int, count: int, length: int, shape: Shape, window: int | None) -> Tensor:
    """Query i, at position start + i, sees keys 0 … start + i, or the last `window` of these.
    (1, group · count, length)."""
    keys, queries = torch.arange(length), torch.arange(start, start + count).unsqueeze(1)
    hidden = keys > queries
    if window is not None:
        hidden |= keys <= queries - window
    mask = torch.zeros(count, length, dtype=shape.dtype)
    return mask.masked_fill_(hidden, float("-inf")).repeat(shape.group, 1).unsqueeze(0)


def _invariant_groups(rows: Sequence[Row], shape: Shape, window: int | None) -> Iterator[Group]:
    first = 0
    for row in rows:
        for tile in range(row.start // TILE_QUERIES, -(-row.end // TILE_QUERIES)):
            start = tile * TILE_QUERIES
            low, high = max(start, row.start), min(start + TILE_QUERIES, row.end)
            # Positions of the tile that this step does not compute stand in for themselves with any
            # query at hand: their results are dropped, and no other row of a product sees them.
            taken = [
                first + min(max(at, low), high - 1) - row.start
                for at in range(start, start + TILE_QUERIES)
            ]
            length = key_length(start + TILE_QUERIES)
            yield Group(
                rows=1,
                queries=TILE_QUERIES,
                take=torch.tensor(taken),
                put=slice(first + low - row.start, first + high - row.start),
                valid=slice(low - start, high - start),
                places=_row_places(row, high, length, shape),
                mask=_causal(start, TILE_QUERIES, length, shape, window),
            )
        first += len(row.tokens)
