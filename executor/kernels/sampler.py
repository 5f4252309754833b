"""`executor.sampler.sample` for logits on a GPU: one kernel and one copy each way for the rows that want
greedy choice or temperature, top-k, top-p, min-p; the others (bias, penalties, grammars, bans,
log-probabilities) go to `executor.sampler`, which runs on any device, row by row.

The same seed draws the same token by either road, but where two logits are equal at a border.
Refuses to know: sequences, requests, the model.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b
from math import inf, log

import numpy as np
import torch
from torch import Tensor

from executor import sampler
from executor.choice import Ask, Choice, changes_logits, is_greedy

from .sampling import Rules, draw

WORDS = 6  # of a row's rules
ALIGN_WORDS = 32  # every column starts where the kernel was compiled for, whatever the rows


def noise_key(seed: int, position: int) -> tuple[int, int]:
    """The two words that key the noise of a token: what `executor.sampler.gumbel` hashes them to."""
    signed = (seed + 2**63) % 2**64 - 2**63
    first, second = struct.unpack(
        "<ii", blake2b(struct.pack(">qq", signed, position), digest_size=8).digest()
    )
    return first, second


def is_plain(ask: Ask) -> bool:
    """Whether the kernel knows everything that the row wants."""
    sampling = ask.sampling
    return ask.plain_greedy or not (
        ask.banned
        or ask.allowed is not None
        or sampling.top_logprobs is not None
        or changes_logits(sampling)
    )


def rules(asks: Sequence[Ask], device: torch.device) -> Rules:
    """One copy, columns padded."""
    size = -(-len(asks) // ALIGN_WORDS) * ALIGN_WORDS
    words = np.zeros((WORDS, size), np.int32)
    reals, keys = words.view(np.float32), words[4:].reshape(size, 2)
    for row, ask in enumerate(asks):
        sampling = ask.sampling
        reals[2, row], reals[3, row] = 1.0, -inf
        if is_greedy(sampling):
            continue
        reals[0, row] = sampling.temperature
        words[1, row] = sampling.top_k or 0
        reals[2, row] = sampling.top_p
        reals[3, row] = log(sampling.min_p) if sampling.min_p > 0 else -inf
        keys[row] = noise_key(sampling.seed, len(ask.tokens))
    host = torch.from_numpy(words)
    if device.type == "cuda":
        host = host.pin_memory()
    there = host.to(device, non_blocking=True)
    floats = there.view(torch.float32)
    return Rules(floats[0], there[1], floats[2], floats[3], there[4:].view(size, 2))


def sample(logits: Tensor, asks: Sequence[Ask]) -> list[Choice]:
    """Choose one token a row; `logits` is (rows, vocabulary), float32, and stays as it was."""
    assert logits.shape[0] == len(asks)
    plain = [row for row, ask in enumerate(asks) if is_plain(ask)]
    found: dict[int, Choice] = {}
    if plain:
        chosen = logits if len(plain) == len(asks) else logits[plain]
        tokens = draw(chosen, rules([asks[row] for row in plain], logits.device))
        for row, token in zip(plain, tokens.tolist(), strict=True):
            found[row] = Choice(token if token >= 0 else None)
    rest = [row for row in range(len(asks)) if row not in found]
    if rest:
        others = sampler.sample(logits[rest], [asks[row] for row in rest])
        found.update(zip(rest, others, strict=True))
    return [found[row] for row in range(len(asks))]
