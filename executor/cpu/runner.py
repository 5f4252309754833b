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


def make_layer(weights: LayerWeights, config: LlamaConfig, *, pack: bool, invariant: bool) -> Layer:
    rotated = (config.heads + config.kv_heads) * config.head_dim
    qkv = torch.cat((_interleave(weights.qkv[:rotated], config.head_dim), weights.qkv[rotated:]))

    def linear(weight: Tensor) -> Linear:
        return make_linear(weight, pack=pack, invariant=invariant)

    return Layer(
        attention_norm=weights.attention_norm,
        qkv=linear(qkv),
        output=linear(weights.output),
        mlp_norm=weights.mlp_norm,
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
            logits = self._forward(make_plan(batch, self.shape))
        return logits.to(torch.float32, copy=True)  # an ordinary tensor, which a sampler may edit

    def zero_blocks(self, blocks: Sequence[int]) -> None:
        if blocks:
            with torch.inference_mode():
                self.kv.zero(blocks)

    def _forward(self, plan: Plan) -> Tensor:
        inner = self.config.intermediate_size
        x = functional.embedding(plan.token_ids, self.embedding).float()
        mixed = self.embedding.new_zeros(len(x), self.config.heads * self.config.head_dim)
        for number, layer in enumerate(self.layers):
            qkv = layer.qkv(self._normed(x, layer.attention_norm))
            x.add_(layer.output(self._attention(number, qkv, plan, mixed)))
            both = layer.gate_up(self._normed(x, layer.mlp_norm))
            x.add_(layer.down(functional.silu(both[:, :inner]).mul_(both[:, inner:])))
        return self._logits(x, plan.sampled)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        normed = functional.rms_norm(x, weight.shape, weight, self.config.norm_eps)
        return normed.to(self.embedding.dtype)

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
        return self.head(self._normed(picked, self.norm))[:wanted]
