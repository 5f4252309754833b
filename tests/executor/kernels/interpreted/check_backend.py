"""The whole decoder on the Triton backend, interpreted, against the CPU backend in torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import cast

import pytest
import torch
from torch import Tensor

from executor.backend import Backend, S
from executor.batch import Batch, Row
from executor.cpu.kv import BLOCK_TOKENS, make_kv
from executor.cpu.plan import Shape
from executor.cpu.torch_ops import TorchOps
from executor.decoder import Decoder
from executor.kernels import ops
from executor.kernels.ops import TritonBackend, make_backend
from executor.kernels.recordings import Recordings
from executor.kernels.step import CudaStep
from executor.model.config import Activation, LayerKind, ModelConfig, Rope, RopeKind
from executor.model.rope import frequencies
from executor.model.weights import LayerWeights, embedding_scale

BLOCKS = 24
LLAMA = ModelConfig(
    vocab_size=120,
    hidden_size=64,
    intermediate_size=96,
    layers=2,
    heads=6,
    kv_heads=2,
    head_dim=32,
    norm_eps=1e-5,
    ropes=(Rope(RopeKind.LLAMA3, factor=8.0, original_context_tokens=64),),
    context_tokens=300,
    tied=True,
)
MODELS = {
    "llama": LLAMA,
    "qwen2, biases": replace(LLAMA, heads=4, kv_heads=1, qkv_bias=True, output_bias=True),
    "qwen3, norms on heads, head 48": replace(LLAMA, qk_norm=True, head_dim=48, tied=False),
    "gemma3, windows, two ropes, norms after": replace(
        LLAMA,
        layers=3,
        kinds=(LayerKind(0, 20), LayerKind(1, None), LayerKind(None, 20)),
        ropes=(Rope(), Rope(RopeKind.LINEAR, theta=1e6, factor=8.0, attention_factor=1.1)),
        activation=Activation.GELU_TANH,
        attention_scale=0.2,
        embedding_scale=8.0,
        qk_norm=True,
        after_norms=True,
    ),
}


def weights(config: ModelConfig) -> Iterator[LayerWeights]:
    generator = torch.Generator().manual_seed(4)

    def matrix(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=generator).mul(columns**-0.5)

    def vector(size: int, *, there: bool = True) -> Tensor | None:
        return torch.randn(size, generator=generator) * 0.2 + 1 if there else None

    hidden, inner = config.hidden_size, config.intermediate_size
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    for _ in range(config.layers):
        first, second = vector(hidden), vector(hidden)
        assert first is not None
        assert second is not None
        yield LayerWeights(
            attention_norm=first,
            qkv=matrix(q + 2 * kv, hidden),
            output=matrix(hidden, q),
            mlp_norm=second,
            gate_up=matrix(2 * inner, hidden),
            down=matrix(hidden, inner),
            qkv_bias=vector(q + 2 * kv, there=config.qkv_bias),
            output_bias=vector(hidden, there=config.output_bias),
            q_norm=vector(config.head_dim, there=config.qk_norm),
            k_norm=vector(config.head_dim, there=config.qk_norm),
            after_attention=vector(hidden, there=config.after_norms),
            after_mlp=vector(hidden, there=config.after_norms),
        )


def table(config: ModelConfig) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(config.vocab_size, config.hidden_size, generator=generator)


def decoder(config: ModelConfig, backend: Backend[S]) -> Decoder[S]:
    with torch.inference_mode():
        layers = [backend.layer(at, each) for at, each in enumerate(weights(config))]
        return Decoder(
            config=config,
            backend=backend,
            layers=tuple(layers),
            norm=torch.ones(config.hidden_size),
            head=backend.head(table(config)),
            context_tokens=config.context_tokens,
            embedding_scale=embedding_scale(config, torch.float32),
        )


def both(config: ModelConfig) -> tuple[Decoder[object], Decoder[object]]:  # type: ignore[type-var]
    each = tuple(frequencies(rope, config.head_dim) for rope in config.ropes)
    triton = make_backend(
        config,
        table(config),
        each,
        device=torch.device("cpu"),
        kv_blocks=BLOCKS,
        context_tokens=config.context_tokens,
        tokens_max=128,
        rows_max=8,
    )
    plain = TorchOps(
        config=config,
        shape=Shape(
            kv_heads=config.kv_heads,
            group=config.heads // config.kv_heads,
            dtype=torch.float32,
            frequencies=tuple(one for one, rope in zip(each, config.ropes, strict=True)),
            windows=tuple({config.kind(layer).window for layer in range(config.layers)}),
            invariant=False,
            attention_factors=tuple(rope.attention_factor for rope in config.ropes),
        ),
        embedding=table(config),
        kv=make_kv(config.layers, config.kv_heads, config.head_dim, BLOCKS, torch.float32),
        pack=False,
    )
    return decoder(config, triton), decoder(config, plain)  # type: ignore[return-value]


def blocks(first: int, tokens: int) -> list[int]:
    """Not in order, so that a table that is not read is noticed."""
    return [first + (5 * at) % 7 for at in range(-(-tokens // BLOCK_TOKENS))]


def row(first: int, start: int, tokens: Sequence[int], *, wants: bool = True) -> Row:
    return Row(tokens, start, blocks(first, start + len(tokens)), wants)


PROMPT = [(7 * at + 3) % 120 for at in range(90)]
STEPS = (
    Batch([row(0, 0, PROMPT[:70], wants=False)]),  # a chunk
    Batch([row(7, 0, PROMPT[3:36]), row(0, 70, PROMPT[70:90])]),  # the rest of it, and a prompt
    Batch([row(0, 90, [5]), row(7, 33, [9]), row(14, 0, PROMPT[:5])]),  # mixed
    Batch([row(0, 91, [1]), row(7, 34, [2]), row(14, 5, [3])]),  # decodes
    Batch([row(14, 6, [4]), Row([6, 8, 9, 2], 92, blocks(0, 96), wants_logits=True, drafted=3)]),
)


@pytest.mark.parametrize("model", tuple(MODELS))
def test_logits_are_the_cpus(model: str) -> None:
    triton, plain = both(MODELS[model])
    for batch in STEPS:
        torch.testing.assert_close(triton.run(batch), plain.run(batch), rtol=1e-4, atol=1e-4)


def test_a_step_whose_logits_nobody_wants_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its time would be the next step's, who would pay for it."""
    waited: list[torch.device] = []
    monkeypatch.setattr(ops, "finish", waited.append)
    triton, _ = both(LLAMA)
    triton.run(Batch([row(0, 0, PROMPT[:5], wants=False)]))
    assert len(waited) == 1
    triton.run(Batch([row(0, 5, [9])]))  # whoever samples waits
    assert len(waited) == 1


def test_warming_up_leaves_no_trace() -> None:
    triton, plain = both(LLAMA)

    def decode(rows: int) -> None:
        triton.run(Batch([row(0, 0, [0])] * rows))

    triton.backend.warm(decode)
    memory = triton.backend.kv  # type: ignore[attr-defined]
    assert not bool(memory.any())
    for batch in STEPS[:2]:
        torch.testing.assert_close(triton.run(batch), plain.run(batch), rtol=1e-4, atol=1e-4)
    triton.zero_blocks(range(BLOCKS))
    assert not bool(memory.any())


class Replayed(Recordings):
    """As a CUDA graph would: the step that was recorded runs again, on what now lies in the staging
    buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: dict[int, tuple[CudaStep, Callable[[CudaStep], Tensor]]] = {}
        self.replays = 0

    def record(self, step: CudaStep, forward: Callable[[CudaStep], Tensor]) -> Tensor:
        assert step.recording is not None
        assert step.wanted == step.recording
        self.steps[step.recording] = (step, forward)
        self.by_rows = dict.fromkeys(self.steps)  # type: ignore[assignment]  # asked for keys only
        return self.replay(step)

    def replay(self, step: CudaStep) -> Tensor:
        assert step.recording is not None
        self.replays += 1
        recorded, forward = self.steps[step.recording]
        return forward(recorded).float()[: step.wanted]


def test_a_recording_stands_for_every_step_of_its_size() -> None:
    triton, plain = both(LLAMA)
    made = cast("TritonBackend", triton.backend)
    replayed = Replayed()
    backend = replace(made, room=replace(made.room, sizes=(4, 1)), recordings=replayed)
    recorded = replace(triton, backend=cast("Backend[object]", backend))  # type: ignore[type-var]

    def decode(rows: int) -> None:
        recorded.run(Batch([row(0, 0, [0])] * rows))

    backend.warm(decode)
    assert set(replayed.steps) == {1, 4}
    before = replayed.replays
    silent = Batch([row(0, 92, [1]), row(7, 35, [2], wants=False), row(14, 6, [3])])
    for batch in (*STEPS[:4], silent, Batch([row(7, 36, [8])])):
        torch.testing.assert_close(recorded.run(batch), plain.run(batch), rtol=1e-4, atol=1e-4)
    assert replayed.replays == before + 3


def test_what_the_kernels_cannot_hold_is_said() -> None:
    assert ops.unsupported(LLAMA) is None
    assert "head_dim" in str(ops.unsupported(replace(LLAMA, head_dim=320)))
    assert "query heads" in str(ops.unsupported(replace(LLAMA, heads=130, kv_heads=1)))
