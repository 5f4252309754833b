"""The usual rows of a step sampled in C++, all in one call; the others row by row in torch.

Usual: greedy, or drawn with any temperature, top-k, min-p and top-p.  A row with penalties, a bias, a
ban, a grammar or log-probabilities goes to `executor.sampler`, the twin of this.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from math import inf, log

import numpy as np
from torch import Tensor

from executor.choice import Ask, Choice, changes_logits, is_greedy
from executor.sampler import choose_alone, noise_key

_TOP_K_MAX = 1 << 30  # more than any vocabulary, and an int32
_WISH = np.dtype(
    [
        ("draw", np.int32),
        ("temperature", np.float32),
        ("top_k", np.int32),
        ("top_p", np.float32),
        ("min_gap", np.float32),
        ("first", np.int32),
        ("second", np.int32),
        ("unused", np.int32),
    ]
)


def sample_natively(library: ctypes.CDLL, logits: Tensor, asks: Sequence[Ask]) -> list[Choice]:
    """One token a row of `logits` (rows, vocabulary), float32, contiguous; they stay as they were."""
    rows, vocabulary = logits.shape
    assert rows == len(asks)
    assert logits.is_contiguous()
    wishes = np.zeros(rows, _WISH)
    for at, ask in enumerate(asks):
        if _is_usual(ask) and not is_greedy(ask.sampling):
            wishes[at] = _wish(ask)
    tokens = np.empty(rows, np.int32)
    library.lockgate_sample(
        logits.data_ptr(), rows, vocabulary, wishes.ctypes.data, tokens.ctypes.data
    )
    return [
        Choice(None)
        if token < 0
        else Choice(token)
        if _is_usual(ask)
        else choose_alone(logits[at], ask)
        for at, (token, ask) in enumerate(zip(tokens.tolist(), asks, strict=True))
    ]


def _is_usual(ask: Ask) -> bool:
    if ask.plain_greedy:
        return True
    return (
        not ask.banned
        and ask.allowed is None
        and ask.sampling.top_logprobs is None
        and not changes_logits(ask.sampling)
    )


def _wish(ask: Ask) -> tuple[float, ...]:
    sampling = ask.sampling
    gap = log(sampling.min_p) if sampling.min_p > 0.0 else -inf
    first, second = noise_key(sampling.seed, len(ask.tokens))
    top_k = min(sampling.top_k or 0, _TOP_K_MAX)
    return 1, sampling.temperature, top_k, sampling.top_p, gap, first, second, 0
