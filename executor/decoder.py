"""The decoder: one layer loop for every architecture and every device.

Refuses to know: kernels, layouts, scheduling, sampling, files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

from torch import Tensor

from executor.backend import Backend, Layer, Linear, S
from executor.batch import Batch
from executor.choice import Ask, Choice
from executor.model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Decoder(Generic[S]):
    """A `Runner`."""

    config: ModelConfig
    backend: Backend[S]
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Linear
    context_tokens: int
    embedding_scale: float  # as `weights.embedding_scale` rounds it

    @property
    def block_tokens(self) -> int:
        return self.backend.block_tokens

    @property
    def kv_blocks(self) -> int:
        return self.backend.kv_blocks

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    def run(self, batch: Batch) -> Tensor:
        return self.backend.run(self.backend.step(batch), self._forward)

    def sample(self, logits: Tensor, asks: Sequence[Ask]) -> list[Choice]:
        return self.backend.sample(logits, asks)

    def zero_blocks(self, blocks: Sequence[int]) -> None:
        if blocks:
            self.backend.zero_blocks(blocks)

    def are_zero(self, blocks: Sequence[int]) -> bool:
        return not blocks or self.backend.are_zero(blocks)

    def _forward(self, step: S) -> Tensor:
        ops = self.backend
        x = ops.embed(step)
        if self.embedding_scale != 1.0:
            x.mul_(self.embedding_scale)
        last = self.layers[-1]
        delta: Tensor | None = None
        after: Tensor | None = None
        for layer in self.layers:
            normed = ops.add_norm(x, delta, after, layer.attention_norm)
            mixed = ops.attend(step, layer, layer.qkv(normed))
            if layer is last:  # only what is sampled matters from here on
                x, mixed = x.index_select(0, step.sampled), mixed.index_select(0, step.sampled)
            normed = ops.add_norm(x, layer.output(mixed), layer.after_attention, layer.mlp_norm)
            delta, after = layer.down(ops.gate(layer.gate_up(normed))), layer.after_mlp
        return self.head(ops.add_norm(x, delta, after, self.norm))[: step.wanted]
