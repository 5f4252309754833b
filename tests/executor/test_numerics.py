"""Logits and greedy text against transformers, on the same weights.

The norm: ‖ours − theirs‖ / ‖theirs‖, Frobenius, over the compared rows of one prompt.  Bars: 1e-4 in
float32, 2e-2 in bfloat16, both against transformers in float32.  (transformers' own bfloat16 is at
2.1e-2 on the real model here, and at 1.4e-1 in its worst row.)
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor

from executor.batch import Batch, Row, Runner
from executor.cpu.native.rounded import RoundedLinear
from executor.decoder import Decoder
from executor.model.errors import ModelError
from executor.model.gguf_source import open_gguf_source
from executor.model_runner import load
from tests.bench.hf_export import export_weights
from tests.models import default_model_path, write_tiny_llama

FLOAT32_ERROR_MAX, BFLOAT16_ERROR_MAX = 1e-4, 2e-2
PROMPTS = (
    "What is the capital of France?", "Write one sentence about the sea.", "2 + 2 =",
    "Name three colours.", "Who wrote Hamlet?", "Translate 'good morning' into French.",
    "def fibonacci(n):", "Explain what a canal lock does.", "List the planets.",
    "Once upon a time", "Is water wet?", "What is 12 times 12?", "Give me a haiku about rain.",
    "Why is the sky blue?", "Der schnelle braune Fuchs", "SELECT name FROM", "The opposite of hot is",
    "How do I boil an egg?", "Summarise: The cat sat on the mat. It was warm.", "Bonjour, ça va ? 水",
)  # fmt: skip
NEW_TOKENS = 16
END_IDS = (0, 2)  # of the real model


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """A team of threads on busy cores waits for its slowest at every operation: one is faster."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def reference(directory: Path) -> Any:
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    )
    model.eval()  # type: ignore[no-untyped-call]
    return model


def error(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


def prefix_logits(runner: Runner, ids: Sequence[int], blocks: Sequence[int], chunk: int) -> Tensor:
    """The logits after each chunk of `ids`."""
    found = []
    for start in range(0, len(ids), chunk):
        row = Row(ids[start : start + chunk], start, blocks, wants_logits=True)
        found.append(runner.run(Batch([row])).clone())
    return torch.cat(found)


VARIANTS: dict[str, dict[str, Any]] = {
    "tied-llama3": {},
    "untied-default": {
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
    },
    "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}},
}


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("numerics", ("fast", "invariant"))
def test_tiny_logits_equal_transformers(tmp_path: Path, variant: str, numerics: str) -> None:
    directory = write_tiny_llama(tmp_path / "m", seed=3, **VARIANTS[variant])
    ids = torch.randint(3, 300, (150,), generator=torch.Generator().manual_seed(1)).tolist()
    with torch.inference_mode():
        theirs = reference(directory)(torch.tensor([ids])).logits[0]
    for dtype, bar in (("float32", FLOAT32_ERROR_MAX), ("bfloat16", BFLOAT16_ERROR_MAX)):
        _, runner = load(directory, numerics=numerics, dtype=dtype, threads=1)
        blocks = random.Random(2).sample(range(runner.kv_blocks), 5)
        for chunk in (1, 7, 64, 150):
            ends = [min(at + chunk, 150) - 1 for at in range(0, 150, chunk)]
            assert error(prefix_logits(runner, ids, blocks, chunk), theirs[ends]) < bar


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Tokenizer]:
    path = default_model_path()
    directory = tmp_path_factory.mktemp("hf") / "m"
    export_weights(path, directory, torch.float32)  # not by our loader, whose faults it would share
    tokenizer = Tokenizer.from_buffer(open_gguf_source(path).tokenizer.document)
    return path, reference(directory), tokenizer


def chat_ids(tokenizer: Tokenizer, prompt: str) -> list[int]:
    text = f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
    return list(tokenizer.encode(text).ids)


def their_text(model: Any, ids: list[int]) -> list[int]:
    from transformers import GenerationConfig

    plain = GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=False, max_new_tokens=NEW_TOKENS, pad_token_id=2, eos_token_id=None
    )
    with torch.inference_mode():
        out = model.generate(torch.tensor([ids]), generation_config=plain)
    return [int(token) for token in out[0, len(ids) :]]


def our_texts(runner: Runner, prompts: Sequence[Sequence[int]], seed: int) -> list[list[int]]:
    """As far as transformers goes: it stops at an end token whatever the generation settings say."""
    texts = []
    for tokens in our_run(runner, prompts, seed)[0]:
        end = next((at for at, token in enumerate(tokens) if token in END_IDS), len(tokens))
        texts.append(tokens[: end + 1])
    return texts


def our_run(
    runner: Runner, prompts: Sequence[Sequence[int]], seed: int
) -> tuple[list[list[int]], list[Tensor]]:
    """Greedy, all at once: rows join at random steps, prompts in random chunks, blocks at random.
    The new tokens, and the logits that each was taken from."""
    chance = random.Random(seed)
    free = list(range(runner.kv_blocks))
    chance.shuffle(free)
    need = [-(-(len(ids) + NEW_TOKENS) // runner.block_tokens) for ids in prompts]
    blocks = [[free.pop() for _ in range(count)] for count in need]
    known = [list(ids) for ids in prompts]
    done = [0] * len(prompts)
    waiting = list(range(len(prompts)))
    chance.shuffle(waiting)
    active: list[int] = []
    seen: list[list[Tensor]] = [[] for _ in prompts]
    while waiting or active:
        while waiting and (not active or chance.random() < 0.6):
            active.append(waiting.pop())
        rows: list[tuple[int, Row]] = []
        for at in active:
            left = len(known[at]) - done[at]
            count = 1 if left == 1 else chance.randint(1, left)
            tokens = known[at][done[at] : done[at] + count]
            rows.append((at, Row(tokens, done[at], blocks[at], wants_logits=count == left)))
        rows.sort(key=lambda pair: len(pair[1].tokens) > 1)  # decodes first
        logits = iter(runner.run(Batch([row for _, row in rows])))
        for at, row in rows:
            done[at] = row.end
            if row.wants_logits:
                seen[at].append(next(logits).clone())
                known[at].append(int(seen[at][-1].argmax()))
        active = [at for at in active if len(known[at]) < len(prompts[at]) + NEW_TOKENS]
    texts = [ids[len(prompt) :] for ids, prompt in zip(known, prompts, strict=True)]
    return texts, [torch.stack(each) for each in seen]


@pytest.mark.slow
def test_real_logits_equal_transformers(real: tuple[Path, Any, Tokenizer]) -> None:
    path, model, tokenizer = real
    ids = chat_ids(tokenizer, " ".join(PROMPTS))
    with torch.inference_mode():
        theirs = model(torch.tensor([ids])).logits[0]
    for dtype, bar in (("float32", FLOAT32_ERROR_MAX), ("bfloat16", BFLOAT16_ERROR_MAX)):
        _, runner = load(path, threads=1, dtype=dtype, kv_bytes=64 << 20)
        for chunk in (len(ids), 50):
            ends = [min(at + chunk, len(ids)) - 1 for at in range(0, len(ids), chunk)]
            found = error(prefix_logits(runner, ids, range(10, 40), chunk), theirs[ends])
            print(f"{dtype}, chunks of {chunk}: relative error {found:.2e}")
            assert found < bar


@pytest.fixture(scope="module")
def greedy(real: tuple[Path, Any, Tokenizer]) -> tuple[list[list[int]], list[list[int]]]:
    _, model, tokenizer = real
    prompts = [chat_ids(tokenizer, prompt) for prompt in PROMPTS]
    return prompts, [their_text(model, ids) for ids in prompts]


Greedy = tuple[list[list[int]], list[list[int]]]


@pytest.mark.slow
def test_real_greedy_text_equals_transformers(
    real: tuple[Path, Any, Tokenizer], greedy: Greedy
) -> None:
    prompts, theirs = greedy
    _, runner = load(real[0], threads=1, numerics="fast", dtype="float32", kv_bytes=256 << 20)
    assert [our_texts(runner, [ids], 0)[0] for ids in prompts] == theirs
    assert our_texts(runner, prompts, 1) == theirs
    assert our_texts(runner, prompts, 2) == theirs


@dataclass(frozen=True, slots=True)
class Nearness:
    """To transformers in float32, over all positions of some texts."""

    error: float
    divergence: float  # mean Kullback-Leibler, nats, of the next token's distribution
    agreement: float  # of the likeliest token

    @classmethod
    def of(cls, ours: Tensor, theirs: Tensor) -> Nearness:
        them, us = theirs.log_softmax(-1), ours.log_softmax(-1)
        return cls(
            error(ours, theirs),
            float((them.exp() * (them - us)).sum(-1).mean()),
            float((ours.argmax(-1) == theirs.argmax(-1)).float().mean()),
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("numerics", "few_rows", "bars"),
    (
        ("fast", 0, Nearness(2e-2, 1e-3, 0.97)),
        ("int8", 0, Nearness(6e-2, 1.2e-2, 0.93)),  # bytes on a grid a column
        ("int8", 1 << 20, Nearness(4.5e-2, 8e-3, 0.94)),  # the layers by the file's blocks
    ),
)
def test_real_distributions_stay_near(
    real: tuple[Path, Any, Tokenizer], greedy: Greedy, numerics: str, few_rows: int, bars: Nearness
) -> None:
    """Chat prompts and their answers.  A scale that is wrong anywhere is far beyond the bars."""
    path, model, _ = real
    texts = [prompt + answer for prompt, answer in zip(*greedy, strict=True)]
    with torch.inference_mode():
        theirs = torch.cat([model(torch.tensor([ids])).logits[0] for ids in texts])
    runner = loaded(path, numerics, few_rows)
    ours = torch.cat([prefix_logits(runner, ids, range(10, 14), 1) for ids in texts])
    found = Nearness.of(ours, theirs)
    print(f"{numerics}, {few_rows}: {len(ours)} positions, {found}")
    assert len(ours) > 400
    assert found.error < bars.error
    assert found.divergence < bars.divergence
    assert found.agreement > bars.agreement


def loaded(path: Path, numerics: str, few_rows: int) -> Runner:
    """With the layouts of its products as said, not as measured."""
    try:
        _, runner = load(path, threads=1, numerics=numerics, dtype="bfloat16", kv_bytes=64 << 20)
    except ModelError as refused:
        pytest.skip(str(refused))
    assert isinstance(runner, Decoder)
    for linear in getattr(runner.backend, "linears", ()):
        blocks = linear.nibbles if isinstance(linear, RoundedLinear) else linear.blocks
        linear.few_rows = few_rows if blocks is not None else 0
    return runner


@pytest.mark.slow
def test_real_invariant_greedy_text_equals_transformers(
    real: tuple[Path, Any, Tokenizer], greedy: Greedy
) -> None:
    prompts, theirs = greedy
    _, runner = load(real[0], threads=1, numerics="invariant", dtype="float32", kv_bytes=256 << 20)
    assert our_texts(runner, prompts, 3) == theirs


@pytest.mark.slow
def test_real_invariant_logits_are_the_same_bits_in_any_company(
    real: tuple[Path, Any, Tokenizer],
) -> None:
    path, _, tokenizer = real
    prompts = [chat_ids(tokenizer, prompt) for prompt in PROMPTS[:6]]
    _, runner = load(path, threads=1, numerics="invariant", kv_bytes=256 << 20)
    texts, logits = zip(*(our_run(runner, [ids], 0) for ids in prompts), strict=True)
    for seed in (1, 2):
        crowd_texts, crowd_logits = our_run(runner, prompts, seed)
        assert crowd_texts == [text for (text,) in texts]
        for (lone,), company in zip(logits, crowd_logits, strict=True):
            assert torch.equal(lone, company)
