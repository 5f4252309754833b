"""The Triton backend: a model's memory on a GPU and the operations of a layer, for `executor.decoder`.

Matrix products are torch's (cuBLAS); all else is a kernel of this package.  The residual stream is
float32, what flows between the linears is in the embedding's dtype.  Everything runs in the order of
one stream.  On a CPU it runs under Triton's interpreter, without recordings, to be checked against
`cpu.torch_ops`.  Refuses to know: scheduling, sampling, files, the order of a layer's operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional

from executor.backend import Layer, Linear
from executor.batch import Batch
from executor.choice import Ask, Choice
from executor.contract import Sampling
from executor.model.config import ModelConfig
from executor.model.source import QuantBlocks
from executor.model.weights import LayerWeights

from . import plan
from .attention import attend
from .device import finish
from .gate import gated
from .norm import add_norm
from .places import BLOCK_TOKENS
from .recordings import Recordings
from .rotary import rotate_store, turns
from .sampler import sample
from .step import CudaStep, Room, Staging, make_step
from .warm import compile_attention
from .zero import zero_blocks

PROCESSORS_INTERPRETED = 8
HEAD_DIM_MAX = 256


def unsupported(config: ModelConfig) -> str | None:
    """Why a model's shape does not fit the kernels, or None."""
    if config.head_dim > HEAD_DIM_MAX:
        return f"head_dim {config.head_dim} is more than {HEAD_DIM_MAX}"
    if config.heads // config.kv_heads > plan.GROUP_MAX:
        return f"more than {plan.GROUP_MAX} query heads share a key-value head"
    return None


@dataclass(frozen=True, slots=True)
class Product:
    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class TritonBackend:
    """Made by `make_backend`.  `kv` (layers, blocks, 2 · kv_heads, block_tokens, head_dim): one layer's
    blocks lie together, since a step reads layer after layer."""

    config: ModelConfig
    embedding: Tensor  # (vocab_size, hidden)
    frequencies: tuple[Tensor, ...]  # one a rope
    kv: Tensor
    room: Room
    staging: Staging
    turned: Tensor  # (ropes, tokens_max, head_dim), float32, of the step that runs
    recordings: Recordings = field(default_factory=Recordings)

    @property
    def block_tokens(self) -> int:
        return BLOCK_TOKENS

    @property
    def kv_blocks(self) -> int:
        return self.kv.shape[1]

    @property
    def wants_blocks(self) -> bool:
        return False

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        device = self.kv.device
        return Product(
            weight.to(device).contiguous(), None if bias is None else bias.to(device).contiguous()
        )

    def head(self, weight: Tensor, blocks: QuantBlocks | None = None) -> Linear:
        """Where the table is tied its one copy serves both."""
        if self.config.tied:
            return Product(self.embedding, None)
        return self.linear(weight)

    def layer(self, number: int, weights: LayerWeights) -> Layer:
        def norm(weight: Tensor | None) -> Tensor | None:
            return None if weight is None else weight.to(self.kv.device, torch.float32)

        attention_norm, mlp_norm = norm(weights.attention_norm), norm(weights.mlp_norm)
        assert attention_norm is not None
        assert mlp_norm is not None
        return Layer(
            number=number,
            kind=self.config.kind(number),
            attention_norm=attention_norm,
            qkv=self.linear(weights.qkv, weights.qkv_bias),
            q_norm=norm(weights.q_norm),
            k_norm=norm(weights.k_norm),
            output=self.linear(weights.output, weights.output_bias),
            after_attention=norm(weights.after_attention),
            mlp_norm=mlp_norm,
            gate_up=self.linear(weights.gate_up, weights.gate_up_bias),
            down=self.linear(weights.down, weights.down_bias),
            after_mlp=norm(weights.after_mlp),
        )

    def warm(self, decode: Callable[[int], None]) -> None:
        """Compile what a step may need, then record decodes, the largest first."""
        config = self.config
        with torch.inference_mode():
            compile_attention(config, self.kv, self.room)
            logits = torch.zeros(1, config.vocab_size, device=self.kv.device)
            sample(logits, [Ask(Sampling(temperature=0.0), (0,), 1, plain_greedy=True)])
        for rows in self.room.sizes or (1,):
            decode(rows)
        self.zero_blocks([0])

    def step(self, batch: Batch) -> CudaStep:
        with torch.inference_mode():
            return make_step(batch, self.room, self.staging)

    def run(self, step: CudaStep, forward: Callable[[CudaStep], Tensor]) -> Tensor:
        with torch.inference_mode():
            if step.recording is None:
                logits = forward(step).float()
            elif step.recording in self.recordings.by_rows:
                logits = self.recordings.replay(step)
            else:  # while warming up; all its rows count in a recording
                full = replace(step, wanted=step.recording)
                logits = self.recordings.record(full, forward)[: step.wanted]
        if not step.wanted:  # nobody will wait for logits, and a step's time is its own
            finish(self.kv.device)
        return logits.clone() if logits.is_inference() else logits

    def embed(self, step: CudaStep) -> Tensor:
        for at, (rope, each) in enumerate(zip(self.config.ropes, self.frequencies, strict=True)):
            out = self.turned[at, : len(step.token_ids)]
            turns(step.places.positions, each, out, rope.attention_factor)
        return functional.embedding(step.token_ids, self.embedding).float()

    def add_norm(
        self, x: Tensor, delta: Tensor | None, after: Tensor | None, weight: Tensor
    ) -> Tensor:
        return add_norm(x, delta, after, weight, self.config.norm_eps, self.embedding.dtype)

    def attend(self, step: CudaStep, layer: Layer, qkv: Tensor) -> Tensor:
        kv, rope = self.kv[layer.number], layer.kind.rope
        turned = None if rope is None else self.turned[rope, : len(qkv)]
        queries = rotate_store(
            qkv,
            turned,
            layer.q_norm,
            layer.k_norm,
            kv,
            step.places,
            self.config.heads,
            self.config.norm_eps,
        )
        return attend(
            queries,
            kv,
            step.places,
            step.tiles,
            scale=self.config.score_scale,
            window=layer.kind.window,
        )

    def gate(self, both: Tensor) -> Tensor:
        return gated(both, self.config.activation)

    def sample(self, logits: Tensor, asks: Sequence[Ask]) -> list[Choice]:
        return sample(logits, asks)

    def zero_blocks(self, blocks: Sequence[int]) -> None:
        which = torch.tensor(list(blocks), dtype=torch.int32)
        if self.kv.device.type == "cuda":
            which = which.pin_memory()
        with torch.inference_mode():
            zero_blocks(self.kv, which.to(self.kv.device, non_blocking=True))

    def are_zero(self, blocks: Sequence[int]) -> bool:
        which = torch.tensor(list(blocks), dtype=torch.int64, device=self.kv.device)
        with torch.inference_mode():
            return not any(bool(layer.index_select(0, which).any()) for layer in self.kv)


def make_backend(
    config: ModelConfig,
    embedding: Tensor,
    frequencies: Sequence[Tensor],
    *,
    device: torch.device,
    kv_blocks: int,
    context_tokens: int,
    tokens_max: int,
    rows_max: int,
    record: bool = True,
) -> TritonBackend:
    """`embedding` decides the dtype.  `context_tokens`: the most a row can have; `tokens_max` and
    `rows_max`: of one step."""
    assert unsupported(config) is None, unsupported(config)
    assert rows_max <= tokens_max, (rows_max, tokens_max)
    on_gpu = device.type == "cuda"
    processors = PROCESSORS_INTERPRETED
    if on_gpu:
        processors = torch.cuda.get_device_properties(device).multi_processor_count
    room = Room(
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        itemsize=embedding.element_size(),
        context_tokens=context_tokens,
        tokens_max=tokens_max,
        rows_max=rows_max,
        processors=processors,
        sizes=plan.recorded_sizes(rows_max) if on_gpu and record else (),
    )
    with torch.inference_mode():
        shape = (config.layers, kv_blocks, 2 * config.kv_heads, BLOCK_TOKENS, config.head_dim)
        return TritonBackend(
            config=config,
            embedding=embedding.to(device),
            frequencies=tuple(each.to(device, torch.float32) for each in frequencies),
            kv=torch.zeros(shape, dtype=embedding.dtype, device=device),
            room=room,
            staging=Staging(device, room.words),
            turned=torch.zeros(len(config.ropes), tokens_max, config.head_dim, device=device),
        )
