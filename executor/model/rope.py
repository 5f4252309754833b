"""The frequencies of the rotary position embedding, in float32 and in the order of operations of the
reference, so that angles agree to the last bit.

Source: Su et al. 2021 (RoFormer) §3.2.2; Peng et al. 2023 (YaRN) §3; transformers' `modeling_rope_utils`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .config import Rope, RopeKind


def frequencies(rope: Rope, head_dim: int, divisors: Tensor | None = None) -> Tensor:
    """Radians a position, one a pair of features: (head_dim / 2,), float32.  What cosines and sines
    are multiplied by beside is `rope.attention_factor`."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).to(torch.float32) / head_dim
    plain = 1.0 / (rope.theta**exponents)
    if rope.kind is RopeKind.LINEAR:
        return plain / rope.factor
    if rope.kind is RopeKind.LLAMA3:
        return _llama3(rope, plain)
    if rope.kind is RopeKind.YARN:
        return _yarn(rope, rope.theta**exponents)
    if rope.kind is RopeKind.DIVISORS:
        assert divisors is not None  # weights.py has read and checked them
        return plain / divisors
    return plain


def _llama3(rope: Rope, plain: Tensor) -> Tensor:
    """Long waves are slowed by `factor`, short ones kept, those between blended."""
    context, low, high = rope.original_context_tokens, rope.low_freq_factor, rope.high_freq_factor
    wavelengths = 2 * math.pi / plain
    slowed = torch.where(wavelengths > context / low, plain / rope.factor, plain)
    smooth = (context / wavelengths - low) / (high - low)
    blended = (1 - smooth) * slowed / rope.factor + smooth * slowed
    between = (wavelengths <= context / low) & (wavelengths >= context / high)
    return torch.where(between, blended, slowed)


def _yarn(rope: Rope, periods: Tensor) -> Tensor:
    """Features that turn more than `beta_fast` times within the original context are kept, those that
    turn less than `beta_slow` times are slowed by `factor`, with a ramp between."""
    count = len(periods)

    def feature(turns: float) -> float:
        """Which feature turns so often, as a fraction."""
        longest = rope.original_context_tokens / (turns * 2 * math.pi)
        return 2 * count * math.log(longest) / (2 * math.log(rope.theta))

    low, high = feature(rope.beta_fast), feature(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * count - 1)
    width = high - low if high != low else 0.001  # no band: a step
    ramp = torch.clamp((torch.arange(count, dtype=torch.float32) - low) / width, 0, 1)
    kept = 1 - ramp
    return 1.0 / (rope.factor * periods) * (1 - kept) + 1.0 / periods * kept
