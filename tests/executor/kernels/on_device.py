"""Every kernel against its twin on a device, in the shapes and the type that are served there.

The interpreter has checked the odd shapes (`interpreted/`); this looks for what only a GPU does:
tensor cores, asynchronous copies, its own exponentials.  `python -m tests.bench.gpu` runs it first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from executor import sampler
from executor.choice import Ask, is_plain_greedy
from executor.contract import Sampling
from executor.kernels import plan
from executor.kernels.attention import attend
from executor.kernels.gate import gated, gated_twin
from executor.kernels.norm import add_norm, add_norm_twin
from executor.kernels.rotary import rotate_store, rotate_store_twin, turns, turns_twin
from executor.kernels.sampler import sample
from executor.kernels.twins import attend_twin
from executor.kernels.zero import zero_blocks, zero_blocks_twin
from executor.model.config import Activation
from tests.executor.kernels.cases import Rows, ints, memory, places, random, tiled


@dataclass(frozen=True)
class Check:
    kernel: str
    shape: str
    worst: float  # of |kernel − twin| / (1 + |twin|); tokens that differ, for the sampler
    bound: float

    @property
    def holds(self) -> bool:
        return self.worst <= self.bound


@dataclass(frozen=True)
class Bench:
    """Where and in which type.  `small`: for an interpreter's patience."""

    device: torch.device
    dtype: torch.dtype
    small: bool

    @property
    def bound(self) -> float:
        return 1e-4 if self.dtype is torch.float32 else 2e-2


HEADS = ((32, 8, 128, None), (9, 3, 64, None), (8, 4, 256, 700), (32, 32, 80, None))
LONG: Rows = [(1, 1), (1, 33), (1, 1000), (1, 5003), (3, 2050)]
MIXED: Rows = [(1, 1500), (700, 2900), (40, 40)]


def checks(bench: Bench) -> Iterator[Check]:
    yield from _norms(bench)
    yield from _gates(bench)
    yield from _rotations(bench)
    yield from _attentions(bench)
    yield _draws(bench)
    yield _wipe(bench)


def _far(found: Tensor, wanted: Tensor) -> float:
    near = (found.float() - wanted.float()).abs() / (1 + wanted.float().abs())
    return float(near.max()) if bool(near.isfinite().all()) else float("inf")


def _norms(bench: Bench) -> Iterator[Check]:
    for rows, columns in ((3, 96), (2, 130)) if bench.small else ((300, 4096), (7, 5376), (1, 576)):
        for after in (None, random(columns, seed=2, device=bench.device)):
            x = random(rows, columns, device=bench.device)
            twin = x.clone()
            delta = random(rows, columns, seed=1, dtype=bench.dtype, device=bench.device)
            weight = random(columns, seed=3, device=bench.device)
            found = add_norm(x, delta, after, weight, 1e-5, bench.dtype)
            wanted = add_norm_twin(twin, delta, after, weight, 1e-5, bench.dtype)
            worst = max(_far(found, wanted), _far(x, twin))
            yield Check("add_norm", f"{rows} by {columns}", worst, bench.bound)


def _gates(bench: Bench) -> Iterator[Check]:
    rows, inner = (3, 100) if bench.small else (300, 14336)
    for activation in Activation:
        both = random(rows, 2 * inner, dtype=bench.dtype, device=bench.device)
        worst = _far(gated(both, activation), gated_twin(both, activation))
        yield Check("gate", f"{activation.value}, {rows} by {inner}", worst, bench.bound)


def _rotations(bench: Bench) -> Iterator[Check]:
    for heads, kv_heads, head_dim, _ in HEADS[1:2] if bench.small else HEADS:
        at = places([(1, 40), (5, 70)] if bench.small else MIXED, padding=2, device=bench.device)
        each = 10_000.0 ** -(torch.arange(head_dim // 2, device=bench.device) * 2 / head_dim)
        out = torch.empty(len(at.positions), head_dim, device=bench.device)
        turned, wanted = turns(at.positions, each, out), turns_twin(at.positions, each)
        yield Check("turns", f"{len(out)} by {head_dim}", _far(turned, wanted), 1e-5)
        width = (heads + 2 * kv_heads) * head_dim
        qkv = random(len(out), width, dtype=bench.dtype, device=bench.device)
        weight = random(head_dim, seed=3, device=bench.device)
        kv = torch.zeros(
            len(at.tables), 2 * kv_heads, 32, head_dim, dtype=bench.dtype, device=bench.device
        )
        twin = kv.clone()
        found = rotate_store(qkv, turned, weight, weight, kv, at, heads, 1e-6)
        queries = rotate_store_twin(qkv, turned, weight, weight, twin, at, heads, 1e-6)
        worst = max(_far(found, queries), _far(kv, twin))
        yield Check("rotate_store", f"{heads}/{kv_heads}/{head_dim}", worst, bench.bound)


def _attentions(bench: Bench) -> Iterator[Check]:
    for heads, kv_heads, head_dim, window in HEADS[1:2] if bench.small else HEADS:
        group = heads // kv_heads
        thin, thick = plan.thin_rows(group), plan.thick_rows(group, head_dim * bench.dtype.itemsize)
        cases: tuple[tuple[str, Rows, int, int], ...] = (
            ("decodes", LONG, thin, 1),
            ("decodes, 16 splits", LONG, thin, 16),
            ("chunks", MIXED, thick, 1),
            ("chunks, 8 splits", MIXED, thick, 8),
        )
        if bench.small:
            cases = (("decodes, 4 splits", [(1, 90), (2, 40)], thin, 4),)
        for name, rows, size, splits in cases:
            at = places(rows, device=bench.device)
            kv = memory(at, kv_heads, head_dim, bench.dtype)
            tokens = sum(count for count, _ in rows)
            queries = random(tokens, heads * head_dim, dtype=bench.dtype, device=bench.device)
            tiles = tiled(rows, size, group, splits, 64, bench.device)
            scale = head_dim**-0.5
            found = attend(queries, kv, at, (tiles,), scale=scale, window=window)
            wanted = attend_twin(queries, kv, at, scale=scale, window=window)
            shape = f"{name}, {heads}/{kv_heads}/{head_dim}" + (f", window {window}" * bool(window))
            yield Check("attend", shape, _far(found, wanted), bench.bound)


RULES: tuple[Callable[[int], Sampling], ...] = (
    lambda seed: Sampling(temperature=0.0, seed=seed),
    lambda seed: Sampling(temperature=1.0, seed=seed),
    lambda seed: Sampling(temperature=0.8, top_p=0.95, seed=seed),
    lambda seed: Sampling(temperature=1.2, top_k=50, min_p=0.01, seed=seed),
)


def _draws(bench: Bench) -> Check:
    """Against the CPU's sampler: one token in 200 may lie on a border that rounding moves."""
    rows, vocabulary = (8, 900) if bench.small else (200, 128_256)
    logits = random(rows, vocabulary) * 4
    asks = []
    for row in range(rows):
        sampling = RULES[row % len(RULES)](row)
        asks.append(Ask(sampling, [1, 2], 2, plain_greedy=is_plain_greedy(sampling)))
    found, wanted = sample(logits.to(bench.device), asks), sampler.sample(logits, asks)
    differ = sum(a != b for a, b in zip(found, wanted, strict=True))
    return Check("draw", f"{rows} by {vocabulary}", differ, rows // 200)


def _wipe(bench: Bench) -> Check:
    kv = random(3, 9, 4, 32, 64, dtype=bench.dtype, device=bench.device)
    twin, blocks = kv.clone(), ints([8, 0, 5], bench.device)
    zero_blocks(kv, blocks)
    zero_blocks_twin(twin, blocks)
    return Check("zero", "3 of 9 blocks", _far(kv, twin), 0.0)
