"""What `gpu.py` measures: shapes, sizes, the roofline, a model with random weights on a device.

Refuses to know: what is printed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from executor.batch import Batch, Row
from executor.decoder import Decoder
from executor.kernels.ops import make_backend
from executor.kernels.places import BLOCK_TOKENS
from executor.kernels.step import CudaStep
from executor.model.config import ModelConfig, Rope
from executor.model.rope import frequencies
from executor.model.weights import LayerWeights

LLAMA_8B = ModelConfig(
    vocab_size=128_256,
    hidden_size=4096,
    intermediate_size=14_336,
    layers=32,
    heads=32,
    kv_heads=8,
    head_dim=128,
    norm_eps=1e-5,
    ropes=(Rope(theta=500_000.0),),
    context_tokens=20_480,
    tied=False,
)
SMOLLM2_135M = ModelConfig(
    vocab_size=49_152,
    hidden_size=576,
    intermediate_size=1536,
    layers=30,
    heads=9,
    kv_heads=3,
    head_dim=64,
    norm_eps=1e-5,
    ropes=(Rope(theta=100_000.0),),
    context_tokens=8192,
    tied=True,
)


@dataclass(frozen=True)
class Plan:
    """How large everything is."""

    big: ModelConfig
    small: ModelConfig
    batches: tuple[int, ...]
    context_tokens: int
    prefill_tokens: int
    streams: int
    long_tokens: int
    chunk_tokens: int
    peer_batch: int
    peer_new_tokens: int
    peer_blocks: int | None  # None: as many as transformers likes
    steps: int
    copy_bytes: int
    square: int


FULL = Plan(
    LLAMA_8B,
    SMOLLM2_135M,
    (1, 32, 256),
    1024,
    8192,
    31,
    16_384,
    512,
    32,
    128,
    None,
    30,
    4 << 30,
    8192,
)
_TINY = replace(
    LLAMA_8B, vocab_size=256, hidden_size=64, intermediate_size=96, layers=2, heads=4, kv_heads=2,
    head_dim=32, context_tokens=160,
)  # fmt: skip
SHRUNKEN = Plan(
    _TINY, replace(_TINY, tied=True), (1, 3), 40, 48, 3, 70, 32, 2, 8, 8, 1, 1 << 22, 128
)


@dataclass(frozen=True)
class Roof:
    bytes_per_s: float
    flops: float

    def decode_s(self, config: ModelConfig, rows: int, context: int) -> float:
        tables = config.vocab_size * config.hidden_size * (0 if config.tied else 1)
        weights = 2 * (config.parameters - tables)
        read = weights + config.kv_bytes_per_token(2) * rows * context
        attention = 4 * config.layers * config.heads * config.head_dim * rows * context
        return max(read / self.bytes_per_s, (2 * (weights / 2) * rows + attention) / self.flops)

    def prefill_s(self, config: ModelConfig, tokens: int) -> float:
        """The head is asked for one token only, and what the causal mask hides is not counted."""
        tables = config.vocab_size * config.hidden_size * (1 if config.tied else 2)
        linear = 2 * (config.parameters - tables) * tokens
        attention = 2 * config.layers * config.heads * config.head_dim * tokens**2
        return (linear + attention) / self.flops


@dataclass(frozen=True)
class Run:
    plan: Plan
    device: torch.device
    deadline_s: float
    smoke: bool

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.smoke else torch.bfloat16

    def left_s(self) -> float:
        return self.deadline_s - time.monotonic()

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def seconds(self, call: Callable[[], object], repeats: int) -> list[float]:
        """Wall time of each, the device idle before and after."""
        found = []
        for _ in range(repeats):
            self.wait()
            begun = time.perf_counter()
            call()
            self.wait()
            found.append(time.perf_counter() - begun)
        return found

    def queued_s(self, call: Callable[[], object], repeats: int) -> float:
        """Of each, one behind the other: the device never waits for the host, if that keeps up."""
        return self.seconds(lambda: [call() for _ in range(repeats)], 1)[0] / repeats


def roof(run: Run) -> Roof:
    """Of this device, now.  Bandwidth is the better of reading alone and copying."""
    plan = run.plan
    source = torch.ones(plan.copy_bytes // 4, device=run.device)
    target = torch.empty_like(source)
    copy = min(run.seconds(lambda: target.copy_(source), 8)[1:])
    read = min(run.seconds(lambda: torch.amax(source), 8)[1:])
    x = torch.randn(plan.square, plan.square, device=run.device, dtype=run.dtype)
    product = min(run.seconds(lambda: x @ x, 10)[2:])
    return Roof(
        max(2 * plan.copy_bytes / copy, plan.copy_bytes / read), 2 * plan.square**3 / product
    )


def random_model(
    config: ModelConfig, run: Run, *, rows_max: int, kv_tokens: int
) -> Decoder[CudaStep]:
    """Random weights and a random past, so that nothing is faster for being zero."""
    torch.manual_seed(0)

    def matrix(rows: int, columns: int) -> Tensor:
        made = torch.empty(rows, columns, dtype=run.dtype, device=run.device)
        return made.normal_(0.0, columns**-0.5)

    hidden, inner = config.hidden_size, config.intermediate_size
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    norm = torch.ones(hidden, device=run.device)
    backend = make_backend(
        config,
        matrix(config.vocab_size, hidden),
        [frequencies(rope, config.head_dim) for rope in config.ropes],
        device=run.device,
        kv_blocks=-(-kv_tokens // BLOCK_TOKENS) + rows_max,
        context_tokens=config.context_tokens,
        tokens_max=max(run.plan.prefill_tokens, run.plan.chunk_tokens + rows_max),
        rows_max=rows_max,
    )
    with torch.inference_mode():
        layers = tuple(
            backend.layer(
                number,
                LayerWeights(
                    attention_norm=norm,
                    qkv=matrix(q + 2 * kv, hidden),
                    output=matrix(hidden, q),
                    mlp_norm=norm,
                    gate_up=matrix(2 * inner, hidden),
                    down=matrix(hidden, inner),
                ),
            )
            for number in range(config.layers)
        )
        head = backend.head(matrix(config.vocab_size, hidden))
    model = Decoder(config, backend, layers, norm, head, config.context_tokens, 1.0)

    def decode(rows: int) -> None:
        model.run(decodes(rows, 1))

    backend.warm(decode)
    with torch.inference_mode():
        for layer in backend.kv:
            layer.normal_()
    return model


def decodes(rows: int, context: int, *, spare: int = 0) -> Batch:
    """`spare`: tokens more that each row has blocks for."""
    each = -(-(context + spare) // BLOCK_TOKENS)
    return Batch(
        [Row([7], context - 1, range(at * each, (at + 1) * each), True) for at in range(rows)]
    )
