from __future__ import annotations

from typing import Any

import torch

from executor.choice import Ask
from executor.contract import Sampling
from executor.sampler import sample

VOCAB = 21


def mask(*tokens: int) -> bytes:
    bits = bytearray(8)  # longer than the vocabulary, as words of a mask may be
    for token in tokens:
        bits[token // 8] |= 1 << token % 8
    return bytes(bits)


def choose(allowed: bytes, banned: tuple[int, ...] = (), **fields: Any) -> tuple[int, Any]:
    raw = torch.arange(VOCAB, dtype=torch.float32)[None] / 4
    ask = Ask(
        sampling=Sampling(**fields),
        tokens=(1,),
        prompt_tokens=1,
        banned=banned,
        allowed=allowed,
    )
    (choice,) = sample(raw, [ask])
    assert choice.token is not None
    return choice.token, choice.logprobs


def test_the_likeliest_of_the_allowed_is_taken() -> None:
    assert choose(mask(0, 7, 8, 19), temperature=0.0)[0] == 19
    assert choose(mask(0, 7, 8), temperature=0.0)[0] == 8
    assert choose(mask(0), temperature=0.0)[0] == 0


def test_a_draw_stays_within_the_allowed_by_every_road() -> None:
    roads: tuple[dict[str, Any], ...] = (
        {},
        {"top_k": 5},
        {"top_p": 0.5},
        {"min_p": 0.2},
        {"logit_bias": ((20, 90.0),)},
        {"temperature": 2.0, "presence_penalty": 1.0},
    )
    for fields in roads:
        for allowed in ((2, 3, 17), tuple(range(1, 18))):  # few, and most
            seen = {choose(mask(*allowed), seed=seed, **fields)[0] for seed in range(40)}
            assert seen <= set(allowed)
            assert 17 in seen


def test_all_allowed_draws_what_is_drawn_without_a_grammar() -> None:
    raw = torch.arange(VOCAB, dtype=torch.float32)[None] / 4
    for seed in range(40):
        sampling = Sampling(seed=seed, temperature=1.5, top_p=0.9)
        (free,) = sample(raw, [Ask(sampling=sampling, tokens=(1,), prompt_tokens=1)])
        assert choose(b"\xff" * 8, seed=seed, temperature=1.5, top_p=0.9)[0] == free.token


def test_a_mask_of_nothing_is_no_token() -> None:
    raw = torch.zeros(1, VOCAB)
    ask = Ask(sampling=Sampling(), tokens=(1,), prompt_tokens=1, allowed=mask())
    assert sample(raw, [ask])[0].token is None


def test_log_probabilities_are_those_of_the_model() -> None:
    _, free = choose(b"\xff" * 8, temperature=0.0, top_logprobs=3)
    token, bound = choose(mask(0), temperature=0.0, top_logprobs=3)
    assert token == 0
    assert bound.top == free.top
    assert bound.chosen.logprob < free.chosen.logprob


def test_a_ban_holds_only_where_the_grammar_leaves_something_else() -> None:
    assert choose(mask(4, 20), banned=(20,), temperature=0.0)[0] == 4
    assert choose(mask(20), banned=(20,), temperature=0.0)[0] == 20
