"""The CPU runner: a Llama in torch over paged memory, one ragged batch a step.

All tokens of a step, whatever their sequence, go through each linear together; only attention knows
rows.  Few operations a layer, since at one token a step most of the time is their overhead.
Refuses to know: scheduling, sampling, files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from executor.batch import Batch
from executor.model.config import LlamaConfig
from executor.model.weights import LayerWeights

from .attention import attend
from .kv import BLOCK_TOKENS, PagedKv
from .linear import TILE_ROWS, Linear, make_linear
from .plan import Plan, Shape, make_plan


@dataclass(frozen=True, slots=True)
class Layer:
    attention_norm: Tensor
    qkv: Linear
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


def make_layer(
    weights: LayerWeights, config: LlamaConfig, dtype: torch.dtype, *, pack: bool, invariant: bool
) -> Layer:
    rotated = (config.heads + config.kv_heads) * config.head_dim
    qkv = torch.cat((_interleave(weights.qkv[:rotated], config.head_dim), weights.qkv[rotated:]))

    def linear(weight: Tensor) -> Linear:
        return make_linear(weight, pack=pack, invariant=invariant)

    return Layer(
        attention_norm=weights.attention_norm.to(dtype),
        qkv=linear(qkv),
        output=linear(weights.output),
        mlp_norm=weights.mlp_norm.to(dtype),
        gate_up=linear(weights.gate_up),
        down=linear(weights.down),
    )


def _interleave(weight: Tensor, head_dim: int) -> Tensor:
    """Half-split rotary pairs (i, i + d/2) to neighbours, so that a rotation is one complex product."""
    halves = weight.view(-1, 2, head_dim // 2, weight.shape[1])
    return halves.transpose(1, 2).reshape(weight.shape)


@dataclass(frozen=True, slots=True)
class CpuRunner:
    config: LlamaConfig
    shape: Shape
    embedding: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Linear
    kv: PagedKv
    context_tokens: int

    @property
    def block_tokens(self) -> int:
        return BLOCK_TOKENS

    @property
    def kv_blocks(self) -> int:
        return self.kv.blocks

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    def run(self, batch: Batch) -> Tensor:
        with torch.inference_mode():
            return self._forward(make_plan(batch, self.shape))

    def zero_blocks(self, blocks: Sequence[int]) -> None:
        if blocks:
            with torch.inference_mode():
                self.kv.zero(blocks)

    def _forward(self, plan: Plan) -> Tensor:
        config, eps = self.config, self.config.norm_eps
        width, inner = (config.hidden_size,), config.intermediate_size
        x = F.embedding(plan.token_ids, self.embedding)
        for number, layer in enumerate(self.layers):
            mixed = self._attention(
                number, layer.qkv(F.rms_norm(x, width, layer.attention_norm, eps)), plan
            )
            x = layer.output.add(mixed, x)
            both = layer.gate_up(F.rms_norm(x, width, layer.mlp_norm, eps))
            x = layer.down.add(F.silu(both[:, :inner]) * both[:, inner:], x)
        wanted = len(plan.sampled)
        if self.shape.invariant:  # the head, too, sees whole tiles only
            more = -wanted % TILE_ROWS
            picked = x.index_select(0, F.pad(plan.sampled, (0, more)))
        else:
            picked = x.index_select(0, plan.sampled)
        if not len(picked):
            return torch.empty(0, config.vocab_size)
        return self.head(F.rms_norm(picked, width, self.norm, eps))[:wanted].float()

    def _attention(self, number: int, qkv: Tensor, plan: Plan) -> Tensor:
        """Rotate, store the new keys and values, attend.  Padding comes out as zeros."""
        config = self.config
        heads, kv_heads, head_dim = config.heads, config.kv_heads, config.head_dim
        split = heads + kv_heads
        shaped = qkv.view(-1, split + kv_heads, head_dim)
        pairs = shaped[:, :split].float().reshape(-1, split, head_dim // 2, 2)
        rotated = torch.view_as_real(torch.view_as_complex(pairs) * plan.angles).flatten(2)
        rotated = rotated.to(qkv.dtype)
        fresh = torch.cat((rotated[: plan.tokens, heads:], shaped[: plan.tokens, split:]), 1)
        self.kv.write(number, plan.slots, fresh)
        queries = rotated[:, :heads].view(-1, kv_heads, heads // kv_heads, head_dim)
        mixed = qkv.new_zeros(len(qkv), heads * head_dim)
        for group in plan.groups:
            keys, values = self.kv.gather(number, group.blocks, group.rows)
            found = attend(queries[group.take], keys, values, group, head_dim**-0.5)
            mixed[group.put] = found if group.valid is None else found[group.valid]
        return mixed
