"""The drawing kernel against its twin and against the CPU's sampler, under the interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from executor import sampler
from executor.choice import Ask, is_plain_greedy
from executor.contract import Sampling
from executor.kernels.sampler import rules, sample
from executor.kernels.sampling import draw, draw_twin

KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 20},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.3, "top_p": 0.1},
    {"temperature": 0.9, "min_p": 0.1},
    {"temperature": 1.5, "top_k": 50, "top_p": 0.8, "min_p": 0.02},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.0, "top_p": 0.999999},
    {"temperature": 2.0, "top_k": 100_000},
)


SEEDS = (0, -1, 2**63, 2**64 - 1, 1234567, -(2**63))


def asks(count: int) -> list[Ask]:
    found = []
    for row in range(count):
        sampling = Sampling(**KINDS[row % len(KINDS)], seed=SEEDS[row % len(SEEDS)] + row * 13)
        tokens = list(range(3 + row % 11))
        found.append(Ask(sampling, tokens, 3, plain_greedy=is_plain_greedy(sampling)))
    return found


def logits(rows: int, vocabulary: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, vocabulary, generator=generator) * 3


@pytest.mark.parametrize("vocabulary", (40, 1024, 3001))
def test_a_seed_draws_what_it_draws_on_the_cpu(vocabulary: int) -> None:
    row_count = 2 * len(KINDS) + 1
    x, wanted = logits(row_count, vocabulary, vocabulary), asks(row_count)
    kept = x.clone()
    assert sample(x, wanted) == sampler.sample(x, wanted)
    assert torch.equal(x, kept)


def test_the_twin() -> None:
    x, wanted = logits(len(KINDS), 500, 3), asks(len(KINDS))
    ids = torch.arange(500, dtype=torch.int32)
    noise = torch.stack([sampler.gumbel(ask.sampling.seed, len(ask.tokens), ids) for ask in wanted])
    own = rules(wanted, x.device)
    assert torch.equal(draw(x, own), draw_twin(x, own, noise))


def test_rows_that_hold_no_numbers_and_rows_that_want_more() -> None:
    x = logits(6, 100, 1)
    x[0, 3] = float("nan")
    x[1] = float("-inf")
    x[2, :50] = float("-inf")
    wanted = [
        Ask(Sampling(temperature=0.0), [1], 1, plain_greedy=True),
        Ask(Sampling(temperature=1.0, top_p=0.5, seed=2), [1], 1),
        Ask(Sampling(temperature=1.0, top_k=60, seed=3), [1], 1),
        Ask(Sampling(temperature=1.0, seed=4, logit_bias=((7, 90.0),)), [1], 1),
        Ask(Sampling(temperature=1.0, seed=5, top_logprobs=3), [1], 1),
        Ask(Sampling(temperature=1.0, seed=6), [1], 1, banned=(2,)),
    ]
    found = sample(x, wanted)
    assert found[0].token is None
    assert found[1].token is None
    assert found[2].token is not None
    assert found[2].token >= 50
    assert found[3].token == 7
    assert found[2:] == sampler.sample(x, wanted)[2:]


def test_equal_logits_at_a_border_all_pass() -> None:
    x = torch.zeros(64, 200)
    x[:, 100:] = 1.0
    wanted = [Ask(Sampling(temperature=1.0, top_k=5, seed=seed), [1], 1) for seed in range(64)]
    tokens = {choice.token for choice in sample(x, wanted)}
    assert min(token for token in tokens if token is not None) >= 100
    assert len(tokens) > 20


@pytest.mark.parametrize("rows", (1, 3, 33))
def test_rules_lie_where_the_kernel_was_compiled_for(rows: int) -> None:
    """A pointer that is aligned for some numbers of rows only is another variant, compiled late."""
    own = rules(asks(rows), torch.device("cpu"))
    columns = (own.temperatures, own.top_ks, own.top_ps, own.log_min_ps, own.keys)
    first = own.temperatures.data_ptr()
    assert all((column.data_ptr() - first) % 16 == 0 for column in columns)
    assert all(len(column) >= rows for column in columns)
