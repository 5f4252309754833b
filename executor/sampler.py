"""From logits to token ids: one step's rows, each by its own rules.

Randomness is counter-based: the noise of (seed, position, token id) is a hash of these three, so a
request draws the same token alone, in any row of any batch, in any chunking and after a preemption.
The draw is Gumbel-max: noise belongs to token ids, so logits that differ in the last bit (another
batch, another layout) almost never draw another token, which cannot be said of inverting a
cumulative sum.  The hash is the 32-bit finaliser of C. Wellons ("lowbias32"), keyed twice.

Refuses to know: sequences, requests, the model.  Everything is float32, row by row: on a CPU a row
of 50,000 logits stays in the cache.  Runs on whatever device the logits are on.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b
from math import isnan, log

import numpy as np
import torch
from torch import Tensor

from executor.choice import Ask, Choice, changes_logits, is_greedy
from executor.contract import Logprob, TokenLogprobs

_FEW = 4
"""Where fewer than one in this many tokens are allowed, only they are looked at."""


def sample(logits: Tensor, asks: Sequence[Ask]) -> list[Choice]:
    """Choose one token a row; `logits` is (rows, vocabulary), float32, and stays as it was."""
    assert logits.shape[0] == len(asks)
    assert logits.dtype == torch.float32
    best, likeliest = logits.max(dim=-1)  # NaN if any is
    values, tokens = best.tolist(), likeliest.tolist()
    return [
        Choice(None)
        if isnan(values[i])
        else Choice(tokens[i])
        if ask.plain_greedy
        else choose_alone(logits[i], ask)
        for i, ask in enumerate(asks)
    ]


def choose_alone(raw: Tensor, ask: Ask) -> Choice:
    """One row.  Whatever a request's rules do to it, the rows beside it are sampled (P14)."""
    try:
        return _choose(raw, ask)
    except (ArithmeticError, LookupError, RuntimeError, ValueError):
        return Choice(None)


def _choose(raw: Tensor, ask: Ask) -> Choice:
    sampling = ask.sampling
    row = _adjusted(raw, ask)
    row, ids = _within(row, ask)
    token = _likeliest(row, ids) if is_greedy(sampling) else _draw(row, ids, ask)
    if sampling.top_logprobs is None:
        return Choice(token)
    return Choice(token, _logprobs(raw, token, sampling.top_logprobs))


def _adjusted(raw: Tensor, ask: Ask) -> Tensor:
    """Bias, then penalties (repetition over prompt and answer, as Hugging Face has it; presence and
    frequency over the answer, as OpenAI has it), then the ban.  A copy if anything changes."""
    sampling = ask.sampling
    banned = () if ask.allowed is not None else ask.banned
    if not banned and not changes_logits(sampling):
        return raw
    row = raw.clone()
    if sampling.logit_bias:
        bias = dict(sampling.logit_bias)
        at = _ids(list(bias), row)
        row[at] += torch.tensor(list(bias.values()), dtype=row.dtype, device=row.device)
    if sampling.repetition_penalty != 1.0:
        at = _ids(list(set(ask.tokens)), row)
        seen, by = row[at], sampling.repetition_penalty
        row[at] = torch.where(seen > 0, seen / by, seen * by)
    if sampling.presence_penalty or sampling.frequency_penalty:
        answer = _ids(ask.tokens[ask.prompt_tokens :], row)
        if len(answer):
            at, counts = torch.unique(answer, return_counts=True)
            row[at] -= sampling.presence_penalty + sampling.frequency_penalty * counts
    if banned:
        row[_ids(banned, row)] = -torch.inf
    return row


def _within(row: Tensor, ask: Ask) -> tuple[Tensor, Tensor | None]:
    """What a grammar leaves of `row`: a few entries with their ids, or the whole row with the others
    at minus infinity.  Less what is banned, if anything is left then; if not, the grammar wins."""
    if ask.allowed is None:
        return row, None
    bits = np.unpackbits(np.frombuffer(ask.allowed, np.uint8), count=len(row), bitorder="little")
    if ask.banned:
        kept = bits.copy()
        kept[list(ask.banned)] = 0
        bits = kept if kept.any() else bits
    if np.count_nonzero(bits) * _FEW < len(row):
        ids = torch.from_numpy(np.flatnonzero(bits)).to(row.device)
        return row[ids], ids
    mask = torch.from_numpy(bits.view(np.bool_)).to(row.device)
    return row.where(mask, -torch.inf), None


def _likeliest(row: Tensor, ids: Tensor | None) -> int:
    at = row.argmax()
    return int(at if ids is None else ids[at])


def _draw(row: Tensor, ids: Tensor | None, ask: Ask) -> int:
    """`ids` are those of `row`'s entries; None: all, in order."""
    sampling = ask.sampling
    scaled = row / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < len(scaled):
        scaled, best = scaled.topk(sampling.top_k)
        ids = best if ids is None else ids[best]
    if sampling.min_p > 0.0:
        scaled, ids = _keep(scaled, ids, scaled >= scaled.max() + log(sampling.min_p))
    if sampling.top_p < 1.0:
        scaled, ids = _nucleus(scaled, ids, sampling.top_p)
    if ids is None:
        ids = torch.arange(len(scaled), dtype=torch.int32, device=scaled.device)
    noisy = gumbel(sampling.seed, len(ask.tokens), ids).add_(scaled)
    return int(ids[noisy.argmax()])


def _nucleus(scaled: Tensor, ids: Tensor | None, top_p: float) -> tuple[Tensor, Tensor]:
    """The likeliest tokens that together reach `top_p`.  Only a head of the distribution that
    surely holds them is sorted: one that has more than `top_p` of the mass, or else all but those
    below (1 − p)/n, who cannot be among them even all together."""
    probabilities = scaled.softmax(0)
    likely = (probabilities >= probabilities.max() * 1e-3).nonzero().squeeze(1)
    if float(probabilities[likely].sum()) < top_p + 1e-4:
        floor = (1.0 - top_p) / (2 * len(scaled))  # half: rounding may not decide
        likely = (probabilities >= floor).nonzero().squeeze(1)
    ordered, order = probabilities[likely].sort(descending=True, stable=True)
    before = ordered.cumsum(0, dtype=torch.float64) - ordered
    kept = likely[order[before < top_p]]
    return scaled[kept], kept if ids is None else ids[kept]


def _keep(scaled: Tensor, ids: Tensor | None, mask: Tensor) -> tuple[Tensor, Tensor]:
    kept = mask.nonzero().squeeze(1)
    return scaled[kept], kept if ids is None else ids[kept]


def gumbel(seed: int, position: int, ids: Tensor) -> Tensor:
    """Standard Gumbel noise for token `ids` at `position`: a pure function of all three."""
    first, second = noise_key(seed, position)
    x = ids.to(torch.int32) * -1640531527  # 0x9E3779B9; products wrap around, as they should
    x.add_(first)
    x.bitwise_xor_(_shift(x, 16)).mul_(0x21F0AAAD).add_(second)
    x.bitwise_xor_(_shift(x, 15)).mul_(0x735A2D97)
    x.bitwise_xor_(_shift(x, 15))
    # 23 bits and a half are exact in float32, so the uniform is never 0 nor 1
    uniform = _shift(x, 9).to(torch.float32).add_(0.5).mul_(2.0**-23)
    return uniform.log_().neg_().log_().neg_()


def noise_key(seed: int, position: int) -> tuple[int, int]:
    """Two signed 32-bit numbers that key the hash of token ids."""
    key = struct.pack(">qq", _signed64(seed), position)
    first, second = struct.unpack("<ii", blake2b(key, digest_size=8).digest())
    return first, second


def _shift(x: Tensor, bits: int) -> Tensor:
    """A logical right shift of int32, which torch has only for signed numbers."""
    return (x >> bits).bitwise_and_((1 << (32 - bits)) - 1)


def _signed64(seed: int) -> int:
    return (seed + 2**63) % 2**64 - 2**63


def _logprobs(raw: Tensor, token: int, top: int) -> TokenLogprobs:
    """Under the model's own distribution: before bias, penalties, temperature and truncation."""
    values = raw.log_softmax(0)
    chosen = Logprob(token, float(values[token]))
    if not top:
        return TokenLogprobs(chosen)
    best, ids = values.topk(min(top, len(values)))
    return TokenLogprobs(
        chosen,
        tuple(Logprob(i, v) for i, v in zip(ids.tolist(), best.tolist(), strict=True)),
    )


def _ids(tokens: Sequence[int], row: Tensor) -> Tensor:
    return torch.tensor(tokens, dtype=torch.int64, device=row.device)
