"""Rotation, storing, attention and merge against their twins, under the interpreter."""

from __future__ import annotations

import pytest
import torch

from executor.kernels.attention import attend
from executor.kernels.merge import merge
from executor.kernels.places import BLOCK_TOKENS, Tiles
from executor.kernels.rotary import rotate_store, rotate_store_twin, turns, turns_twin
from executor.kernels.twins import attend_twin, merge_twin
from tests.executor.kernels.cases import ints, memory, places, random, tiled

EPS = 1e-6
ROWS = {
    "one": [(1, 1)],
    "decodes": [(1, 40), (1, 33), (1, 128)],
    "mixed": [(1, 70), (1, 31), (7, 7), (19, 50)],
}
HEADS = ((1, 1, 48), (6, 2, 64), (4, 1, 80), (8, 1, 128), (2, 2, 32))


CASES = (
    ("one", 1, None),
    ("decodes", 4, None),
    ("decodes", 1, 40),
    ("mixed", 1, None),
    ("mixed", 4, 5),
)


@pytest.mark.parametrize(("rows", "splits", "window"), CASES)
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_attention(rows: str, heads: tuple[int, int, int], splits: int, window: int | None) -> None:
    count, kv_heads, head_dim = heads
    at = places(ROWS[rows])
    kv = memory(at, kv_heads, head_dim, torch.float32)
    queries = random(int(at.query_starts[-1]), count * head_dim)
    tile = tiled(ROWS[rows], 16, count // kv_heads, splits)
    scale = head_dim**-0.5
    found = attend(queries, kv, at, (tile,), scale=scale, window=window)
    wanted = attend_twin(queries, kv, at, scale=scale, window=window)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("head_dim", "dtype"), ((96, torch.float32), (256, torch.float16)))
def test_thick_tiles_and_thin_ones_together(head_dim: int, dtype: torch.dtype) -> None:
    """float16 stands for bfloat16, which the interpreter cannot multiply."""
    rows = [(1, 300), (70, 110)]
    at = places(rows)
    kv = memory(at, 1, head_dim, dtype)
    queries = random(71, 3 * head_dim, dtype=dtype)
    thin = tiled([(1, 300)], 16, 3, splits=8, keys_min=64)
    thick = tiled(rows, 64, 3)
    only = thick.rows == 1
    thick = Tiles(thick.rows[only], thick.firsts[only], 64, 70, 1, 64)
    found = attend(queries, kv, at, (thin, thick), scale=0.2, window=None)
    wanted = attend_twin(queries, kv, at, scale=0.2, window=None)
    near = 1e-5 if dtype is torch.float32 else 3e-3
    torch.testing.assert_close(found, wanted, rtol=near, atol=near)


def test_a_long_context_split_into_many() -> None:
    rows = [(1, 1500), (1, 17), (2, 700)]
    at = places(rows)
    kv = memory(at, 1, 64, torch.float32)
    queries = random(4, 2 * 64)
    tile = tiled(rows, 16, 2, splits=16, keys_min=64)
    found = attend(queries, kv, at, (tile,), scale=0.3, window=None)
    torch.testing.assert_close(
        found, attend_twin(queries, kv, at, scale=0.3, window=None), rtol=1e-5, atol=1e-5
    )


def test_short_rows_of_a_split_batch_have_nothing_to_merge() -> None:
    """Parts of 64 keys: of the first row there are three, the second is whole in one."""
    rows = [(1, 150), (1, 60)]
    at = places(rows)
    kv = memory(at, 1, 64, torch.float32)
    queries = random(2, 2 * 64)
    tile = tiled(rows, 16, 2, splits=4, keys_min=64)
    found = attend(queries, kv, at, (tile,), scale=0.3, window=None)
    torch.testing.assert_close(
        found, attend_twin(queries, kv, at, scale=0.3, window=None), rtol=1e-5, atol=1e-5
    )


def test_merge_never_reads_a_part_that_saw_nothing() -> None:
    at = places([(2, 64)])
    tile = Tiles(ints([0]), ints([0]), 16, 2, 3, 16)
    parts = random(1, 2, 16, 3, 40)
    weights = random(1, 2, 16, 3, seed=1)
    parts[..., 1, :] = float("nan")
    weights[..., 1] = -float("inf")
    out = torch.zeros(2, 6 * 40)
    merge(parts, weights, out, at, tile)
    merged = merge_twin(parts, weights)[0, :, :6].view(2, 2, 3, 40)  # kv head, query, head
    torch.testing.assert_close(out, merged.transpose(0, 1).reshape(2, -1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("normed", (True, False))
@pytest.mark.parametrize("rotated", (True, False))
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_rotate_and_store(
    heads: tuple[int, int, int], rotated: bool, normed: bool, dtype: torch.dtype
) -> None:
    count, kv_heads, head_dim = heads
    at = places(ROWS["mixed"], padding=3)
    tokens = len(at.positions)
    qkv = random(tokens, (count + 2 * kv_heads) * head_dim, dtype=dtype)
    turned = turns_twin(at.positions, random(head_dim // 2, seed=2).abs()) if rotated else None
    q_norm = random(head_dim, seed=3) if normed else None
    k_norm = random(head_dim, seed=4) if normed else None
    kv = random(len(at.tables), 2 * kv_heads, BLOCK_TOKENS, head_dim, seed=5, dtype=dtype)
    twin = kv.clone()
    found = rotate_store(qkv, turned, q_norm, k_norm, kv, at, count, EPS)
    wanted = rotate_store_twin(qkv, turned, q_norm, k_norm, twin, at, count, EPS)
    near = 1e-5 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(found, wanted, rtol=near, atol=near)
    torch.testing.assert_close(kv, twin, rtol=near, atol=near)


@pytest.mark.parametrize("half", (16, 24, 64))
def test_turns(half: int) -> None:
    positions = ints([0, 1, 77, 8191])
    frequencies = 10_000.0 ** -(torch.arange(half) / half)
    found = turns(positions, frequencies, torch.empty(4, 2 * half), 1.2)
    torch.testing.assert_close(found, turns_twin(positions, frequencies, 1.2), rtol=0, atol=1e-6)
