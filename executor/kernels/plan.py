"""What a step's kernels are shaped like: tiles of queries, splits of keys, sizes of recordings.

Pure arithmetic over counts; refuses to know tensors, Triton, devices.  Source: the split heuristics of
Flash-Decoding; capture sizes as in mini-sglang.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

THIN_ROWS = 16  # the least a tensor core takes
THICK_ROWS = 128
THICK_HEAD_BYTES = 256  # wider heads get fewer rows: registers and shared memory are what they are
GROUP_MAX = 32
SPLITS_MIN, SPLITS_MAX = 4, 64
THICK_SPLITS = 8
THIN_TILES_MAX = 2  # a row of more new tokens than fill so many thin tiles gets thick ones
PROGRAMS_A_PROCESSOR = 4  # wanted in flight, so that a wave's tail is short
KEYS_MIN_FEW = 64  # of a part, while processors stand idle
KEYS_MIN_MANY = 1024  # otherwise a part must be worth its merge


@dataclass(frozen=True, slots=True)
class Split:
    """At most `splits` parts, none with fewer than `keys_min` keys."""

    splits: int
    keys_min: int


def thin_rows(group: int) -> int:
    """Rows of a tile of decodes: all query heads of a key-value head."""
    return max(THIN_ROWS, 1 << (group - 1).bit_length())


def thick_rows(group: int, head_bytes: int) -> int:
    """Rows of a tile of a chunk.  `head_bytes`: head_dim · itemsize."""
    rows = THICK_ROWS
    while rows > THIN_ROWS and rows * head_bytes > THICK_ROWS * THICK_HEAD_BYTES:
        rows //= 2
    return max(rows, thin_rows(group))


def tiles(counts: Sequence[tuple[int, int]], queries: int) -> tuple[list[int], list[int]]:
    """(row, its new tokens) → the row and the first token of every tile of that many queries.  The
    last tiles of a long row see the most keys; they come first, so that none is left at the end."""
    rows: list[int] = []
    firsts: list[int] = []
    for row, count in counts:
        at = range(0, count, queries)
        rows.extend([row] * len(at))
        firsts.extend(reversed(at))
    return rows, firsts


def split_thin(tiles: int, kv_heads: int, processors: int, context_tokens: int) -> Split:
    """For decodes; `context_tokens`: the most a row can have.  One part only where no row can be long:
    a batch of many short rows and one long one would wait for it (vLLM issue 48076)."""
    wanted = -(-PROGRAMS_A_PROCESSOR * processors // max(1, tiles * kv_heads))
    keys_min = KEYS_MIN_FEW if wanted > SPLITS_MIN else KEYS_MIN_MANY
    useful = -(-context_tokens // keys_min)
    splits = min(SPLITS_MAX, useful, max(SPLITS_MIN, wanted))
    return Split(splits=1 << (splits.bit_length() - 1), keys_min=keys_min)


def split_thick(tiles: int, kv_heads: int, processors: int, context_tokens: int) -> Split:
    """For chunks: split where half the processors would stand idle, as the end of a long prompt does."""
    idle = 2 * tiles * kv_heads <= processors and context_tokens > KEYS_MIN_MANY
    return Split(splits=THICK_SPLITS if idle else 1, keys_min=KEYS_MIN_MANY)


def recorded_sizes(rows_max: int) -> tuple[int, ...]:
    """Batches of decodes that get a recording, largest first: few below 16, then every 16th."""
    sizes = {size for size in (1, 2, 4, 8) if size < rows_max}
    sizes |= set(range(16, rows_max, 16)) | {rows_max}
    return tuple(sorted(sizes, reverse=True))


def recorded(rows: int, sizes: Sequence[int]) -> int | None:
    """The smallest of `sizes` that holds so many rows."""
    return min((size for size in sizes if size >= rows), default=None)
