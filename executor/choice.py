"""What one row of a step asks of the sampler, and what it gets.  No torch here, so that sequences
and schedulers stay importable anywhere (the simulator).

Refuses to know: logits, sequences, requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from executor.contract import Sampling, TokenLogprobs

GREEDY_BELOW: Final = 1e-5


@dataclass(frozen=True, slots=True)
class Ask:
    """What one row wants.  `tokens` are prompt and generated; `banned` may not be drawn yet.
    `allowed`: a grammar's mask, one bit a token id, the lowest bit of a byte first; None: all.
    `plain_greedy`: the largest logit and nothing else is asked."""

    sampling: Sampling
    tokens: Sequence[int]
    prompt_tokens: int
    banned: Sequence[int] = ()
    plain_greedy: bool = False
    allowed: bytes | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """`token` is None where the model gave no numbers (NaN), or the request's own rules left none:
    that request cannot go on."""

    token: int | None
    logprobs: TokenLogprobs | None = None


def is_plain_greedy(sampling: Sampling) -> bool:
    """Whether a row with this needs only the arg-max (as long as nothing is banned)."""
    return is_greedy(sampling) and sampling.top_logprobs is None and not changes_logits(sampling)


def is_greedy(sampling: Sampling) -> bool:
    """A nucleus of nothing, and a candidate list of one, are greedy too."""
    return sampling.temperature < GREEDY_BELOW or sampling.top_p <= 0.0 or sampling.top_k == 1


def changes_logits(sampling: Sampling) -> bool:
    return bool(
        sampling.logit_bias
        or sampling.presence_penalty
        or sampling.frequency_penalty
        or sampling.repetition_penalty != 1.0
    )
