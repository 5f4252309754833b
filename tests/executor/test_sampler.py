from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from executor.choice import Ask, is_plain_greedy
from executor.contract import Sampling
from executor.sampler import gumbel, sample

VOCAB = 50
torch.set_num_threads(1)


def logits(rows: int = 1, seed: int = 1) -> Tensor:
    rng = Random(seed)
    return torch.tensor([[rng.gauss(0, 2) for _ in range(VOCAB)] for _ in range(rows)])


def ask(tokens: Sequence[int] = (1, 2), banned: Sequence[int] = (), **fields: Any) -> Ask:
    sampling = Sampling(**fields)
    return Ask(
        sampling=sampling,
        tokens=tokens,
        prompt_tokens=1,
        banned=banned,
        plain_greedy=is_plain_greedy(sampling) and not banned,
    )


def one(raw: Tensor, want: Ask) -> int:
    (choice,) = sample(raw, [want])
    assert choice.token is not None
    return choice.token


def draws(raw: Tensor, number: int = 150, **fields: Any) -> Counter[int]:
    return Counter(one(raw, ask(seed=seed, **fields)) for seed in range(number))


@pytest.mark.parametrize(
    "fields", ({"temperature": 0.0}, {"temperature": 9e-6}, {"top_p": 0.0}, {"top_k": 1})
)
def test_greedy_takes_the_largest(fields: dict[str, Any]) -> None:
    raw = logits(3)
    choices = sample(raw, [ask(**fields) for _ in range(3)])
    assert [choice.token for choice in choices] == raw.argmax(-1).tolist()


def test_a_draw_does_not_depend_on_batch_mates_or_row() -> None:
    raw = logits(8)
    wants = [ask(seed=i, temperature=1.3, top_p=(1.0, 0.9)[i % 2]) for i in range(8)]
    alone = [one(raw[i : i + 1], wants[i]) for i in range(8)]
    assert [c.token for c in sample(raw, wants)] == alone
    order = [5, 1, 7, 0]
    assert [c.token for c in sample(raw[order], [wants[i] for i in order])] == [
        alone[i] for i in order
    ]


def test_a_draw_depends_on_seed_and_position_only() -> None:
    raw = torch.zeros(1, VOCAB)
    same = {one(raw, ask(tokens, seed=4)) for tokens in ([1, 2, 3], [9, 9, 9])}
    assert len(same) == 1
    assert len({one(raw, ask([1] * n, seed=4)) for n in range(1, 30)}) > 10
    assert len({one(raw, ask(seed=seed)) for seed in range(30)}) > 10


def test_a_last_bit_of_the_logits_changes_no_draw() -> None:
    raw = logits()
    for seed in range(200):
        noisy = raw * (1 + 1e-6 * torch.sign(logits(seed=seed)))
        assert one(raw, ask(seed=seed)) == one(noisy, ask(seed=seed))


def test_draws_follow_the_distribution() -> None:
    raw = logits()
    for temperature in (0.7, 1.5):
        want = (raw[0] / temperature).softmax(0).tolist()
        got = draws(raw, 800, temperature=temperature)
        seen = [(got[i], 800 * p) for i, p in enumerate(want) if p > 6e-3]
        assert sum((was - due) ** 2 / due for was, due in seen) < 2 * len(seen)


def test_the_noise_is_gumbel_and_finite() -> None:
    noise = torch.stack([gumbel(seed, 3, torch.arange(20_000)) for seed in range(5)])
    assert torch.isfinite(noise).all()
    assert abs(float(noise.mean()) - 0.5772) < 0.01
    assert abs(float(noise.var()) - 1.6449) < 0.03
    beside = torch.corrcoef(torch.stack([noise[0], noise[1], noise[0].roll(1)]))
    assert float(beside.fill_diagonal_(0).abs().max()) < 0.03
    assert torch.equal(gumbel(-(2**63), 3, torch.tensor([7])), gumbel(2**63, 3, torch.tensor([7])))


def test_the_extremes_of_the_noise_are_finite() -> None:
    for seed in range(4):
        assert torch.isfinite(gumbel(seed, 0, torch.arange(2**20))).all()


def test_a_draw_is_the_largest_of_logits_and_noise() -> None:
    for seed in range(50):
        raw = logits(seed=seed) * (1 + seed % 7)  # flat and peaked
        noise = gumbel(seed, 2, torch.arange(VOCAB))
        assert one(raw, ask(seed=seed)) == int((raw[0] + noise).argmax())


def test_a_flat_nucleus_is_cut_as_exactly_as_a_peaked_one() -> None:
    for spread in (0.0, 0.1, 3.0, 12.0):
        raw = logits() * spread
        probabilities, order = raw[0].softmax(0).sort(descending=True, stable=True)
        kept = order[(probabilities.double().cumsum(0) - probabilities) < 0.9].tolist()
        assert set(draws(raw, 60, temperature=1.0, top_p=0.9)) <= set(kept)


def test_top_k_and_min_p_cut() -> None:
    raw = logits()
    best = raw[0].topk(3).indices.tolist()
    assert set(draws(raw, temperature=5.0, top_k=3)) == set(best)
    probabilities = (raw[0] / 2).softmax(0)
    kept = (probabilities >= 0.3 * probabilities.max()).nonzero().squeeze(1).tolist()
    assert 1 < len(kept) < VOCAB
    assert set(draws(raw, temperature=2.0, min_p=0.3)) == set(kept)


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    raw = torch.full((1, VOCAB), -20.0)
    raw[0, :4] = torch.tensor([0.5, 0.25, 0.15, 0.1]).log()
    assert set(draws(raw, top_p=0.5)) == {0}
    assert set(draws(raw, top_p=0.51)) == {0, 1}
    assert set(draws(raw, top_p=0.8)) == {0, 1, 2}
    assert set(draws(raw, top_p=0.9999)) == {0, 1, 2, 3}
    assert set(draws(raw, top_p=0.8, top_k=2)) == {0, 1}
    assert set(draws(raw, top_p=1e-9)) == {0}


def test_filters_that_keep_all_change_no_draw() -> None:
    raw = logits()
    for seed in range(50):
        plain = one(raw, ask(seed=seed))
        assert plain == one(raw, ask(seed=seed, top_k=VOCAB, min_p=1e-30, top_p=1 - 1e-12))


def test_penalties() -> None:
    raw = torch.zeros(1, 6)
    raw[0] = torch.tensor([2.0, 1.9, -1.0, -1.1, 0.0, 0.0])
    greedy: dict[str, Any] = {"temperature": 0.0}
    # prompt (0), answer (1, 1)
    assert one(raw, ask([0, 1, 1], **greedy)) == 0
    assert one(raw, ask([1, 0, 4], presence_penalty=0.2, **greedy)) == 1  # 0 was in the answer
    assert one(raw, ask([0, 1, 1], presence_penalty=0.2, **greedy)) == 0  # and here in the prompt
    assert one(raw, ask([1, 0, 0], frequency_penalty=0.06, **greedy)) == 1  # twice 0.06
    assert one(raw, ask([1, 0, 4], frequency_penalty=0.06, **greedy)) == 0
    assert one(raw, ask([0, 4, 4], repetition_penalty=1.1, **greedy)) == 1  # the prompt counts
    only = torch.tensor([[-1.0, -1.05]])
    assert one(only, ask([0], repetition_penalty=1.1, **greedy)) == 1  # a negative one goes down


def test_bias_and_ban() -> None:
    raw = logits()
    greedy: dict[str, Any] = {"temperature": 0.0}
    best, second = raw[0].topk(2).indices.tolist()
    assert one(raw, ask(logit_bias=((7, 100.0),), **greedy)) == 7
    assert one(raw, ask(logit_bias=((best, -100.0),), **greedy)) == second
    assert one(raw, ask(banned=[best], **greedy)) == second
    assert one(raw, ask(banned=[best], logit_bias=((best, 100.0),), **greedy)) == second
    assert best not in draws(raw, banned=[best])


def test_the_logits_stay_as_they_were() -> None:
    raw = logits()
    before = raw.clone()
    one(raw, ask(banned=[1], logit_bias=((2, 5.0),), repetition_penalty=2.0, top_logprobs=3))
    assert torch.equal(raw, before)


def test_logprobs_are_those_of_the_model_itself() -> None:
    raw = logits()
    wanted = raw[0].log_softmax(0)
    (choice,) = sample(
        raw, [ask(temperature=0.3, logit_bias=((7, 100.0),), top_k=2, top_logprobs=3)]
    )
    assert choice.logprobs is not None
    assert choice.token == choice.logprobs.chosen.token == 7
    assert choice.logprobs.chosen.logprob == pytest.approx(float(wanted[7]))
    best = wanted.topk(3)
    assert [top.token for top in choice.logprobs.top] == best.indices.tolist()
    assert [top.logprob for top in choice.logprobs.top] == pytest.approx(best.values.tolist())
    (bare,) = sample(raw, [ask(temperature=0.0, top_logprobs=0)])
    assert bare.logprobs is not None
    assert bare.logprobs.top == ()


def test_a_row_without_numbers_is_told_and_spoils_no_other() -> None:
    raw = logits(3)
    raw[1, 4] = float("nan")
    choices = sample(raw, [ask(temperature=0.0), ask(), ask(temperature=0.0)])
    assert choices[1].token is None
    assert choices[0].token == int(raw[0].argmax())
    assert choices[2].token == int(raw[2].argmax())
