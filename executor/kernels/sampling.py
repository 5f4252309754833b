# ruff: noqa: N803 — compile-time constants are in capitals, as everywhere in Triton
"""One token a row: temperature, top-k, min-p, top-p, then the largest of logit + Gumbel noise, where the
noise is the hash of (seed, position, token id) of `executor.sampler`: the same seed draws the same token
here and there.

Nothing is sorted.  A logit is its 32 bits in an order that compares as numbers do; the least that top-k
or top-p lets pass is found digit by digit, 4 bits a pass over the row: 8 passes, exact to the last bit.
Of equal logits at the border all pass, where a sort keeps as many as fit.

Source: sorting-free sampling as in FlashInfer, by radix selection instead of rejection; Gumbel-max:
Maddison et al. 2014.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .lang import jit, launch, tl

BLOCK = 8192  # one program reads a whole row: what is on its way from memory decides
BLOCK_DIGITS = 1024  # where each logit is compared with 16 pivots; more spill registers


@dataclass(frozen=True, slots=True)
class Rules:
    """One entry a row or more, on the logits' device.  A row is greedy where `temperatures` is 0;
    `top_ks` 0, `top_ps` 1, `log_min_ps` −∞: no limit.  `keys` (rows, 2) int32: the two words that
    `executor.sampler.gumbel` makes of seed and position (`sampler.noise_key`)."""

    temperatures: Tensor
    top_ks: Tensor
    top_ps: Tensor
    log_min_ps: Tensor
    keys: Tensor


@jit()
def _ordered(x: tl.tensor) -> tl.tensor:
    """float32 → uint32 that compare alike."""
    bits = x.to(tl.uint32, bitcast=True)
    return tl.where((bits >> 31) != 0, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@jit()
def _noise(token: tl.tensor, first: tl.tensor, second: tl.tensor) -> tl.tensor:
    """`executor.sampler.gumbel`, word for word."""
    x = token.to(tl.uint32) * 0x9E3779B9 + first
    x = (x ^ (x >> 16)) * 0x21F0AAAD + second
    x = (x ^ (x >> 15)) * 0x735A2D97
    x = x ^ (x >> 15)
    uniform = ((x >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07
    return -tl.log(-tl.log(uniform))


@jit()
def _scaled(
    logit_ptr: tl.tensor, token: tl.tensor, temperature: tl.tensor, VOCABULARY: tl.constexpr
) -> tl.tensor:
    x = tl.load(logit_ptr + token, mask=token < VOCABULARY, other=-float("inf"))
    return tl.div_rn(x, tl.zeros_like(x) + temperature)  # exact, or the twin would see others


@jit()
def _least(
    logit_ptr: tl.tensor,
    temperature: tl.tensor,
    floor: tl.tensor,
    top: tl.tensor,
    wanted: tl.tensor,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
    BY_MASS: tl.constexpr,
) -> tl.tensor:
    """The largest key of which it still holds: as many as `wanted` (or as much of the exponentials)
    have it or a larger one, of those that have at least `floor`."""
    found = tl.zeros((), tl.uint32)
    digit = tl.arange(0, 16).to(tl.uint32)
    for step in tl.static_range(8):
        pivot = found + (digit << (28 - 4 * step))
        reached = tl.zeros((16,), tl.float32)
        for start in range(0, VOCABULARY, BLOCK):
            token = start + tl.arange(0, BLOCK)
            x = _scaled(logit_ptr, token, temperature, VOCABULARY)
            key = _ordered(x)
            counts = (token < VOCABULARY) & (key >= floor)
            if BY_MASS:
                worth = tl.where(counts, tl.exp(x - top), 0.0)
            else:
                worth = tl.where(counts, 1.0, 0.0)
            passes = key[None, :] >= pivot[:, None]
            reached += tl.sum(tl.where(passes, worth[None, :], 0.0), 1)
        last = tl.maximum(tl.sum((reached >= wanted).to(tl.int32), 0) - 1, 0)
        found += last.to(tl.uint32) << (28 - 4 * step)
    return found


@jit()
def _sample(
    logit_ptr: tl.tensor,
    temperature_ptr: tl.tensor,
    top_k_ptr: tl.tensor,
    top_p_ptr: tl.tensor,
    log_min_p_ptr: tl.tensor,
    key_ptr: tl.tensor,
    out_ptr: tl.tensor,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
    DIGITS: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    logits = logit_ptr + row.to(tl.int64) * VOCABULARY
    temperature = tl.load(temperature_ptr + row)
    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    log_min_p = tl.load(log_min_p_ptr + row)
    greedy = temperature <= 0.0
    by = tl.where(greedy, 1.0, temperature)

    highest = tl.full((), -float("inf"), tl.float32)
    chosen = tl.zeros((), tl.int32)
    wrong = tl.zeros((), tl.int32)
    for start in range(0, VOCABULARY, BLOCK):
        x = _scaled(logits, start + tl.arange(0, BLOCK), by, VOCABULARY)
        # only what is no number differs from itself
        wrong += tl.sum((x != x).to(tl.int32), 0)  # noqa: PLR0124 — see above
        value, at = tl.max(x, 0, return_indices=True)
        chosen = tl.where(value > highest, start + at, chosen)
        highest = tl.maximum(highest, value)
    if (wrong > 0) | (highest == -float("inf")):
        tl.store(out_ptr + row, -1)
        return
    if greedy:
        tl.store(out_ptr + row, chosen)
        return

    floor = tl.zeros((), tl.uint32)
    if (top_k > 0) & (top_k < VOCABULARY):
        floor = _least(logits, by, floor, highest, top_k.to(tl.float32), VOCABULARY, DIGITS, False)
    if log_min_p > -float("inf"):
        floor = tl.maximum(floor, _ordered(highest + log_min_p))
    if top_p < 1.0:
        mass = tl.zeros((), tl.float32)
        for start in range(0, VOCABULARY, BLOCK):
            x = _scaled(logits, start + tl.arange(0, BLOCK), by, VOCABULARY)
            mass += tl.sum(tl.where(_ordered(x) >= floor, tl.exp(x - highest), 0.0), 0)
        nucleus = _least(logits, by, floor, highest, top_p * mass, VOCABULARY, DIGITS, True)
        floor = tl.maximum(floor, nucleus)

    first = tl.load(key_ptr + 2 * row).to(tl.uint32, bitcast=True)
    second = tl.load(key_ptr + 2 * row + 1).to(tl.uint32, bitcast=True)
    best = tl.full((), -float("inf"), tl.float32)
    for start in range(0, VOCABULARY, BLOCK):
        token = start + tl.arange(0, BLOCK)
        x = _scaled(logits, token, by, VOCABULARY)
        passes = (token < VOCABULARY) & (_ordered(x) >= floor)
        score = tl.where(passes, x + _noise(token, first, second), -float("inf"))
        value, at = tl.max(score, 0, return_indices=True)
        chosen = tl.where(value > best, start + at, chosen)
        best = tl.maximum(best, value)
    tl.store(out_ptr + row, chosen)


def draw(logits: Tensor, rules: Rules) -> Tensor:
    """`logits` (rows, vocabulary) float32 → token ids (rows,) int32, −1 where a row holds no numbers.

    Reads a row once, with a temperature twice (from the cache then), 8 times more for top-k, 9 for
    top-p.  Twin: `draw_twin`, and `executor.sampler.sample`.
    """
    assert logits.is_contiguous()
    assert logits.dtype == torch.float32
    out = torch.empty(len(logits), dtype=torch.int32, device=logits.device)
    launch(
        _sample,
        (len(logits),),
        logits,
        rules.temperatures,
        rules.top_ks,
        rules.top_ps,
        rules.log_min_ps,
        rules.keys,
        out,
        VOCABULARY=logits.shape[1],
        BLOCK=BLOCK,
        DIGITS=BLOCK_DIGITS,
        num_warps=16,
    )
    return out


def draw_twin(logits: Tensor, rules: Rules, noise: Tensor) -> Tensor:
    """By sorting.  `noise` (rows, vocabulary): `executor.sampler.gumbel` of every row's seed, position."""
    found: list[int] = []
    for row, own, temperature, top_k, top_p, log_min_p in zip(
        logits.unbind(),
        noise.unbind(),
        rules.temperatures.tolist(),
        rules.top_ks.tolist(),
        rules.top_ps.tolist(),
        rules.log_min_ps.tolist(),
        strict=False,  # columns may be padded
    ):
        if bool(row.isnan().any()) or bool((row == float("-inf")).all()):
            found.append(-1)
            continue
        if temperature <= 0:
            found.append(int(row.argmax()))
            continue
        x = row / temperature
        least = x.new_tensor(float("-inf"))
        if 0 < top_k < len(x):
            least = x.topk(top_k).values[-1]
        least = torch.maximum(least, x.max() + log_min_p)
        if top_p < 1:
            masses = x.masked_fill(x < least, float("-inf")).softmax(0)
            ordered = masses.sort(descending=True).values
            before = ordered.cumsum(0, dtype=torch.float64) - ordered
            kept = int((before < top_p).sum())
            least = torch.maximum(least, x.sort(descending=True).values[max(kept, 1) - 1])
        found.append(int((x + own).masked_fill(x < least, float("-inf")).argmax()))
    return torch.tensor(found, dtype=torch.int32, device=logits.device)
