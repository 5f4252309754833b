"""Every family against transformers, on tiny random models: logits and greedy text, alone, in chunks,
in company, put out and computed again, in both numerics; from directories and from GGUF files.

The norm and the bars are those of `test_numerics`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from executor.batch import Batch, Row, Runner
from executor.model_runner import load
from tests.executor.families import VARIANTS, Kind, write_family, write_family_gguf
from tests.executor.test_numerics import FLOAT32_ERROR_MAX, error, prefix_logits
from tests.models import write_json

LENGTH, NEW_TOKENS, KV_BYTES = 150, 10, 4 << 20
BFLOAT16_ERROR_MAX = 4e-2  # four layers of random weights double what a real model loses
PROMPT_TOKENS = (3, 40, 75, 110)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def drawn_ids(count: int, seed: int) -> list[int]:
    found: list[int] = torch.randint(
        3, 300, (count,), generator=torch.Generator().manual_seed(seed)
    ).tolist()
    return found


IDS = drawn_ids(LENGTH, 1)
PROMPTS = [drawn_ids(count, count) for count in PROMPT_TOKENS]


def their_logits(model: Any, ids: Sequence[int]) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([list(ids)])).logits[0]
    return logits


def their_text(model: Any, ids: Sequence[int]) -> list[int]:
    """Greedy without a cache, so that nothing of theirs but the forward pass is trusted."""
    known = list(ids)
    for _ in range(NEW_TOKENS):
        known.append(int(their_logits(model, known)[-1].argmax()))
    return known[len(ids) :]


def our_texts(runner: Runner, prompts: Sequence[Sequence[int]], seed: int) -> list[list[int]]:
    """Greedy, all at once.  Rows join at random steps, prompts come in random chunks, blocks lie at
    random; now and then a row is put out, its blocks are wiped, and it begins again elsewhere."""
    chance = random.Random(seed)
    free = list(range(runner.kv_blocks))
    chance.shuffle(free)
    known, done = [list(ids) for ids in prompts], [0] * len(prompts)
    blocks: list[list[int]] = [[] for _ in prompts]
    put_out = 0
    while not all(map(_finished, known, prompts)):
        rows: list[tuple[int, Row]] = []
        for at in (at for at in range(len(prompts)) if not _finished(known[at], prompts[at])):
            if chance.random() < 0.2:
                continue  # not in this step
            if done[at] and chance.random() < 0.1:
                runner.zero_blocks(blocks[at])
                free = blocks[at] + free
                blocks[at], done[at], put_out = [], 0, put_out + 1
            left = len(known[at]) - done[at]
            count = 1 if left == 1 else chance.randint(1, left)
            while len(blocks[at]) * runner.block_tokens < done[at] + count:
                blocks[at].append(free.pop())
            tokens = known[at][done[at] : done[at] + count]
            rows.append((at, Row(tokens, done[at], list(blocks[at]), wants_logits=count == left)))
        rows.sort(key=lambda pair: len(pair[1].tokens) > 1)  # decodes first
        logits = iter(runner.run(Batch([row for _, row in rows]))) if rows else iter(())
        for at, row in rows:
            done[at] = row.end
            if row.wants_logits:
                known[at].append(int(next(logits).argmax()))
    assert put_out > 1
    return [ids[len(prompt) :] for ids, prompt in zip(known, prompts, strict=True)]


def _finished(ids: Sequence[int], prompt: Sequence[int]) -> bool:
    return len(ids) == len(prompt) + NEW_TOKENS


def check_logits(path: Path, theirs: Tensor, family: str, chunks: Sequence[int]) -> None:
    for numerics in ("fast", "invariant"):
        card, runner = load(path, numerics=numerics, dtype="float32", threads=1, kv_bytes=KV_BYTES)
        assert card.architecture == family
        blocks = random.Random(2).sample(range(runner.kv_blocks), 5)
        for chunk in chunks:
            ends = [min(at + chunk, LENGTH) - 1 for at in range(0, LENGTH, chunk)]
            found = error(prefix_logits(runner, IDS, blocks, chunk), theirs[ends])
            assert found < FLOAT32_ERROR_MAX, (numerics, chunk)


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_text_equal_transformers(tmp_path: Path, variant: str) -> None:
    model = write_family(tmp_path / "m", variant)
    theirs = their_logits(model, IDS)
    check_logits(tmp_path / "m", theirs, variant.partition("-")[0], (1, 7, 64, LENGTH))
    texts = [their_text(model, prompt) for prompt in PROMPTS]
    for numerics in ("fast", "invariant"):
        card, runner = load(
            tmp_path / "m", numerics=numerics, dtype="float32", threads=1, kv_bytes=KV_BYTES
        )
        assert card.parameters == sum(weight.numel() for weight in model.parameters())
        assert card.eos_token_ids == (0, 2)
        assert our_texts(runner, PROMPTS, 5) == texts, numerics


@pytest.mark.parametrize("variant", VARIANTS)
def test_bfloat16_is_near(tmp_path: Path, variant: str) -> None:
    """As it is served by default, by whatever kernels this machine has."""
    theirs = their_logits(write_family(tmp_path / "m", variant), IDS)
    _, runner = load(tmp_path / "m", dtype="bfloat16", threads=1, kv_bytes=KV_BYTES)
    for chunk in (1, LENGTH):
        ends = [min(at + chunk, LENGTH) - 1 for at in range(0, LENGTH, chunk)]
        assert error(prefix_logits(runner, IDS, range(5), chunk), theirs[ends]) < BFLOAT16_ERROR_MAX


@pytest.mark.parametrize(
    ("variant", "kind"),
    (
        ("llama", Kind.Q8_0),
        ("llama-biases", Kind.F16),
        ("llama-linear", Kind.F32),
        ("llama-yarn", Kind.F32),
        ("smollm3", Kind.BF16),
        ("qwen2", Kind.Q8_0),
        ("qwen3", Kind.Q8_0),
        ("qwen3", Kind.Q4_0),
        ("gemma3", Kind.F16),
        ("gemma3", Kind.Q4_1),
        ("granite", Kind.F16),
    ),
)
def test_gguf_equals_transformers_on_the_same_numbers(
    tmp_path: Path, variant: str, kind: Kind
) -> None:
    model = write_family(tmp_path / "m", variant)
    write_family_gguf(tmp_path / "m.gguf", model, kind)
    theirs = their_logits(model, IDS)
    check_logits(tmp_path / "m.gguf", theirs, variant.partition("-")[0], (7, LENGTH))


@pytest.mark.parametrize(
    ("variant", "kind"), (("llama", Kind.Q4_1), ("qwen3", Kind.Q4_0), ("gemma3", Kind.Q4_1))
)
def test_four_bits_are_near_as_they_are_served(tmp_path: Path, variant: str, kind: Kind) -> None:
    """By kernels that multiply by the blocks themselves, where this machine has them."""
    model = write_family(tmp_path / "m", variant)
    write_family_gguf(tmp_path / "m.gguf", model, kind)
    theirs = their_logits(model, IDS)
    _, runner = load(tmp_path / "m.gguf", dtype="bfloat16", threads=1, kv_bytes=KV_BYTES)
    for chunk in (1, LENGTH):
        ends = [min(at + chunk, LENGTH) - 1 for at in range(0, LENGTH, chunk)]
        assert error(prefix_logits(runner, IDS, range(5), chunk), theirs[ends]) < BFLOAT16_ERROR_MAX


@pytest.mark.parametrize("prefix", ("language_model.model.", "model.language_model."))
def test_a_gemma_that_sees_is_read_for_its_text(tmp_path: Path, prefix: str) -> None:
    directory = tmp_path / "m"
    theirs = their_logits(write_family(directory, "gemma3"), IDS)
    tensors = load_file(directory / "model.safetensors")
    renamed = {prefix + name.removeprefix("model."): one for name, one in tensors.items()}
    save_file(renamed | {"vision_tower.w": torch.ones(2)}, directory / "model.safetensors")
    inner = msgspec.json.decode((directory / "config.json").read_bytes())
    outer = {"model_type": "gemma3", "eos_token_id": [1, 106], "text_config": inner}
    write_json(directory / "config.json", outer)
    check_logits(directory, theirs, "gemma3", (LENGTH,))
    card, _ = load(directory, dtype="float32", threads=1, kv_bytes=KV_BYTES)
    assert set(card.eos_token_ids) >= {1, 106}
