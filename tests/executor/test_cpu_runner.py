"""The CPU runner on a tiny random Llama: any batch composition, any chunking, any blocks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from executor.batch import Batch, Row
from executor.cpu.kv import PagedKv
from executor.cpu.torch_ops import TorchOps
from executor.decoder import Decoder
from executor.model_runner import load
from tests.models import write_tiny_llama

LENGTH = 150


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    before = torch.get_num_threads()
    yield write_tiny_llama(tmp_path_factory.mktemp("tiny") / "m")
    torch.set_num_threads(before)


def runner_of(directory: Path, numerics: str = "fast", dtype: str = "float32") -> Decoder[Any]:
    _, runner = load(directory, numerics=numerics, dtype=dtype, kv_bytes=1 << 20, threads=1)
    assert isinstance(runner, Decoder)
    return runner


def kv_of(runner: Decoder[Any]) -> PagedKv:
    assert isinstance(runner.backend, TorchOps)
    return runner.backend.kv


def _ids(seed: int, count: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(3, 300) for _ in range(count)]


def alone(runner: Decoder[Any], ids: list[int], blocks: list[int]) -> Tensor:
    return runner.run(Batch([Row(ids, 0, blocks, wants_logits=True)]))[0].clone()


def crowded(runner: Decoder[Any], prompts: list[list[int]], seed: int) -> list[Tensor]:
    """The last logits of each prompt, fed in random chunks beside the others, blocks at random."""
    chance = random.Random(seed)
    free = list(range(runner.kv_blocks))
    chance.shuffle(free)
    blocks = [[free.pop() for _ in range(-(-len(ids) // 32))] for ids in prompts]
    done = [0] * len(prompts)
    found: list[Tensor | None] = [None] * len(prompts)
    while any(one is None for one in found):
        rows: list[tuple[int, Row]] = []
        for at, ids in enumerate(prompts):
            if found[at] is None and chance.random() < 0.7:
                left = len(ids) - done[at]
                count = min(left, chance.choice((1, 1, 2, 5, 17, 60)))
                end = done[at] + count
                rows.append((at, Row(ids[done[at] : end], done[at], blocks[at], count == left)))
        if not rows:
            continue
        rows.sort(key=lambda pair: len(pair[1].tokens) > 1)
        logits = iter(runner.run(Batch([row for _, row in rows])).clone())
        for at, row in rows:
            done[at] = row.end
            if row.wants_logits:
                found[at] = next(logits)
    return [one for one in found if one is not None]


PROMPTS = [_ids(seed, count) for seed, count in enumerate((150, 1, 33, 64, 9, 120, 31))]


@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
def test_invariant_logits_are_the_same_bits_in_any_company(directory: Path, dtype: str) -> None:
    runner = runner_of(directory, "invariant", dtype)
    first = [alone(runner, ids, list(range(20, 25))) for ids in PROMPTS]
    for seed in range(3):
        for lone, company in zip(first, crowded(runner, PROMPTS, seed), strict=True):
            assert torch.equal(lone, company)


def test_fast_logits_in_any_company_differ_by_rounding_only(directory: Path) -> None:
    runner = runner_of(directory)
    first = [alone(runner, ids, list(range(20, 25))) for ids in PROMPTS]
    for seed in range(3):
        for lone, company in zip(first, crowded(runner, PROMPTS, seed), strict=True):
            assert float((lone - company).norm() / lone.norm()) < 1e-5


def test_fast_and_invariant_agree(directory: Path) -> None:
    ids = _ids(5, LENGTH)
    fast = alone(runner_of(directory), ids, [3, 1, 4, 15, 9])
    fixed = alone(runner_of(directory, "invariant"), ids, [3, 1, 4, 15, 9])
    assert float((fast - fixed).norm() / fast.norm()) < 1e-5


@pytest.mark.parametrize("numerics", ("fast", "invariant"))
def test_garbage_in_blocks_of_others_changes_nothing(directory: Path, numerics: str) -> None:
    runner = runner_of(directory, numerics)
    prompts = [PROMPTS[0], PROMPTS[2]]
    blocks = [[5, 9, 2, 14, 7], [11, 3]]

    def step() -> Tensor:
        rows = [Row(ids, 0, held, True) for ids, held in zip(prompts, blocks, strict=True)]
        runner.run(Batch(rows))
        more = [Row([8], 150, blocks[0], True), Row([8], 33, blocks[1], True)]
        return runner.run(Batch(more)).clone()

    clean = step()
    with torch.inference_mode():
        for layer in kv_of(runner).by_head:
            layer.fill_(float("nan"))
    runner.zero_blocks([block for held in blocks for block in held])
    assert torch.equal(step(), clean)


def test_a_row_depends_on_its_own_keys(directory: Path) -> None:
    """The counter-check: poison in an owned block is seen, so the test above can fail."""
    runner = runner_of(directory)
    alone(runner, PROMPTS[2], [11, 3])
    with torch.inference_mode():
        kv_of(runner).by_head[1].view(runner.kv_blocks, -1)[11].fill_(float("nan"))
    row = Row([8], 33, [11, 3], wants_logits=True)
    assert bool(runner.run(Batch([row])).isnan().any())


def test_zeroed_blocks_read_zero_and_others_stay(directory: Path) -> None:
    runner = runner_of(directory)
    alone(runner, PROMPTS[0], [0, 1, 2, 3, 4])
    runner.zero_blocks([1, 3])
    for layer in kv_of(runner).by_head:
        by_block = layer.view(runner.kv_blocks, -1)
        assert not by_block[[1, 3]].any()
        assert all(by_block[at].any() for at in (0, 2, 4))


def test_logits_come_in_row_order_and_only_where_wanted(directory: Path) -> None:
    runner = runner_of(directory)
    rows = [
        Row(PROMPTS[1], 0, [0], True),
        Row(PROMPTS[2], 0, [1, 2], False),
        Row(PROMPTS[4], 0, [3], True),
    ]
    found = runner.run(Batch(rows)).clone()
    assert found.shape == (2, runner.vocab_size)
    assert found.dtype == torch.float32
    for logits, ids in zip(found, (PROMPTS[1], PROMPTS[4]), strict=True):
        assert torch.allclose(logits, alone(runner, ids, [8]), atol=1e-4)
    assert runner.run(Batch(rows[1:2])).shape == (0, runner.vocab_size)


def test_many_decodes_of_mixed_length_fall_into_buckets_and_agree(directory: Path) -> None:
    _, runner = load(directory, dtype="float32", kv_bytes=8 << 20, threads=1)
    assert isinstance(runner, Decoder)
    rows, singles = [], []
    for at, length in enumerate([500, 3, 480, 40, 7, 300, 33, 20, 450, 5]):
        held = list(range(at * 16, at * 16 + 16))
        ids = _ids(at, length)
        runner.run(Batch([Row(ids, 0, held, wants_logits=False)]))
        rows.append(Row([9], length, held, wants_logits=True))
        singles.append(runner.run(Batch([rows[-1]]))[0].clone())
    together = runner.run(Batch(rows))
    assert torch.allclose(together, torch.stack(singles), atol=1e-4)
