"""Native sampling draws what its twin draws, number for number."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch
from torch import Tensor

from executor.choice import Ask, is_plain_greedy
from executor.contract import Sampling
from executor.cpu.native.sampling import sample_natively
from executor.sampler import sample

INF = float("inf")
WISHES: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {},
    {"temperature": 0.3},
    {"temperature": 5.0},
    {"top_k": 7},
    {"top_k": 10_000_000, "temperature": 2.0},
    {"top_k": 1 << 40},
    {"top_p": 0.9},
    {"top_p": 0.3, "temperature": 1.5},
    {"top_p": 0.9999},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"top_k": 40, "top_p": 0.8, "temperature": 1.2},
    {"top_k": 40, "top_p": 0.95, "min_p": 0.02},
    {"top_p": 0.0},
)


def asks(rows: int, fields: dict[str, Any]) -> list[Ask]:
    return [
        Ask(
            sampling=(each := Sampling(**fields, seed=9000 + row)),
            tokens=[1] * (3 + row % 5),
            prompt_tokens=1,
            plain_greedy=is_plain_greedy(each),
        )
        for row in range(rows)
    ]


def drawn(rows: int, vocabulary: int, size: float = 3.0) -> Tensor:
    random = torch.Generator().manual_seed(vocabulary)
    return torch.randn(rows, vocabulary, generator=random).mul(size)


def differing(kernels: ctypes.CDLL, logits: Tensor, fields: dict[str, Any]) -> int:
    wanted = asks(len(logits), fields)
    before = logits.clone()
    found = sample_natively(kernels, logits, wanted)
    assert torch.equal(logits.nan_to_num(7.0), before.nan_to_num(7.0))
    return sum(a != b for a, b in zip(found, sample(logits, wanted), strict=True))


@pytest.mark.parametrize("fields", WISHES, ids=str)
def test_tokens_are_the_twin_s(kernels: ctypes.CDLL, fields: dict[str, Any]) -> None:
    for vocabulary in (1, 15, 16, 17, 1003):
        for size in (0.0, 3.0):
            if size == 0.0 and "top_k" in fields:
                continue  # which of equals are the k likeliest is anybody's choice
            # A last bit decides between two tokens once in some 10⁵ draws.
            assert differing(kernels, drawn(8, vocabulary, size), fields) == 0


@pytest.mark.slow
@pytest.mark.parametrize("fields", WISHES, ids=str)
def test_tokens_of_a_large_vocabulary_are_the_twin_s(
    kernels: ctypes.CDLL, fields: dict[str, Any]
) -> None:
    assert differing(kernels, drawn(150, 49_157), fields) <= 1


@pytest.mark.parametrize("fields", WISHES, ids=str)
def test_broken_rows_end_alone(kernels: ctypes.CDLL, fields: dict[str, Any]) -> None:
    logits = drawn(8, 301)
    clean = sample_natively(kernels, logits, asks(8, fields))
    logits[1, 300] = float("nan")
    logits[3] = float("nan")
    logits[4, 5] = INF
    logits[6, :290] = -INF
    found = sample_natively(kernels, logits, asks(8, fields))
    assert [row for row, choice in enumerate(found) if choice.token is None] == [1, 3]
    assert found[4].token == 5
    assert found[6].token is not None
    assert found[6].token >= 290
    assert [found[row] for row in (0, 2, 5, 7)] == [clean[row] for row in (0, 2, 5, 7)]


def test_rows_with_rules_of_their_own_go_to_the_twin(kernels: ctypes.CDLL) -> None:
    logits = drawn(6, 301)
    wishes: tuple[dict[str, Any], ...] = (
        {"presence_penalty": 1.0},
        {"logit_bias": ((5, 100.0),)},
        {"top_logprobs": 3},
        {"repetition_penalty": 1.5, "temperature": 0.0},
        {},
        {"temperature": 0.0},
    )
    wanted = [asks(1, fields)[0] for fields in wishes]
    assert sample_natively(kernels, logits, wanted) == sample(logits, wanted)
