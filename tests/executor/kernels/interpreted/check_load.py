"""The whole road of a file to the Triton backend, interpreted, against the CPU backend in torch.

The device is a CPU that says it is a card: `find_gpu` is replaced here, nothing in the product is.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from executor import device
from executor.batch import Batch, Row, StepBounds
from executor.choice import Ask, is_plain_greedy
from executor.contract import Sampling
from executor.decoder import Decoder
from executor.kernels.backend import CudaDevice
from executor.kernels.ops import TritonBackend
from executor.model_runner import load
from tests.models import write_tiny_gguf, write_tiny_llama

GREEDY = Sampling(temperature=0.0)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(bounds: StepBounds) -> CudaDevice:
        return CudaDevice(torch.device("cpu"), "a card", 4 << 30, bounds)

    monkeypatch.setattr(device, "refusal", lambda config, *, invariant: None)
    monkeypatch.setattr(device, "find_gpu", found)


@pytest.mark.parametrize("kind", ("gguf", "directory, untied"))
def test_a_model_file_answers_as_on_the_cpu(kind: str, tmp_path: Path, card: None) -> None:
    path = (
        write_tiny_gguf(tmp_path / "m.gguf")
        if kind == "gguf"
        else write_tiny_llama(tmp_path / "m", tie_word_embeddings=False)
    )
    said, triton = load(
        path, device="cuda", dtype="float32", context_tokens=200, rows_max=3, step_tokens_max=64
    )
    _, plain = load(path, device="cpu", dtype="float32", kv_bytes=1 << 20, threads=1)
    assert isinstance(triton, Decoder)
    assert isinstance(triton.backend, TritonBackend)
    assert (said.device, said.device_name, said.dtype) == ("cuda", "a card", "float32")
    assert said.kv_blocks == triton.kv_blocks == 3 * 7  # of three rows of 200 tokens
    assert said.kv_bytes == triton.backend.kv.nbytes
    assert not bool(triton.backend.kv.any()), "warming up left something"

    prompt = [(7 * at + 3) % 300 for at in range(90)]
    guessed = Row([6, 8, 9, 2, 11, 12, 13], 92, [4, 1, 6, 2], wants_logits=True, drafted=6)
    steps = (
        Batch([Row(prompt[:64], 0, [4, 1], wants_logits=False)]),
        Batch([Row(prompt[64:90], 64, [4, 1, 6], True), Row(prompt[5:20], 0, [0], True)]),
        Batch([Row([5], 90, [4, 1, 6], True), Row([9], 15, [0], True)]),
        Batch([Row([4], 91, [4, 1, 6], True)]),
        Batch([guessed]),
    )
    for batch in steps:
        found, wanted = triton.run(batch), plain.run(batch)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
        asks = [Ask(GREEDY, (1,), 1, plain_greedy=is_plain_greedy(GREEDY))] * len(found)
        if asks:
            assert triton.sample(found, asks) == plain.sample(wanted, asks)


def test_the_largest_step_of_an_engine_runs(tmp_path: Path, card: None) -> None:
    path = write_tiny_llama(tmp_path / "m")
    _, triton = load(path, device="auto", dtype="float32", rows_max=3, step_tokens_max=64)
    blocks = [[at, at + 3, at + 6] for at in range(3)]
    prompt = Row([3] * (64 + 7), 0, blocks[0], wants_logits=False)
    guesses = [Row([1] * 7, 0, held, True, drafted=6) for held in blocks[1:]]
    logits = triton.run(Batch([prompt, *guesses]))
    assert logits.shape == (14, triton.vocab_size)
