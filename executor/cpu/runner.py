"""The CPU runner: a Llama in torch over paged memory, one ragged batch a step.

All tokens of a step, whatever their sequence, go through each linear together; only attention knows
rows.  Few operations a layer, since at one token a step most of the time is their overhead.
Refuses to know: scheduling, sampling, files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

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
        eps, width, inner = (
            self.config.norm_eps,
            self.embedding.shape[1:],
            self.config.intermediate_size,
        )
        x = functional.embedding(plan.token_ids, self.embedding)
        mixed = x.new_zeros(len(x), self.config.heads * self.config.head_dim)
        for number, layer in enumerate(self.layers):
            qkv = layer.qkv(functional.rms_norm(x, width, layer.attention_norm, eps))
            x = layer.output.add(self._attention(number, qkv, plan, mixed), x)
            both = layer.gate_up(functional.rms_norm(x, width, layer.mlp_norm, eps))
            x = layer.down.add(functional.silu(both[:, :inner]).mul_(both[:, inner:]), x)
        return self._logits(x, plan.sampled)

    def _attention(self, number: int, qkv: Tensor, plan: Plan, mixed: Tensor) -> Tensor:
        """Rotate, store the new keys and values, attend into `mixed`, whose padding stays zero."""
        heads, kv_heads, head_dim = self.config.heads, self.config.kv_heads, self.config.head_dim
        pairs = torch.view_as_complex(qkv.float().view(len(qkv), heads + 2 * kv_heads, -1, 2))
        turned = torch.view_as_real(pairs * plan.turns).flatten(2).to(qkv.dtype)
        self.kv.write(number, plan.places, turned[: plan.tokens, heads:])
        queries = turned[:, :heads].view(len(qkv), kv_heads, -1, head_dim)
        for group in plan.groups:
            keys, values = self.kv.gather(number, group.places, group.rows)
            found = attend(queries[group.take], keys, values, group, head_dim**-0.5)
            if group.rows * group.queries == len(mixed):
                return found  # one group of all tokens, the usual decode: nothing to put together
            mixed[group.put] = found if group.valid is None else found[group.valid]
        return mixed

    def _logits(self, x: Tensor, sampled: Tensor) -> Tensor:
        wanted = len(sampled)
        if not wanted:
            return torch.empty(0, self.config.vocab_size)
        if self.shape.invariant:  # the head, too, sees whole tiles only
            sampled = functional.pad(sampled, (0, -wanted % TILE_ROWS))
        picked = x.index_select(0, sampled)
        normed = functional.rms_norm(picked, picked.shape[1:], self.norm, self.config.norm_eps)
        return self.head(normed)[:wanted].float()
