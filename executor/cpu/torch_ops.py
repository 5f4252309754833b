"""The CPU backend in plain torch: the specification that the native and Triton kernels are held to,
the invariant mode, and what runs where neither of them can.

All tokens of a step, whatever their sequence, go through each linear together; only attention knows
rows.  Refuses to know: scheduling, sampling, files, the order of a layer's operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from executor.backend import Layer, Linear
from executor.batch import Batch
from executor.choice import Ask, Choice
from executor.model.config import Activation, ModelConfig
from executor.model.source import QuantBlocks
from executor.model.weights import LayerWeights
from executor.sampler import sample

from .attention import attend
from .kv import BLOCK_TOKENS, PagedKv
from .linear import make_linear
from .plan import Plan, Shape, make_plan


@dataclass(frozen=True, slots=True)
class TorchOps:
    """`embedding` (vocab_size, hidden) decides the dtype of what flows between the linears."""

    config: ModelConfig
    shape: Shape
    embedding: Tensor
    kv: PagedKv
    pack: bool

    @property
    def block_tokens(self) -> int:
        return BLOCK_TOKENS

    @property
    def kv_blocks(self) -> int:
        return self.kv.blocks

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        return make_linear(weight, bias, pack=self.pack, invariant=self.shape.invariant)

    def head(self, weight: Tensor, blocks: QuantBlocks | None = None) -> Linear:
        return self.linear(weight)

    @property
    def wants_blocks(self) -> bool:
        return False

    def warm(self, decode: Callable[[int], None]) -> None:
        """The kernels of usual shapes are built when they are first met."""
        for rows in (1, 2, 4, 8, 16, 32):
            decode(rows)

    def layer(self, number: int, weights: LayerWeights) -> Layer:
        weights = _interleaved(weights, self.config)
        return Layer(
            number=number,
            kind=self.config.kind(number),
            attention_norm=weights.attention_norm,
            qkv=self.linear(weights.qkv, weights.qkv_bias),
            q_norm=weights.q_norm,
            k_norm=weights.k_norm,
            output=self.linear(weights.output, weights.output_bias),
            after_attention=weights.after_attention,
            mlp_norm=weights.mlp_norm,
            gate_up=self.linear(weights.gate_up, weights.gate_up_bias),
            down=self.linear(weights.down, weights.down_bias),
            after_mlp=weights.after_mlp,
        )

    def step(self, batch: Batch) -> Plan:
        with torch.inference_mode():
            return make_plan(batch, self.shape)

    def run(self, step: Plan, forward: Callable[[Plan], Tensor]) -> Tensor:
        with torch.inference_mode():
            logits = forward(step)
        return logits.to(torch.float32, copy=True)  # an ordinary tensor, which a sampler may edit

    def sample(self, logits: Tensor, asks: Sequence[Ask]) -> list[Choice]:
        return sample(logits, asks)

    def zero_blocks(self, blocks: Sequence[int]) -> None:
        with torch.inference_mode():
            self.kv.zero(blocks)

    def are_zero(self, blocks: Sequence[int]) -> bool:
        with torch.inference_mode():
            return self.kv.are_zero(blocks)

    def embed(self, step: Plan) -> Tensor:
        return functional.embedding(step.token_ids, self.embedding).float()

    def add_norm(
        self, x: Tensor, delta: Tensor | None, after: Tensor | None, weight: Tensor
    ) -> Tensor:
        if delta is not None:
            x.add_(delta if after is None else self._normed(delta.float(), after))
        return self._normed(x, weight).to(self.embedding.dtype)

    def gate(self, both: Tensor) -> Tensor:
        inner = both.shape[1] // 2
        gate, up = both[:, :inner], both[:, inner:]
        if self.config.activation is Activation.GELU_TANH:
            return functional.gelu(gate, approximate="tanh").mul_(up)
        return functional.silu(gate).mul_(up)

    def attend(self, step: Plan, layer: Layer, qkv: Tensor) -> Tensor:
        heads, kv_heads, head_dim = self.config.heads, self.config.kv_heads, self.config.head_dim
        turned = self._turned(step, layer, qkv.view(len(qkv), -1, head_dim))
        self.kv.write(layer.number, step.places, turned[: step.tokens, heads:])
        queries = turned[:, :heads].view(len(qkv), kv_heads, -1, head_dim)
        groups = step.groups[layer.kind.window]
        if len(groups) == 1 and groups[0].rows * groups[0].queries == len(qkv):
            return self._attended(layer, queries, 0, step)  # all tokens, the usual decode
        mixed = qkv.new_zeros(len(qkv), heads * head_dim)  # its padding stays zero
        for at, group in enumerate(groups):
            found = self._attended(layer, queries, at, step)
            mixed[group.put] = found if group.valid is None else found[group.valid]
        return mixed

    def _attended(self, layer: Layer, queries: Tensor, at: int, step: Plan) -> Tensor:
        group = step.groups[layer.kind.window][at]
        keys, values = self.kv.gather(layer.number, group.places, group.rows)
        return attend(queries[group.take], keys, values, group, self.config.score_scale)

    def _turned(self, step: Plan, layer: Layer, by_head: Tensor) -> Tensor:
        """Queries and keys normed and rotated, values as they are."""
        heads, kv_heads = self.config.heads, self.config.kv_heads
        if layer.q_norm is not None and layer.k_norm is not None:
            queries, keys, values = torch.split(by_head, [heads, kv_heads, kv_heads], 1)
            queries = self._normed(queries.float(), layer.q_norm)
            keys = self._normed(keys.float(), layer.k_norm)
            by_head = torch.cat((queries, keys, values.float()), 1).to(by_head.dtype)
        if layer.kind.rope is None:
            return by_head
        pairs = torch.view_as_complex(by_head.float().view(*by_head.shape[:2], -1, 2))
        return torch.view_as_real(pairs * step.turns[layer.kind.rope]).flatten(2).to(by_head.dtype)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, weight.shape, weight, self.config.norm_eps)


def _interleaved(weights: LayerWeights, config: ModelConfig) -> LayerWeights:
    """Half-split rotary pairs (i, i + d/2) to neighbours, so that a rotation is one complex product."""
    rotated, size = (config.heads + config.kv_heads) * config.head_dim, config.head_dim

    def turn(weight: Tensor | None, rows: int) -> Tensor | None:
        if weight is None:
            return None
        halves = weight[:rows].view(rows // size, 2, size // 2, -1)
        return torch.cat((halves.transpose(1, 2).reshape(weight[:rows].shape), weight[rows:]))

    qkv = turn(weights.qkv, rotated)
    assert qkv is not None
    return replace(
        weights,
        qkv=qkv,
        qkv_bias=turn(weights.qkv_bias, rotated),
        q_norm=turn(weights.q_norm, size),
        k_norm=turn(weights.k_norm, size),
    )
