"""The CPU backend in C++: bf16 on processors with AVX-512 and its bf16 products, in all numerics.

The same operations as `cpu.torch_ops`, its twin, in fewer and larger pieces: a decode of a small
model is mostly the overhead of calls.  Results go to buffers that live as long as the backend, one
a width, so that a step allocates nothing; each is good until the next operation of that width.
Refuses to know: scheduling, sampling, files, the order of a layer's operations.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from executor.backend import Layer, Linear
from executor.batch import Batch
from executor.choice import Ask, Choice
from executor.cpu import machine
from executor.cpu.kv import BLOCK_TOKENS
from executor.model.config import Activation, ModelConfig
from executor.model.source import QuantBlocks
from executor.model.weights import LayerWeights
from executor.numerics import Numerics

from .linear import Space, SwitchingLinear, choose
from .plan import NativePlan, make_native_plan
from .rounded import GROUP, RoundedLinear, choose_rounded
from .sampling import sample_natively

BYTES_BOTH, BYTES_BOTH_ROUNDED = 3.5, 1.7  # a weight, in both layouts
L = TypeVar("L", SwitchingLinear, RoundedLinear)
HEAD_MULTIPLE, HEAD_MAX, GROUP_MAX = 32, 256, 48


def unsupported(config: ModelConfig) -> str | None:
    """Why a model's shape does not fit the kernels, or None."""
    if config.head_dim % HEAD_MULTIPLE or config.head_dim > HEAD_MAX:
        return f"head_dim {config.head_dim} is no multiple of {HEAD_MULTIPLE} up to {HEAD_MAX}"
    if config.heads // config.kv_heads > GROUP_MAX:
        return f"more than {GROUP_MAX} query heads share a key-value head"
    if config.hidden_size % 16 or config.intermediate_size % 16:
        return "hidden_size or intermediate_size is no multiple of 16"
    return None


@dataclass(frozen=True, slots=True)
class Angles:
    """Of one rope, for every position of the context: (context_tokens, head_dim / 2) float32 each."""

    cosine: Tensor
    sine: Tensor

    @classmethod
    def make(cls, frequencies: Tensor, factor: float, context_tokens: int) -> Angles:
        angles = torch.outer(torch.arange(context_tokens, dtype=torch.float32), frequencies)
        return cls(angles.cos().mul_(factor), angles.sin().mul_(factor))


@dataclass(frozen=True, slots=True)
class NativeOps:
    config: ModelConfig
    library: ctypes.CDLL
    angles: tuple[Angles, ...]  # one a rope
    windows: tuple[int | None, ...]
    embedding: Tensor  # bfloat16
    memory: tuple[NDArray[np.uint16], ...]  # a layer: (blocks, 2 · kv_heads · 32 · head_dim), bf16
    space: Space
    linears: list[SwitchingLinear | RoundedLinear]  # all of them, to be measured
    keeps_blocks: bool  # of 4 or 8 bits, as the file has them, beside the strips
    tiles: bool  # the processor's matrix tiles may be used
    rounds: bool  # products are of 8 bits

    @property
    def block_tokens(self) -> int:
        return BLOCK_TOKENS

    @property
    def kv_blocks(self) -> int:
        return len(self.memory[0])

    def linear(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        blocks: QuantBlocks | None = None,
        *,
        wide: bool = False,
    ) -> Linear:
        kind = RoundedLinear if self.rounds and weight.shape[1] % GROUP == 0 else SwitchingLinear
        made = kind.make(self.library, self.space, weight, bias, blocks, wide=wide)
        self.linears.append(made)
        return made

    def head(self, weight: Tensor, blocks: QuantBlocks | None = None) -> Linear:
        return self.linear(weight, blocks=blocks, wide=True)

    @property
    def wants_blocks(self) -> bool:
        return self.keeps_blocks

    def warm(self, decode: Callable[[int], None]) -> None:
        with torch.inference_mode():
            for same in _by_shape(self.linears, SwitchingLinear):
                choose(same, perf_counter, tiles=self.tiles)
            for alike in _by_shape(self.linears, RoundedLinear):
                choose_rounded(alike, perf_counter)
        decode(1)

    def layer(self, number: int, weights: LayerWeights) -> Layer:
        quantised = weights.quantised
        return Layer(
            number=number,
            kind=self.config.kind(number),
            attention_norm=weights.attention_norm,
            qkv=self.linear(weights.qkv, weights.qkv_bias, quantised.get("qkv")),
            q_norm=weights.q_norm,
            k_norm=weights.k_norm,
            output=self.linear(weights.output, weights.output_bias, quantised.get("output")),
            after_attention=weights.after_attention,
            mlp_norm=weights.mlp_norm,
            gate_up=self.linear(weights.gate_up, weights.gate_up_bias, quantised.get("gate_up")),
            down=self.linear(weights.down, weights.down_bias, quantised.get("down")),
            after_mlp=weights.after_mlp,
        )

    def step(self, batch: Batch) -> NativePlan:
        group = self.config.heads // self.config.kv_heads
        plan = make_native_plan(batch, group, self.windows)
        # The kernels look nothing up: a block too many would be somebody else's memory.
        assert 0 <= plan.table.min() <= plan.table.max() < self.kv_blocks, plan.table
        assert all(plan.positions.max() < len(each.cosine) for each in self.angles), plan.positions
        return plan

    def run(self, step: NativePlan, forward: Callable[[NativePlan], Tensor]) -> Tensor:
        with torch.no_grad():
            return forward(step)

    def embed(self, step: NativePlan) -> Tensor:
        return functional.embedding(step.token_ids, self.embedding).float()

    def add_norm(
        self, x: Tensor, delta: Tensor | None, after: Tensor | None, weight: Tensor
    ) -> Tensor:
        rows, width = x.shape
        out = self.space.take("normed", rows, width)
        self.library.lockgate_add_norm(
            x.data_ptr(),
            None if delta is None else delta.data_ptr(),
            None if after is None else after.data_ptr(),
            weight.data_ptr(),
            out.data_ptr(),
            rows,
            width,
            self.config.norm_eps,
        )
        return out

    def gate(self, both: Tensor) -> Tensor:
        rows, inner = both.shape[0], both.shape[1] // 2
        out = self.space.take("gated", rows, inner)
        gelu = self.config.activation is Activation.GELU_TANH
        self.library.lockgate_gate(both.data_ptr(), out.data_ptr(), rows, inner, gelu)
        return out

    def attend(self, step: NativePlan, layer: Layer, qkv: Tensor) -> Tensor:
        config, kind = self.config, layer.kind
        out = self.space.take("mixed", step.tokens, config.heads * config.head_dim)
        angles = None if kind.rope is None else self.angles[kind.rope]
        tasks = step.tasks[kind.window]
        work = self.space.work(
            tasks.parts * config.heads * self.library.lockgate_part_floats(config.head_dim)
        )
        self.library.lockgate_attend(
            qkv.data_ptr(),
            out.data_ptr(),
            self.memory[layer.number].ctypes.data,
            step.tokens,
            step.places.ctypes.data,
            step.positions.ctypes.data,
            None if angles is None else angles.cosine.data_ptr(),
            None if angles is None else angles.sine.data_ptr(),
            step.table.ctypes.data,
            step.table.shape[1],
            tasks.tasks.ctypes.data,
            len(tasks.tasks),
            tasks.merges.ctypes.data,
            len(tasks.merges),
            work.data_ptr(),
            config.heads,
            config.kv_heads,
            config.head_dim,
            config.score_scale,
            kind.window or 0,
            None if layer.q_norm is None else layer.q_norm.data_ptr(),
            None if layer.k_norm is None else layer.k_norm.data_ptr(),
            config.norm_eps,
        )
        return out

    def sample(self, logits: Tensor, asks: Sequence[Ask]) -> list[Choice]:
        return sample_natively(self.library, logits.contiguous(), asks)

    def zero_blocks(self, blocks: Sequence[int]) -> None:
        which = list(blocks)
        for layer in self.memory:
            layer[which] = 0

    def are_zero(self, blocks: Sequence[int]) -> bool:
        which = list(blocks)
        return not any(layer[which].any() for layer in self.memory)


def _by_shape(linears: Sequence[object], kind: type[L]) -> Collection[list[L]]:
    """Those of one class, by their widths."""
    found: dict[tuple[int, int], list[L]] = {}
    for linear in linears:
        if isinstance(linear, kind):
            found.setdefault((linear.width_in, linear.width_out), []).append(linear)
    return found.values()


def make_native_ops(
    config: ModelConfig,
    library: ctypes.CDLL,
    embedding: Tensor,
    ropes: Sequence[Tensor],
    *,
    kv_blocks: int,
    context_tokens: int,
    threads: int,
    numerics: Numerics,
) -> NativeOps:
    """`ropes`: frequencies, one each.  The kernels have threads of their own; torch's would only spin
    beside them, so torch keeps one.  A row's result does not depend on the other rows, but on the layout
    and the unit that multiplied it: `invariant` has one of each.  Matrix tiles multiply bf16 alone."""
    free = machine.available_bytes()
    rounds = numerics is Numerics.INT8
    both = BYTES_BOTH_ROUNDED if rounds else BYTES_BOTH
    tiles = numerics is Numerics.FAST and machine.has_amx() and bool(library.lockgate_amx_allowed())
    library.lockgate_threads(threads)
    torch.set_num_threads(1)
    return NativeOps(
        config=config,
        library=library,
        angles=tuple(
            Angles.make(each, rope.attention_factor, context_tokens)
            for each, rope in zip(ropes, config.ropes, strict=True)
        ),
        windows=tuple({config.kind(layer).window for layer in range(config.layers)}),
        embedding=embedding,
        memory=_memory(config, kv_blocks),
        space=Space(),
        linears=[],
        keeps_blocks=numerics is not Numerics.INVARIANT
        and (free is None or free > config.parameters * both),
        tiles=tiles,
        rounds=rounds,
    )


def _memory(config: ModelConfig, blocks: int) -> tuple[NDArray[np.uint16], ...]:
    """Zeroed, each layer from a cache line on.  numpy's zeros are pages that the system gives when
    they are first written."""
    each = 2 * config.kv_heads * BLOCK_TOKENS * config.head_dim

    def aligned() -> NDArray[np.uint16]:
        raw = np.zeros(blocks * each + 32, np.uint16)
        skip = -raw.ctypes.data % 64 // 2
        return raw[skip : skip + blocks * each].reshape(blocks, each)

    return tuple(aligned() for _ in range(config.layers))
